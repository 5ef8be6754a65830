from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers
from packaging.version import Version
from tests.losses.router_baseline import (
    TOP_K,
    all_gradients,
    balancing,
    largest_difference,
    path_mean,
    pool,
    router_baseline,
    run_alone,
)

from treetrain.data.sample import Sample
from treetrain.errors import UnsupportedModelError
from treetrain.losses.load_balancing import measure_choices
from treetrain.losses.logprobs import sequence_logprobs
from treetrain.losses.policy import policy_loss
from treetrain.losses.router import RouterLoss, expert_counts, router_terms
from treetrain.losses.sft import sft_loss
from treetrain.losses.window import measure_window
from treetrain.models.prepare import prepare
from treetrain.models.routers import record_routing
from treetrain.packing.batch import pack
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import tree_family
from treetrain.verification.verify import verify

pytestmark = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.24"),
    reason="routers of older releases give probabilities or nothing, which is refused by name",
)

FAMILIES = ["mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss", "olmoe"]
FORMS = ["batch", "micro_batch", "sequence", "deepseek_v3"]
#: The families whose class has an auxiliary loss of its own.
OWN_LOSS = [family for family in FAMILIES if family != "deepseek_v3"]
#: Depth of four nodes, two roots, two duplicates, two strict prefixes.
SEQUENCES = [
    *tree_family()["uneven"],
    [1, 2, 12, 13, 23, 24, 25],
    [1, 2, 10],
    [1, 2, 10],
    [7, 8, 9, 10],
    [7, 8],
]
EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)
EACH_FORM = pytest.mark.parametrize("form", FORMS)


def make_model(family, **overrides):
    model = make_tiny_model(family, **overrides)
    if family == "deepseek_v3":
        # So that the router chooses others than those of largest score.
        generator = torch.Generator().manual_seed(3)
        for name, bias in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                bias.normal_(0, 0.3, generator=generator)
    return model


@EACH_FORM
@EACH_FAMILY
def test_loss_and_all_gradients_are_those_of_the_untouched_model(family, form):
    model = make_model(family, output_router_logits=True)
    alone = run_alone(model, SEQUENCES)
    load, z = router_baseline(alone, form)
    expected = path_mean(alone) + 2.0 * load + 0.5 * z
    theirs = all_gradients(expected, model)

    prepare(model)
    router = RouterLoss(form, load_balancing=2.0, z=0.5)
    ours = sft_loss(model, pack(SEQUENCES), "path_mean", router=router)
    assert ours.item() == pytest.approx(expected.item(), rel=1e-5)
    found = all_gradients(ours, model)
    assert largest_difference(found, theirs) <= 1e-5
    # Either term moves gradients by far more than that.
    for other in (replace(router, load_balancing=0.0), replace(router, z=0.0)):
        loss = sft_loss(model, pack(SEQUENCES), "path_mean", router=other)
        assert largest_difference(all_gradients(loss, model), theirs) > 1e-3


@EACH_FORM
@EACH_FAMILY
def test_each_term_alone_has_the_gradients_of_the_baseline(family, form):
    """Where a token loss could not hide a small difference."""
    model = make_model(family)
    expected = [router_baseline(run_alone(model, SEQUENCES), form)[term] for term in (0, 1)]
    theirs = [all_gradients(term, model) for term in expected]
    prepare(model)
    batch = pack(SEQUENCES)
    for factors, term, gradients in zip(((1, 0), (0, 1)), expected, theirs, strict=True):
        with record_routing(model) as routing:
            sequence_logprobs(model, batch)
        terms = router_terms(routing, batch, RouterLoss(form, *factors))
        assert terms.loss.item() == pytest.approx(term.item(), rel=1e-5)
        assert largest_difference(all_gradients(terms.loss, model), gradients) <= 1e-5
        assert (terms.load_balancing if factors[0] else terms.z).item() == terms.loss.item()


@pytest.mark.parametrize("family", OWN_LOSS)
def test_batch_form_is_the_models_own_loss_of_sequences_of_one_length(family):
    model = make_model(family, output_router_logits=True)
    sequences = [*tree_family()["one_token_nodes"], [1, 2, 4, 6]]
    expected = model(input_ids=torch.tensor(sequences), use_cache=False).aux_loss
    theirs = all_gradients(expected, model)
    prepare(model)
    batch = pack(sequences)
    with record_routing(model) as routing:
        sequence_logprobs(model, batch)
    ours = router_terms(routing, batch, RouterLoss("batch", load_balancing=1.0)).loss
    assert ours.item() == pytest.approx(expected.item(), rel=1e-5)
    assert largest_difference(all_gradients(ours, model), theirs) <= 1e-5


@pytest.mark.parametrize("family", OWN_LOSS)
def test_batch_form_is_the_models_own_loss_of_a_padded_batch(family):
    model = make_model(family, output_router_logits=True)
    longest = max(map(len, SEQUENCES))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in SEQUENCES])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in SEQUENCES])
    expected = model(input_ids=ids, attention_mask=mask, use_cache=False).aux_loss
    theirs = all_gradients(expected, model)
    prepare(model)
    batch = pack(SEQUENCES)
    with record_routing(model) as routing:
        sequence_logprobs(model, batch)
    ours = router_terms(routing, batch, RouterLoss("batch", load_balancing=1.0)).loss
    assert ours.item() == pytest.approx(expected.item(), rel=1e-5)
    assert largest_difference(all_gradients(ours, model), theirs) <= 1e-5


def test_path_counts_bite():
    """Each packed token counted once is another loss."""
    model = make_model("mixtral")
    prepare(model)
    batch = pack(SEQUENCES)
    with record_routing(model) as routing:
        sequence_logprobs(model, batch)
    ours = router_terms(routing, batch, RouterLoss("batch", load_balancing=1.0)).loss
    once = balancing([layer.logits for layer in routing.layers])
    assert abs(ours.item() - once.item()) > 1e-2


@EACH_FAMILY
def test_counts_are_those_of_the_experts_that_each_sequence_alone_goes_to(family):
    model = make_model(family)
    alone = run_alone(model, SEQUENCES)
    prepare(model)
    batch = pack(SEQUENCES)
    with record_routing(model) as routing:
        sft_loss(model, batch, "path_mean")
    counts = expert_counts(routing, batch)
    layers = [torch.cat(layer) for layer in zip(*(one.experts for one in alone), strict=True)]
    assert len(counts) == len(layers) == (3 if family == "deepseek_v3" else 4)
    for (name, ours), theirs in zip(counts.items(), layers, strict=True):
        assert torch.equal(ours, theirs.flatten().bincount(minlength=len(ours)))
        assert int(ours.sum()) == sum(map(len, SEQUENCES)) * TOP_K
        assert hasattr(model.get_submodule(name), "top_k")


def test_counts_of_a_biased_router_are_of_what_it_chose_not_of_the_largest_scores():
    model = make_model("deepseek_v3")
    prepare(model)
    batch = pack(SEQUENCES)
    with record_routing(model) as routing:
        sequence_logprobs(model, batch)
    layer = routing.layers[0]
    assert not torch.equal(layer.experts.sort(-1)[0], layer.logits.topk(TOP_K)[1].sort(-1)[0])


@pytest.mark.parametrize(
    "split",
    [
        [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]],
        [[7, 0], [1, 2, 6, 11], [5], [9, 3, 4, 8, 10]],
    ],
)
@EACH_FORM
def test_a_step_cut_into_batches_has_the_loss_and_gradients_of_the_baseline(form, split):
    model = make_model("qwen3_moe")
    alone = run_alone(model, SEQUENCES)
    load, z = router_baseline(alone, form)
    if form == "micro_batch":
        parts = [[alone[index] for index in part] for part in split]
        tokens = [sum(len(one.logits[0]) for one in part) for part in parts]
        load = sum(
            balancing(pool(part)) * n / sum(tokens) for part, n in zip(parts, tokens, strict=True)
        )
    expected = path_mean(alone) + 2.0 * load + 0.5 * z
    theirs = all_gradients(expected, model)

    prepare(model)
    batches = [pack([SEQUENCES[index] for index in part]) for part in split]
    window = measure_window(batches)
    choices = measure_choices(model, batches) if form == "batch" else None
    router = RouterLoss(form, load_balancing=2.0, z=0.5, window_choices=choices)
    losses = [sft_loss(model, b, "path_mean", window=window, router=router) for b in batches]
    assert sum(losses).item() == pytest.approx(expected.item(), rel=1e-5)
    assert largest_difference(all_gradients(sum(losses), model), theirs) <= 1e-5


@EACH_FORM
def test_groups_order_and_empty_sequences_change_nothing_but_the_mean_over_sequences(form):
    model = make_model("olmoe")
    prepare(model)
    router = RouterLoss(form, load_balancing=2.0, z=0.5)
    whole = sft_loss(model, pack(SEQUENCES), "sum", router=router)
    apart = [Sample(row, group=index % 3) for index, row in enumerate(SEQUENCES)]
    for samples in (apart, SEQUENCES[::-1]):
        loss = sft_loss(model, pack(samples), "sum", router=router)
        assert loss.item() == pytest.approx(whole.item(), rel=1e-5)
    batches = [pack(SEQUENCES), pack([[], [], []])]
    with record_routing(model) as routing:
        sequence_logprobs(model, batches[0])
    terms = [
        router_terms(routing, batches[0], router, window=window)
        for window in (None, measure_window(batches))
    ]
    mean = 1 if form in ("batch", "micro_batch") else len(SEQUENCES) / (len(SEQUENCES) + 3)
    assert terms[1].loss.item() == pytest.approx(terms[0].loss.item() * mean, rel=1e-6)
    empty = sft_loss(model, batches[1], "sum", window=measure_window(batches), router=router)
    assert empty.item() == 0


def test_batch_form_over_several_batches_needs_the_choices_of_all_of_them():
    model = make_model("mixtral")
    prepare(model)
    batches = [pack(SEQUENCES[:5]), pack(SEQUENCES[5:])]
    window = measure_window(batches)
    router = RouterLoss("batch", load_balancing=1.0)
    with pytest.raises(ValueError, match=r"window_choices must be given .* 'micro_batch'"):
        sft_loss(model, batches[0], "sum", window=window, router=router)
    few = replace(router, window_choices=measure_choices(model, batches[:1]))
    with pytest.raises(ValueError, match=r"window_choices must be 488 choices among 6 experts"):
        sft_loss(model, batches[0], "sum", window=window, router=few)
    with record_routing(model) as routing:
        sft_loss(model, batches[0], "sum")
    other = measure_window([pack([[1, 2]] * 9)])
    with pytest.raises(ValueError, match="window must include the batch"):
        router_terms(routing, batches[0], router, window=other)
    sft_loss(model, batches[0], "sum", window=window, router=RouterLoss("batch", z=1.0))


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "gpt_oss"])
@pytest.mark.parametrize("form", ["batch", "sequence"])
def test_checkpointing_changes_no_gradient(family, form):
    model = make_model(family)
    alone = run_alone(model, SEQUENCES)
    load, z = router_baseline(alone, form)
    theirs = all_gradients(path_mean(alone) + 2.0 * load + 0.5 * z, model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    prepare(model)
    router = RouterLoss(form, load_balancing=2.0, z=0.5)
    loss = sft_loss(model, pack(SEQUENCES), "path_mean", router=router)
    assert largest_difference(all_gradients(loss, model), theirs) <= 1e-5


def test_reentrant_checkpointing_which_loses_gradients_of_routers_is_refused():
    model = make_model("qwen3_moe")
    prepare(model)
    batch = pack(SEQUENCES)
    with record_routing(model) as routing:
        sft_loss(model, batch, "sum")
    expected = expert_counts(routing, batch)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model.enable_input_require_grads()
    model.train()
    router = RouterLoss("sequence", load_balancing=1.0)
    with pytest.raises(UnsupportedModelError, match="'use_reentrant': False"):
        sft_loss(model, batch, "sum", router=router)
    # Counts have no gradient to lose, nor has anything without gradients.
    with record_routing(model) as routing:
        sft_loss(model, batch, "sum").backward()
    for name, counts in expert_counts(routing, batch).items():
        assert torch.equal(counts, expected[name])
    with torch.no_grad():
        sft_loss(model, batch, "sum", router=router)


@pytest.mark.parametrize("objective", ["plain", "ppo"])
def test_policy_loss_adds_the_same_terms(objective):
    model = make_model("gpt_oss", output_router_logits=True)
    alone = run_alone(model, SEQUENCES)
    load, z = router_baseline(alone, "sequence")
    expected = 0.7 * path_mean(alone) + 2.0 * load + 0.5 * z
    theirs = all_gradients(expected, model)
    prepare(model)
    ratio = {"old_logprobs": "current", "clip_low": 0.2, "clip_high": 0.2}
    result = policy_loss(
        model,
        pack(SEQUENCES),
        "path_mean",
        objective=objective,
        advantages=[0.7] * len(SEQUENCES),
        router=RouterLoss("sequence", load_balancing=2.0, z=0.5),
        **(ratio if objective == "ppo" else {}),
    )
    assert result.statistics["load_balancing"].item() == pytest.approx(load.item(), rel=1e-5)
    assert result.statistics["router_z"].item() == pytest.approx(z.item(), rel=1e-5)
    assert largest_difference(all_gradients(result.loss, model), theirs) <= 1e-5


def test_a_loss_that_would_leave_the_models_own_router_loss_out_is_refused():
    model = make_model("mixtral", output_router_logits=True)
    prepare(model)
    batch = pack(SEQUENCES)
    said = r"output_router_logits=True .*RouterLoss\('batch', load_balancing=0.001\)"
    with pytest.raises(ValueError, match=said):
        sft_loss(model, batch, "sum")
    with pytest.raises(ValueError, match=said):
        policy_loss(model, batch, "sum", objective="plain", advantages=[1] * len(SEQUENCES))
    without = sft_loss(model, batch, "sum", router=RouterLoss("batch"))
    sequence_logprobs(model, batch)
    assert verify(model, SEQUENCES, reduction="sum").equal
    model.config.output_router_logits = False
    assert torch.equal(sft_loss(model, batch, "sum"), without)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"form": "layer"}, "form must be one of"),
        ({"form": "batch", "load_balancing": -1.0}, "load_balancing must be at least 0"),
        ({"form": "batch", "z": float("inf")}, "z must be at least 0 and finite"),
        ({"form": "sequence", "window_choices": torch.ones(2)}, "must not be given for form"),
    ],
)
def test_wrong_settings_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        RouterLoss(**arguments)
    with pytest.raises(TypeError, match="router must be None or a RouterLoss, got float"):
        sft_loss(make_model("mixtral"), pack([[1, 2]]), "sum", router=0.01)


def test_routers_of_a_bfloat16_model_lose_in_float32():
    model = make_model("mixtral", dtype=torch.bfloat16)
    prepare(model)
    batch = pack(SEQUENCES)
    with record_routing(model) as routing:
        sequence_logprobs(model, batch)
    assert routing.layers[0].logits.dtype == torch.bfloat16
    terms = router_terms(routing, batch, RouterLoss("sequence", load_balancing=1.0, z=1.0))
    assert terms.loss.dtype == torch.float32
