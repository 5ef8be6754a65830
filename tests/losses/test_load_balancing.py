"""The forms against their definitions in float64, on logits that hang on the prefix alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from treetrain.errors import UnsupportedModelError
from treetrain.losses.router import RouterLoss, expert_counts, router_terms
from treetrain.losses.window import measure_window
from treetrain.models.routers import RouterOutput, Routing
from treetrain.packing.batch import Batch, pack
from treetrain.testing.trees import random_forest, tree_family

LAYERS, EXPERTS, TOP_K = 3, 7, 2
TREES = {
    **tree_family(),
    "forest": random_forest(np.random.default_rng(4), roots=3, depth=6, vocabulary=12),
}


@dataclass
class ToyRouters:
    """Logits of each prefix and layer, [prefixes, X]."""

    rows: dict[tuple[int, ...], int]
    tables: list[Tensor]

    def alone(self, sequence: list[int]) -> list[Tensor]:
        places = [self.rows[tuple(sequence[: end + 1])] for end in range(len(sequence))]
        return [table[places] for table in self.tables]

    def routing(self, batch: Batch) -> Routing:
        places = torch.zeros(batch.num_tokens, dtype=torch.int64)
        for index, sample in enumerate(batch.samples):
            prefix: tuple[int, ...] = ()
            for token, place in zip(
                sample.tokens.tolist(), batch.tree.positions(index), strict=True
            ):
                prefix = (*prefix, token)
                places[int(place)] = self.rows[prefix]
        layers = []
        for number, table in enumerate(self.tables):
            logits = table[places]
            experts = logits.detach().topk(TOP_K).indices
            layers.append(RouterOutput(f"layer {number}", logits, experts))
        return Routing(packed=batch.packed, layers=layers)


def make_toy(sequences: list[list[int]]) -> ToyRouters:
    prefixes = {tuple(row[: end + 1]) for row in sequences for end in range(len(row))}
    generator = torch.Generator().manual_seed(0)
    tables = [
        torch.randn(len(prefixes), EXPERTS, dtype=torch.float64, generator=generator) * 2
        for _ in range(LAYERS)
    ]
    for table in tables:
        table.requires_grad_()
    return ToyRouters({prefix: row for row, prefix in enumerate(sorted(prefixes))}, tables)


def switch_loss(layers: list[Tensor]) -> Tensor:
    """Switch Transformer, equations 4 to 6, over the tokens of all layers."""
    logits = torch.cat(layers)
    p = logits.softmax(-1)
    chosen = torch.zeros_like(p).scatter(1, p.topk(TOP_K).indices, 1.0)
    return EXPERTS * (chosen.mean(0) * p.mean(0)).sum()


def deepseek_loss(layers: list[Tensor]) -> Tensor:
    """DeepSeek-V3, equations 17 to 20, summed over layers."""
    total = torch.zeros((), dtype=torch.float64)
    for logits in layers:
        s = logits.sigmoid()
        chosen = torch.zeros_like(s).scatter(1, s.topk(TOP_K).indices, 1.0)
        f = EXPERTS / (TOP_K * len(s)) * chosen.sum(0)
        total = total + (f * (s / s.sum(-1, keepdim=True)).mean(0)).sum()
    return total


def z_loss(layers: list[Tensor]) -> Tensor:
    return torch.stack([logits.exp().sum(-1).log().square() for logits in layers]).mean()


def expected_loss(toy: ToyRouters, sequences: list[list[int]], form: str) -> Tensor:
    flat = [toy.alone(row) for row in sequences if row]
    if form == "batch":
        pooled = [torch.cat(layer) for layer in zip(*flat, strict=True)]
        return 2 * switch_loss(pooled) + 0.5 * z_loss(pooled)
    one = deepseek_loss if form == "deepseek_v3" else switch_loss
    parts = [2 * one(layers) + 0.5 * z_loss(layers) for layers in flat]
    return torch.stack(parts).sum() / len(sequences)


@pytest.mark.parametrize("form", ["batch", "sequence", "deepseek_v3"])
@pytest.mark.parametrize("name", list(TREES))
def test_losses_and_gradients_are_those_of_the_definition(name, form):
    sequences = TREES[name]
    toy = make_toy(sequences)
    batch = pack(sequences)
    router = RouterLoss(form, load_balancing=2.0, z=0.5)
    ours = router_terms(toy.routing(batch), batch, router).loss
    expected = expected_loss(toy, sequences, form)
    assert ours.item() == pytest.approx(expected.item(), rel=1e-10)
    found = torch.autograd.grad(ours, toy.tables)
    wanted = torch.autograd.grad(expected, toy.tables)
    scale = max(float(gradient.abs().max()) for gradient in wanted)
    for one, other in zip(found, wanted, strict=True):
        assert float((one - other).abs().max()) <= 1e-10 * scale


@pytest.mark.parametrize("form", ["sequence", "deepseek_v3"])
def test_sequence_forms_add_up_over_any_cut(form):
    sequences = TREES["forest"]
    toy = make_toy(sequences)
    router = RouterLoss(form, load_balancing=2.0, z=0.5)
    batches = [pack(sequences[start : start + 4]) for start in range(0, len(sequences), 4)]
    window = measure_window(batches)
    parts = [router_terms(toy.routing(b), b, router, window=window).loss for b in batches]
    whole = expected_loss(toy, sequences, form)
    assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-10)


def test_counts_are_integers_of_all_flat_tokens():
    sequences = TREES["forest"]
    toy = make_toy(sequences)
    batch = pack(sequences)
    for counts, table in zip(
        expert_counts(toy.routing(batch), batch).values(), toy.tables, strict=True
    ):
        alone = [
            table[toy.rows[tuple(row[: end + 1])]] for row in sequences for end in range(len(row))
        ]
        experts = torch.stack(alone).topk(TOP_K).indices.flatten()
        assert torch.equal(counts, experts.bincount(minlength=EXPERTS))


def test_routers_that_choose_differently_are_pooled_by_no_form():
    batch = pack([[1, 2], [1, 3]])
    toy = make_toy([[1, 2], [1, 3]])
    routing = toy.routing(batch)
    first = routing.layers[0]
    routing.layers[0] = RouterOutput(first.name, first.logits[:, :-1], first.experts)
    for form in ("batch", "sequence"):
        with pytest.raises(UnsupportedModelError, match="choose form 'deepseek_v3'"):
            router_terms(routing, batch, RouterLoss(form, load_balancing=1.0))
    router_terms(routing, batch, RouterLoss("deepseek_v3", load_balancing=1.0))
    router_terms(routing, batch, RouterLoss("batch", z=1.0))
