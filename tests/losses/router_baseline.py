"""Losses of routers from the list of sequences, each alone through a model nobody has prepared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
from transformers.models.switch_transformers.modeling_switch_transformers import router_z_loss_func

TOP_K = 2


@dataclass(frozen=True)
class Alone:
    """One sequence: its negative log-likelihood, and logits and choices of each router."""

    nll: Tensor
    logits: list[Tensor]
    experts: list[Tensor]


def run_alone(model: PreTrainedModel, sequences: Sequence[list[int]]) -> list[Alone]:
    assert not model.config._attn_implementation.startswith("treetrain")
    experts: list[Tensor] = []
    gates = [
        module for name, module in model.named_modules() if name.endswith((".gate", ".router"))
    ]
    gates = [gate for gate in gates if type(gate).__name__.endswith(("TopKRouter", "TopkRouter"))]
    handles = [
        gate.register_forward_hook(lambda *call: experts.append(call[2][2])) for gate in gates
    ]
    results = []
    for sequence in sequences:
        ids = torch.tensor([sequence])
        experts.clear()
        output = model(input_ids=ids, use_cache=False, output_router_logits=True)
        logp = output.logits[0, :-1].log_softmax(-1)
        nll = -logp.gather(1, ids[0, 1:, None])[:, 0]
        results.append(Alone(nll, list(output.router_logits), list(experts)))
    for handle in handles:
        handle.remove()
    return results


def pool(results: Sequence[Alone]) -> list[Tensor]:
    """Logits of each router, of all sequences one after the other."""
    return [torch.cat(layer) for layer in zip(*(one.logits for one in results), strict=True)]


def balancing(logits: Sequence[Tensor]) -> Tensor:
    loss = load_balancing_loss_func(tuple(logits), logits[0].shape[-1], TOP_K)
    assert isinstance(loss, Tensor)
    return loss


def z_loss(logits: Sequence[Tensor]) -> Tensor:
    loss = router_z_loss_func(torch.stack(list(logits)))
    assert isinstance(loss, Tensor)
    return loss


def deepseek_loss(logits: Sequence[Tensor]) -> Tensor:
    """Equations 17 to 20 of arXiv:2412.19437 for one sequence, summed over routers."""
    total = torch.zeros(())
    for layer in logits:
        length, width = layer.shape
        s = layer.sigmoid()
        for i in range(width):
            chosen = sum(int(i in s[t].topk(TOP_K).indices) for t in range(length))
            f = width / (TOP_K * length) * chosen
            total = total + f * (s[:, i] / s.sum(-1)).mean()
    return total


def router_baseline(results: Sequence[Alone], form: str) -> tuple[Tensor, Tensor]:
    """Load-balancing loss and z-loss of one step."""
    if form in ("batch", "micro_batch"):
        return balancing(pool(results)), z_loss(pool(results))
    one = deepseek_loss if form == "deepseek_v3" else balancing
    losses = [torch.stack([make(r.logits) for r in results]).mean() for make in (one, z_loss)]
    return losses[0], losses[1]


def path_mean(results: Sequence[Alone]) -> Tensor:
    return torch.stack([one.nll.sum() for one in results]).mean()


def all_gradients(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for name, parameter, gradient in zip(names, parameters, found, strict=True)
    }


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Over the largest gradient of the second."""
    scale = max(float(x.abs().max()) for x in other.values())
    assert scale > 0
    return max(float((one[name] - other[name]).abs().max()) for name in other) / scale
