from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from treetrain.attention import reference
from treetrain.data.sample import Sample
from treetrain.errors import EquivalenceError
from treetrain.models.prepare import prepare
from treetrain.models.prepared import find_prepared
from treetrain.packing.gateway import LayerStore
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import tree_family
from treetrain.verification.both_ways import StepWork
from treetrain.verification.verify import verify

UNEVEN = tree_family()["uneven"]
MODELS = ("llama", "qwen3", "gpt2", "gpt_oss", "gemma2")


def make_model(family, dtype=torch.float32):
    model = make_tiny_model(family, dtype=dtype)
    if dtype == torch.float64:
        # Kernels that group experts know no float64.
        model.set_experts_implementation("eager")
    return model


@pytest.mark.parametrize("family", MODELS)
def test_every_tree_of_the_family_is_equal_in_float32(family):
    model = make_model(family)
    prepare(model)
    for name, sequences in tree_family().items():
        if any(len(sequence) > 1 for sequence in sequences):
            report = verify(model, sequences, raise_on_difference=False)
            assert report.equal, (name, report.failures)
            assert report.dtype == "float32"


@pytest.mark.parametrize("family", MODELS)
def test_float64_is_equal_to_its_own_limit(family):
    report = verify(make_model(family, torch.float64), UNEVEN)
    assert report.gradients.max_relative_error <= 1e-10
    assert report.logprobs.max_relative_error <= 1e-10


def test_bfloat16_is_judged_against_a_float64_truth():
    report = verify(make_model("llama", torch.bfloat16), UNEVEN)
    assert report.dtype == "bfloat16"
    # A bfloat16 baseline is no judge: the two are far apart, and equally far from the truth.
    assert report.gradients.max_relative_error > 1e-3
    assert report.gradients.floor > 0
    assert [c.max_relative_error <= 1e-10 for c in report.structure] == [True, True]


@pytest.mark.parametrize(
    "reduction", ["path_mean", "sequence_mean", "token_mean", "trajectory_mean", "sum", 7.0]
)
def test_every_reduction_is_equal_with_weights_trajectories_and_small_rows(reduction):
    samples = [
        Sample(
            tokens,
            [(place + number) % 3 * 0.5 for place in range(len(tokens))],
            group=number % 2,
            trajectory=None if number == 6 else number % 3,
        )
        for number, tokens in enumerate(UNEVEN)
    ]
    report = verify(make_model("llama"), samples, reduction, max_tokens=12)
    assert report.loss_separate != 0
    # A group that does not fit is split, and what its parts share is computed in each.
    assert report.tree_tokens > 19


def test_the_loss_is_computed_by_hand_where_logits_are_uniform():
    model = make_model("llama")
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
    report = verify(model, [Sample([1, 2, 3], [0, 1, 2]), [1, 2, 4, 5]], "path_mean")
    assert report.loss_separate == pytest.approx(3 * float(torch.log(torch.tensor(64.0))))


def leave_out(rule):
    """Visibility that breaks one rule; T x T as the reference has it."""

    def broken(packed, *, window=None, chunk=None):
        right = original(packed, window=window, chunk=chunk)
        index = torch.arange(len(right))
        query, key = index[:, None], index[None, :]
        depth = packed.depth_positions[0]
        if rule == "siblings are visible":
            return key <= query
        if rule == "siblings are visible from depth 3 on":
            return right | ((key <= query) & (depth[:, None] >= 3) & (depth[None, :] >= 3))
        if rule == "the next token is visible":
            return right | ((key == query + 1) & (depth[None, :] == depth[:, None] + 1))
        if rule == "branches are cut off their prefix":
            return right & (query - key == depth[:, None] - depth[None, :])
        raise AssertionError(rule)

    original = reference.find_visibility
    return broken


@pytest.mark.parametrize(
    ("rule", "leak"),
    [
        ("siblings are visible", "path that it is not on"),
        ("siblings are visible from depth 3 on", "path that it is not on"),
        ("the next token is visible", "before it on its own path"),
        ("branches are cut off their prefix", None),
    ],
)
def test_broken_visibility_is_caught(monkeypatch, rule, leak):
    model = make_model("llama")
    prepare(model, "reference")
    monkeypatch.setattr(reference, "find_visibility", leave_out(rule))
    with pytest.raises(EquivalenceError, match="logprobs: error") as error:
        verify(model, UNEVEN)
    if leak is not None:
        assert error.match(leak)
    assert "worst token" in str(error.value)


def break_batches(monkeypatch, change):
    """Hand over batches that were changed."""
    original = StepWork.pack

    def broken(self, prepared, samples):
        rows = original(self, prepared, samples)
        return [dataclasses.replace(row, batch=change(row.batch)) for row in rows]

    monkeypatch.setattr(StepWork, "pack", broken)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_trees_larger_than_a_row_are_checked_in_partitions(family):
    report = verify(make_model(family), UNEVEN, max_tokens=4)
    assert report.equal
    assert report.partitions >= 5
    assert f"in {report.partitions} partitions" in str(report)
    assert verify(make_model(family), UNEVEN).partitions == 0


def test_trees_that_cannot_be_cut_are_said_to_be_split():
    model = make_model("llama")
    prepare(model, "mask")
    report = verify(model, UNEVEN, max_tokens=4)
    assert report.equal
    assert report.partitions == 0
    assert report.split_tokens > 0
    assert "split into rows and not cut into partitions" in str(report)


def test_gradients_lost_through_a_gateway_are_caught(monkeypatch):
    monkeypatch.setattr(LayerStore, "add", lambda self, *gradients: None)
    report = verify(make_model("llama"), UNEVEN, max_tokens=4, raise_on_difference=False)
    assert report.logprobs.passes
    assert not report.gradients.passes


def test_packed_positions_are_caught(monkeypatch):
    def change(batch):
        packed = batch.packed
        order = torch.arange(packed.num_tokens)[None]
        return dataclasses.replace(
            batch, packed=dataclasses.replace(packed, depth_positions=order, plans={})
        )

    break_batches(monkeypatch, change)
    report = verify(make_model("llama"), UNEVEN, raise_on_difference=False)
    assert not report.logprobs.passes
    assert not report.gradients.passes


def test_labels_shifted_in_packed_order_are_caught(monkeypatch):
    def change(batch):
        tokens = batch.tree.tokens
        targets = batch.targets
        shifted = tokens[(targets.predictors + 1) % len(tokens)]
        return dataclasses.replace(batch, targets=dataclasses.replace(targets, tokens=shifted))

    break_batches(monkeypatch, change)
    report = verify(make_model("llama"), UNEVEN, raise_on_difference=False)
    assert not report.loss.passes
    assert not report.gradients.passes


def test_path_counts_in_place_of_own_weights_are_caught(monkeypatch):
    def change(batch):
        targets = batch.targets
        ones = dataclasses.replace(targets, edge_weights=targets.edge_weights * 0 + 1)
        return dataclasses.replace(batch, targets=ones)

    samples = [Sample([1, 2, 3], [0, 0, 1]), Sample([1, 2, 3, 4], [0, 0, 0, 1])]
    break_batches(monkeypatch, change)
    report = verify(make_model("llama"), samples, raise_on_difference=False)
    assert not report.loss.passes


def test_gradients_lost_through_shared_keys_are_caught_though_logprobs_are_right(monkeypatch):
    original = reference.attend

    def broken(query, key, value, packed, **options):
        shared = torch.tensor(packed.tree.token_path_counts > 1)[:, None]
        key = torch.where(shared, key.detach(), key)
        return original(query, key, value, packed, **options)

    model = make_model("llama")
    prepare(model, "reference")
    monkeypatch.setattr(reference, "attend", broken)
    report = verify(model, UNEVEN, raise_on_difference=False)
    assert report.logprobs.passes
    assert not report.gradients.passes
    assert not report.step.passes
    assert not report.leaks


def test_a_broken_narrow_dtype_is_caught_by_its_float64_twin(monkeypatch):
    model = make_model("llama", torch.bfloat16)
    prepare(model, "reference")
    monkeypatch.setattr(
        reference, "find_visibility", leave_out("siblings are visible from depth 3 on")
    )
    # The twin is prepared anew, which would refuse it before it is compared.
    monkeypatch.setattr("treetrain.models.prepare.check_on_tree", lambda *arguments: None)
    report = verify(model, UNEVEN, raise_on_difference=False)
    assert [comparison.passes for comparison in report.structure] == [False, False]


def snapshot(model):
    return (
        [parameter.detach().clone() for parameter in model.parameters()],
        [parameter.grad for parameter in model.parameters()],
        [module.training for module in model.modules()],
        model.config._attn_implementation,
        torch.get_rng_state(),
    )


def assert_unchanged(model, before):
    weights, gradients, modes, implementation, random = before
    after = snapshot(model)
    assert all(torch.equal(old, new) for old, new in zip(weights, after[0], strict=True))
    assert all(old is new for old, new in zip(gradients, after[1], strict=True))
    assert modes == after[2]
    assert implementation == after[3]
    assert torch.equal(random, after[4])


@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_as_before(training):
    model = make_model("llama").train(training)
    model.model.layers[0].eval()
    model(input_ids=torch.tensor([[1, 2, 3]])).logits.sum().backward()
    before = snapshot(model)
    verify(model, UNEVEN)
    assert_unchanged(model, before)
    with pytest.raises(ValueError, match="must be prepared"):
        find_prepared(model)


@pytest.mark.parametrize("stage", ["separate", "tree", "leaks"])
def test_the_model_is_as_before_after_an_interruption(stage):
    def interrupt(current, done, total):
        if current == stage:
            raise KeyboardInterrupt

    model = make_model("llama")
    before = snapshot(model)
    with pytest.raises(KeyboardInterrupt):
        verify(model, UNEVEN, on_progress=interrupt)
    assert_unchanged(model, before)


def test_a_prepared_model_stays_prepared():
    model = make_model("llama")
    handle = prepare(model)
    verify(model, UNEVEN)
    assert find_prepared(model) is handle
    with pytest.raises(ValueError, match="backend must be None"):
        verify(model, UNEVEN, backend="reference")


def test_the_baseline_runs_the_untouched_model(monkeypatch):
    seen = set()
    model = make_model("llama")
    prepare(model)
    original = type(model).forward

    def watch(self, *args, **keywords):
        seen.add((self.config._attn_implementation, tuple(sorted(keywords))))
        return original(self, *args, **keywords)

    monkeypatch.setattr(type(model), "forward", watch)
    verify(model, UNEVEN)
    assert seen == {("sdpa", ("input_ids", "use_cache"))}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_gradients_are_checked_under_activation_checkpointing(dtype, reentrant):
    model = make_model("llama", dtype).train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert verify(model, UNEVEN).equal
    assert model.is_gradient_checkpointing


def test_frozen_parameters_are_left_out():
    model = make_model("llama")
    model.model.embed_tokens.requires_grad_(False)
    report = verify(model, UNEVEN)
    assert report.worst_parameter != "model.embed_tokens.weight"
    assert model.model.embed_tokens.weight.grad is None


def test_what_cannot_be_checked_is_refused_by_name():
    model = make_model("llama")
    with pytest.raises(ValueError, match="at least one sequence"):
        verify(model, [])
    with pytest.raises(ValueError, match="must train at least one token"):
        verify(model, [Sample([1, 2, 3], [1, 0, 0])])
    with pytest.raises(ValueError, match=r"samples\[1\] must have ids below .* 64, got 64 at"):
        verify(model, [[1, 2], [1, 64]])
    with pytest.raises(ValueError, match="tolerance must be given"):
        verify(make_model("llama", torch.bfloat16), [[1, 2]], truth=False)


def test_the_report_has_the_keys_of_the_command():
    report = verify(make_model("llama"), UNEVEN).to_dict()
    assert report["equal"] is True
    assert report["sequences"] == 7
    assert report["flat_tokens"] == 42
    assert report["tree_tokens"] == 19
    assert set(report["loss"]) == {"separate", "tree"}
    assert report["leaks"] == []
    assert report["logprob_max_abs_error"] > 0
    assert report["gradient_max_relative_error"] > 0
    assert report["step_max_abs_error"] > 0
    assert report["worst_token"].keys() >= {"sequence", "place", "token"}


def test_a_model_that_gives_no_numbers_is_not_equal_and_still_reports():
    model = make_model("llama")
    handle = prepare(model)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    report = verify(model, UNEVEN, raise_on_difference=False)
    assert handle.active
    assert not report.equal
    json.dumps(report.to_dict(), allow_nan=False)


def test_checks_without_a_place_are_not_called_ok():
    report = verify(make_model("llama"), [[1, 2, 3, 4, 5]])
    text = str(report)
    assert "sibling         not tested" in text
    assert "nothing is shared" in text
    assert "nothing is shared" not in str(verify(make_model("llama"), [[1, 2, 3], [1, 2, 4]]))


def test_a_module_that_is_no_model_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="model must be a transformers model, got Linear"):
        verify(torch.nn.Linear(1, 1), [[1, 2, 3]])
