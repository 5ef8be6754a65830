"""Losses of routers evaluated part by part, on router logits of the whole tree in float64."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import add

import pytest
import torch
import transformers
from packaging.version import Version
from tests.losses.random_parts import cut_batch, routing_of, rows_of

from treetrain.losses.load_balancing import measure_choices
from treetrain.losses.policy import policy_terms
from treetrain.losses.router import RouterLoss, router_terms
from treetrain.losses.router_choices import RouterChoices, count_window_choices
from treetrain.losses.sft import sft_terms
from treetrain.losses.tree_sums import make_tree_sums
from treetrain.losses.window import measure_window
from treetrain.models.prepare import prepare
from treetrain.models.routers import RouterOutput, Routing, record_routing
from treetrain.packing.batch import pack
from treetrain.packing.parts import whole_batch
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import tree_family

pytestmark = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.24"),
    reason="routers of older releases give probabilities or nothing, which is refused by name",
)

SEQUENCES = [*tree_family()["uneven"], [1, 2, 12, 13, 23], [1, 2, 10], [1, 2, 10], [], [7, 8, 9]]
OTHERS = [[1, 2, 30], [31, 32]]
EACH_FORM = pytest.mark.parametrize("form", ["batch", "micro_batch", "sequence", "deepseek_v3"])


@pytest.fixture(scope="module", params=["qwen3_moe", "deepseek_v3"])
def model(request):
    made = make_tiny_model(request.param)
    prepare(made)
    return made


def record(model, batch):
    """Hidden states of the whole tree, and the routing with logits in float64 without a graph."""
    prepared = prepare(model)
    with torch.no_grad(), record_routing(model) as routing:
        hidden = prepared.hidden_states(batch.packed)
    layers = [
        RouterOutput(layer.name, layer.logits.double().requires_grad_(), layer.experts)
        for layer in routing.layers
    ]
    return prepared, hidden, Routing(packed=batch.packed, layers=layers)


def gradients(loss, routing):
    return torch.autograd.grad(loss, [layer.logits for layer in routing.layers])


def assert_close(ours, theirs):
    scale = max(float(one.abs().max()) for one in theirs)
    assert scale > 0
    for one, other in zip(ours, theirs, strict=True):
        assert float((one - other).abs().max()) <= 1e-12 * scale


@EACH_FORM
@pytest.mark.parametrize("num_parts", [1, 2, 5])
@pytest.mark.parametrize("windowed", [False, True])
def test_parts_add_up_to_the_whole(model, form, num_parts, windowed):
    batch = pack(SEQUENCES)
    batches = [batch, pack(OTHERS)]
    window = measure_window(batches) if windowed else None
    choices = measure_choices(model, batches) if windowed and form == "batch" else None
    router = RouterLoss(form, load_balancing=2.0, z=0.5, window_choices=choices)
    prepared, hidden, routing = record(model, batch)
    whole = router_terms(routing, batch, router, window=window)

    terms = sft_terms(batch, "sum", window=window, router=router)
    without = sft_terms(batch, "sum", window=window)
    parts = cut_batch(batch, num_parts, 3)
    assert terms.needs_choices == (choices is None)
    if terms.needs_choices:
        for part in parts:
            terms.note_choices(routing_of(routing, part), part)
    shares, losses = [], []
    for part in parts:
        rows = rows_of(hidden, part)
        share = terms.evaluate(prepared, rows, part, routing=routing_of(routing, part))
        losses.append(share.loss - without.evaluate(prepared, rows, part).loss.detach())
        shares.append(share)
    total = reduce(add, shares)
    for name, value in (("load_balancing", whole.load_balancing), ("router_z", whole.z)):
        assert value.item() > 0
        assert total.statistics[name].item() == pytest.approx(value.item(), rel=1e-12)
    assert_close(gradients(sum(losses), routing), gradients(whole.loss, routing))


@EACH_FORM
def test_choices_may_come_from_any_number_of_parts_but_all_of_them(model, form):
    batch = pack(SEQUENCES)
    prepared, hidden, routing = record(model, batch)
    terms = sft_terms(batch, "sum", router=RouterLoss(form, load_balancing=1.0))
    first, second = cut_batch(batch, 2, 0)
    terms.note_choices(routing_of(routing, first), first)
    said = rf"got those of {len(first.places)} of {batch.num_tokens} tokens"
    rows = rows_of(hidden, second)
    with pytest.raises(ValueError, match=said):
        terms.evaluate(prepared, rows, second, routing=routing_of(routing, second))
    terms.note_choices(routing_of(routing, second), second)
    terms.evaluate(prepared, rows, second, routing=routing_of(routing, second))
    with pytest.raises(ValueError, match="routing must be the record of the part's forward pass"):
        terms.evaluate(prepared, rows, second)
    with pytest.raises(ValueError, match="routing must be the record of the forward pass on"):
        terms.evaluate(prepared, rows, second, routing=routing_of(routing, first))


def test_the_whole_batch_takes_choices_from_its_own_pass_each_time(model):
    batch = pack(SEQUENCES)
    prepared, hidden, routing = record(model, batch)
    router = RouterLoss("sequence", load_balancing=1.0)
    terms = sft_terms(batch, "sum", router=router)
    whole = whole_batch(batch)
    before = terms.evaluate(prepared, hidden, whole, routing=routing)
    layers = [replace(layer, logits=-layer.logits) for layer in routing.layers]
    other = Routing(packed=batch.packed, layers=layers)
    after = terms.evaluate(prepared, hidden, whole, routing=other)
    expected = router_terms(other, batch, router).load_balancing
    assert after.statistics["load_balancing"].item() == expected.item()
    assert after.statistics["load_balancing"].item() != before.statistics["load_balancing"].item()


def test_z_loss_and_known_choices_need_no_pass_before():
    batch = pack(SEQUENCES)
    for router in (
        None,
        RouterLoss("sequence"),
        RouterLoss("sequence", z=1.0),
        RouterLoss("batch", load_balancing=1.0, window_choices=torch.ones(6)),
    ):
        assert not sft_terms(batch, "sum", router=router).needs_choices
    for form in ("batch", "micro_batch", "sequence", "deepseek_v3"):
        assert sft_terms(batch, "sum", router=RouterLoss(form, load_balancing=1.0)).needs_choices
    empty = pack([[]])
    assert not sft_terms(empty, "sum", router=RouterLoss("batch", load_balancing=1.0)).needs_choices


def test_what_a_step_lacks_is_told_before_any_model_is_there():
    batch = pack(SEQUENCES)
    window = measure_window([batch, pack(OTHERS)])
    router = RouterLoss("batch", load_balancing=1.0)
    with pytest.raises(ValueError, match=r"window_choices must be given .* 'micro_batch'"):
        sft_terms(batch, "sum", window=window, router=router)
    with pytest.raises(ValueError, match="window must include the batch"):
        sft_terms(batch, "sum", window=measure_window([pack(OTHERS)]), router=router)


def test_choices_of_parts_count_as_those_of_the_batch(model):
    batch = pack(SEQUENCES)
    _, _, routing = record(model, batch)
    choices = RouterChoices("batch", batch.num_tokens)
    for part in cut_batch(batch, 3, 5):
        choices.note(routing_of(routing, part), part)
    found = count_window_choices(choices, make_tree_sums(batch.tree, "cpu"))
    assert torch.equal(found, measure_choices(model, [batch]))


def test_a_part_without_a_target_has_its_share_of_the_routers(model):
    batch = pack(SEQUENCES)
    prepared, hidden, routing = record(model, batch)
    terms = policy_terms(
        batch,
        "sum",
        objective="plain",
        advantages=[0.5] * len(SEQUENCES),
        router=RouterLoss("sequence", z=1.0),
    )
    parts = cut_batch(batch, batch.num_tokens, 2)
    bare = next(part for part in parts if len(part.places) and not len(part.part.targets))
    share = terms.evaluate(prepared, rows_of(hidden, bare), bare, routing=routing_of(routing, bare))
    assert share.targets == 0
    assert share.loss.item() == share.statistics["router_z"].item() > 0
    assert share.loss.requires_grad
