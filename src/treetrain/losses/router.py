"""Losses of the routers of a mixture of experts, and counts of the experts that tokens chose.

With experts computed once per shared token, a token's router logits are the same for every sequence
through it. What is summed here counts each token once per sequence, as separate training does. With
L routers of X experts, k of them for each token, n flat tokens, and p the softmax of the logits:

    batch        X sum_i f_i P_i; f_i: how often the n L tokens have expert i among the k of largest
                 p, over n L; P_i: mean of p_i over the n L tokens; over the whole window
    micro_batch  the same over each batch alone; batches are weighted by their flat tokens
    sequence     the same over each sequence alone; mean over the sequences of the window
    deepseek_v3  X / k sum_i f_i P_i over each sequence and each router alone, with p the sigmoid of
                 the logits over its sum; sum over routers, mean over the sequences of the window

The z-loss is the mean of logsumexp(logits)^2 over routers and tokens: over all flat tokens of the
window for the first two, over each sequence's and then over sequences for the others. Every token
of a sequence counts, trained or not, and neither loss hangs on the reduction. A sequence without
tokens counts with a loss of 0.

Source: `load_balancing_loss_func` of transformers (Switch Transformer, arXiv:2101.03961, equations
4 to 6) for "batch"; DeepSeek-V3 (arXiv:2412.19437, equations 17 to 20); ST-MoE (arXiv:2202.08906,
equation 5) and transformers' `router_z_loss_func` for the z-loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from treetrain.errors import check_type
from treetrain.losses.router_loss import RouterLoss, RouterTerms
from treetrain.losses.router_parts import plan_routers
from treetrain.losses.tree_sums import make_tree_sums
from treetrain.losses.window import LossWindow
from treetrain.models.routers import Routing, record_routing
from treetrain.packing.batch import Batch
from treetrain.packing.parts import whole_batch


def router_terms(
    routing: Routing, batch: Batch, router: RouterLoss, *, window: LossWindow | None = None
) -> RouterTerms:
    """Compute the losses of the routers from the record of a forward pass.

    Args:
        routing: the record, from `record_routing`.
        batch: the batch whose forward pass was recorded.
        router: the losses.
        window: sums over all batches of one optimiser step, as in `sft_loss`.

    Returns:
        The losses.

    Raises:
        ValueError: the record is of another batch, the batch is no part of the window, or form
            "batch" lacks the choices of a window of several batches.
        UnsupportedModelError: routers were computed without gradients, or choose differently many
            experts, which form "batch" and "sequence" pool.

    Example:
        >>> import torch
        >>> from treetrain.losses.logprobs import sequence_logprobs
        >>> from treetrain.models.prepare import prepare
        >>> from treetrain.packing.batch import pack
        >>> from treetrain.testing.models import make_tiny_model
        >>> model, batch = make_tiny_model("qwen3_moe"), pack([[1, 2, 3, 4], [1, 2, 5]])
        >>> handle = prepare(model)
        >>> with record_routing(model) as routing:
        ...     loss = -torch.cat(sequence_logprobs(model, batch)).mean()
        >>> terms = router_terms(routing, batch, RouterLoss("sequence", load_balancing=0.01))
        >>> (loss + terms.loss).backward()
    """  # noqa: DOC502 (the functions below raise)
    check_type("routing", routing, Routing, "a Routing from record_routing(model)")
    check_type("batch", batch, Batch, "a Batch from pack(samples)")
    return plan_routers(batch, router, window).evaluate(routing, whole_batch(batch))


def expert_counts(routing: Routing, batch: Batch) -> dict[str, Tensor]:
    """Count how many flat tokens each expert of each router computes.

    What a bias that balances experts is updated by: the experts are those that the router chose,
    its bias and its groups included, and a shared token counts once for each sequence. Counts of
    the batches of a step add up.

    Args:
        routing: the record, from `record_routing`.
        batch: the batch whose forward pass was recorded.

    Returns:
        For the qualified name of each router, in the order of the layers, the counts, [X] int64.

    Source: arXiv:2408.15664, algorithm 1.

    Example:
        >>> from treetrain.losses.sft import sft_loss
        >>> from treetrain.models.prepare import prepare
        >>> from treetrain.packing.batch import pack
        >>> from treetrain.testing.models import make_tiny_model
        >>> model, batch = make_tiny_model("deepseek_v3"), pack([[1, 2, 3, 4], [1, 2, 5]])
        >>> handle = prepare(model)
        >>> with record_routing(model) as routing:
        ...     sft_loss(model, batch, "token_mean").backward()
        >>> for name, counts in expert_counts(routing, batch).items():
        ...     error = counts.double().mean() - counts
        ...     bias = model.get_submodule(name).e_score_correction_bias
        ...     bias += 0.001 * error.sign()
        >>> name, int(counts.sum())
        ('model.layers.3.mlp.gate', 14)
    """
    check_type("routing", routing, Routing, "a Routing from record_routing(model)")
    check_type("batch", batch, Batch, "a Batch from pack(samples)")
    if batch.num_tokens == 0:
        return {}
    sums = make_tree_sums(batch.tree, batch.device)
    return {
        layer.name: (sums.path_counts * sums.count_choices(layer.experts, layer.logits.shape[-1]))
        .sum(0)
        .long()
        for layer in routing.of(batch.packed)
    }


@contextmanager
def record_for(model: nn.Module, router: RouterLoss | None) -> Iterator[Routing | None]:
    """Record routing where a loss needs it.

    Args:
        model: a model.
        router: the losses of its routers, or None.

    Yields:
        The record, or None where the routers have no loss.

    Raises:
        ValueError: there are no losses and the model's config asks for one.
    """
    if router is not None:
        check_type("router", router, RouterLoss, "None or a RouterLoss")
    config: Any = getattr(model, "config", None)
    config = None if config is None else config.get_text_config()
    if router is None and getattr(config, "output_router_logits", False):
        factor = getattr(config, "router_aux_loss_coef", 0.001)
        raise ValueError(
            f"router must be given, got None: {type(model).__name__} has output_router_logits=True "
            "and this loss would leave the loss of its routers out; pass router=RouterLoss('batch',"
            f" load_balancing={factor}) as its config has it, RouterLoss('batch') to train without "
            "it, or set model.config.output_router_logits = False"
        )
    if router is None or router.is_zero:
        yield None
    else:
        with record_routing(model) as routing:
            yield routing
