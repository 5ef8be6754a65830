from __future__ import annotations

import functools

import pytest
import torch
from tests.partitioning.deep_trees import (
    distance,
    draw_deep_samples,
    take,
    worst,
)
from tests.partitioning.peaks import measure_peak

from treetrain.data.sample import Sample
from treetrain.errors import UnsupportedModelError
from treetrain.losses.policy import policy_loss, policy_terms
from treetrain.losses.router_loss import RouterLoss
from treetrain.losses.sft import compute_whole, sft_loss, sft_terms
from treetrain.losses.window import measure_window
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.packing.gateway import LayerStore
from treetrain.packing.parts import cut_batch
from treetrain.partitioning.memory import measure_memory
from treetrain.partitioning.passes import Passes
from treetrain.partitioning.planning import plan_partitions
from treetrain.partitioning.step import partitioned_step
from treetrain.testing.cuts import cut_into, depth_of_cuts
from treetrain.testing.models import make_tiny_model
from treetrain.tree.partition import partition_tree
from treetrain.verification.baseline import compute_separately, loss_coefficients
from treetrain.verification.widened import widen

SAMPLES = draw_deep_samples()
COUNTS = (1, 2, 3, 7, 20)
MODES = ("keep", "recompute", "offload")
#: float64's step of the ladder.
ALLOWED = 1e-10


@functools.cache
def make(family):
    tied = family == "tied llama"
    model = make_tiny_model(
        family.removeprefix("tied "), dtype=torch.float64, tie_word_embeddings=tied
    )
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model


@functools.cache
def alone(family, reduction="path_mean"):
    """Loss and gradients of each sequence alone through the untouched model."""
    model = make(family)
    assert not model.config._attn_implementation.startswith("treetrain")
    with widen(model):
        outcome = compute_separately(model, SAMPLES, loss_coefficients(SAMPLES, reduction))
    return outcome.loss, take(model)


@pytest.fixture
def prepared():
    handles = []

    def run(family):
        handles.append(prepare(make(family)))
        return handles[-1]

    yield run
    for handle in handles:
        handle.undo()


@pytest.mark.parametrize(
    "family",
    # Windows of 4, sinks, capped scores, experts, latent attention, positions that are learned.
    ["llama", "tied llama", "qwen3_moe", "mistral", "gemma2", "gpt_oss", "deepseek_v3", "gpt2"],
)
def test_any_number_of_partitions_equals_each_sequence_alone(family, prepared):
    expected_loss, expected = alone(family)
    model, batch = prepared(family).model, pack(SAMPLES)
    terms = sft_terms(batch, "path_mean", router=RouterLoss("batch"))
    for count in COUNTS if family == "llama" else (3, 20):
        partitions = cut_into(batch.tree, count)
        assert count < 20 or depth_of_cuts(partitions) >= 4
        for mode in MODES if count == 7 else MODES[:2]:
            with widen(model):
                step = partitioned_step(model, batch, partitions, terms, modes=mode)
            assert abs(float(step.loss) - expected_loss) <= ALLOWED * abs(expected_loss)
            assert worst(take(model), expected) <= ALLOWED, (count, mode)


@pytest.mark.parametrize(
    "reduction", ["path_mean", "sequence_mean", "token_mean", "trajectory_mean", "sum", 17.5]
)
def test_every_reduction_equals_each_sequence_alone(reduction, prepared):
    expected_loss, expected = alone("llama", reduction)
    model, batch = prepared("llama").model, pack(SAMPLES)
    with widen(model):
        step = partitioned_step(model, batch, cut_into(batch.tree, 7), sft_terms(batch, reduction))
    assert abs(float(step.loss) - expected_loss) <= ALLOWED * abs(expected_loss)
    assert worst(take(model), expected) <= ALLOWED


@pytest.mark.parametrize("reduction", ["sequence_mean", "token_mean", "trajectory_mean"])
def test_batches_of_a_window_add_up_to_each_sequence_alone(reduction, prepared):
    expected_loss, expected = alone("llama", reduction)
    model = prepared("llama").model
    batches = [pack(SAMPLES[:9]), pack(SAMPLES[9:])]
    window = measure_window(batches)
    total = 0.0
    for batch, count in zip(batches, (7, 3), strict=True):
        terms = sft_terms(batch, reduction, window=window)
        with widen(model):
            total += float(partitioned_step(model, batch, cut_into(batch.tree, count), terms).loss)
    assert abs(total - expected_loss) <= ALLOWED * abs(expected_loss)
    assert worst(take(model), expected) <= ALLOWED


OLD = [[-3.0 + 0.1 * (place % 5) for place in range(max(len(s) - 1, 0))] for s in SAMPLES]
RATIO = {"clip_low": 0.2, "clip_high": 0.3, "old_logprobs": OLD}
KL = {"reference_logprobs": OLD, "kl_coefficient": 0.1}


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "plain"},
        {"objective": "plain", "entropy_coefficient": 0.2},
        {"objective": "ppo", **RATIO},
        {"objective": "ppo", **(RATIO | {"old_logprobs": "current"})},
        {"objective": "grpo", **RATIO, **KL, "entropy_coefficient": 0.1},
    ],
)
@pytest.mark.parametrize("mode", MODES[:2])
def test_policies_equal_the_undivided_tree(settings, mode, prepared):
    model, batch = prepared("llama").model, pack(SAMPLES)
    with widen(model):
        whole = policy_loss(model, batch, "token_mean", temperature=0.7, **settings)
        whole.loss.backward()
        expected = take(model)
        terms = policy_terms(batch, "token_mean", temperature=0.7, **settings)
        step = partitioned_step(model, batch, cut_into(batch.tree, 7), terms, modes=mode)
    assert abs(float(step.loss) - float(whole.loss.detach())) <= ALLOWED * abs(
        float(whole.loss.detach())
    )
    assert worst(take(model), expected) <= ALLOWED
    assert step.targets == whole.targets
    assert step.statistics.keys() == whole.statistics.keys()
    for name, value in whole.statistics.items():
        torch.testing.assert_close(step.statistics[name], value, rtol=ALLOWED, atol=ALLOWED)


@pytest.mark.parametrize("form", ["batch", "micro_batch", "sequence", "deepseek_v3"])
@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_losses_of_routers_equal_the_undivided_tree(family, form, prepared):
    model, batch = prepared(family).model, pack(SAMPLES)
    router = RouterLoss(form, load_balancing=0.3, z=0.05)
    with widen(model):
        loss = sft_loss(model, batch, "path_mean", router=router)
        loss.backward()
        expected = take(model)
        for mode in MODES[:2]:
            terms = sft_terms(batch, "path_mean", router=router)
            step = partitioned_step(model, batch, cut_into(batch.tree, 7), terms, modes=mode)
            assert float((step.loss - loss).abs()) <= ALLOWED * float(loss.abs())
            assert worst(take(model), expected) <= ALLOWED, mode
            assert step.statistics["load_balancing"] > 0
            assert step.statistics["router_z"] > 0


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_checkpointing_inside_partitions_changes_nothing(mode, reentrant, prepared):
    _, expected = alone("llama")
    model, batch = prepared("llama").model, pack(SAMPLES)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.train()
    try:
        step = partitioned_step(
            model, batch, cut_into(batch.tree, 7), sft_terms(batch, "path_mean"), modes=mode
        )
    finally:
        model.eval()
        model.gradient_checkpointing_disable()
    assert float(step.loss) != 0
    # transformers computes norms in float32, and float64 throughout is not to be had here.
    assert worst(take(model), expected) <= 1e-5


def test_lora_and_frozen_layers_equal_the_undivided_tree():
    peft = pytest.importorskip("peft")
    for chosen in (["q_proj", "v_proj"], ["down_proj"]):
        config = peft.LoraConfig(
            target_modules=chosen, layers_to_transform=[1, 3], init_lora_weights=False
        )
        model = peft.get_peft_model(make_tiny_model("llama", dtype=torch.float64), config)
        handle = prepare(model)
        batch = pack(SAMPLES)
        with widen(handle.model):
            sft_loss(model, batch, "path_mean").backward()
            expected = take(model)
            terms = sft_terms(batch, "path_mean")
            for mode in MODES:
                partitioned_step(model, batch, cut_into(batch.tree, 7), terms, modes=mode)
                assert worst(take(model), expected) <= ALLOWED, (chosen, mode)


def test_a_trained_head_alone_needs_no_way_back(prepared):
    model, batch = prepared("llama").model, pack(SAMPLES)
    _, expected = alone("llama")
    try:
        model.requires_grad_(False)
        model.get_output_embeddings().weight.requires_grad_(True)
        with widen(model):
            partitioned_step(model, batch, cut_into(batch.tree, 7), sft_terms(batch, "path_mean"))
        name = "lm_head.weight"
        assert worst({name: take(model)[name]}, {name: expected[name]}) <= ALLOWED
    finally:
        model.requires_grad_(True)


@pytest.mark.parametrize("siblings", [32, 256])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_many_siblings_in_bfloat16_are_no_worse_than_separate_sequences(siblings, weights):
    generator = torch.Generator().manual_seed(0)

    def draw(count):
        return torch.randint(3, 60, (count,), generator=generator).tolist()

    prompt = draw(12)
    samples = [Sample(prompt + draw(3)) for _ in range(siblings)]
    coefficients = loss_coefficients(samples, "path_mean")
    model = make_tiny_model("llama", dtype=weights)
    exact = make_tiny_model("llama", dtype=weights).double()
    compute_separately(exact, samples, coefficients)
    truth = take(exact)
    with torch.autocast("cpu", torch.bfloat16, enabled=weights == torch.float32):
        compute_separately(model, samples, coefficients)
    separate = distance(take(model), truth)
    handle = prepare(model)
    batch = pack(samples)
    partitions = partition_tree(batch.tree, 12)
    assert partitions.num_partitions > siblings / 6
    for mode in MODES[:2]:
        with torch.autocast("cpu", torch.bfloat16, enabled=weights == torch.float32):
            partitioned_step(model, batch, partitions, sft_terms(batch, "path_mean"), modes=mode)
        assert distance(take(model), truth) <= 1.1 * separate, mode
    handle.undo()


def test_each_token_is_computed_once_unless_the_plan_says_so(prepared):
    model, batch = prepared("llama").model, pack([s.tokens for s in SAMPLES if len(s)])
    partitions = cut_into(batch.tree, 7)
    inner = sorted({parent for parent in partitions.parents.tolist() if parent >= 0})
    terms = sft_terms(batch, "path_mean")
    kept = partitioned_step(model, batch, partitions, terms)
    again = partitioned_step(model, batch, partitions, terms, modes="recompute")
    assert kept.computed_tokens == batch.num_tokens
    assert again.computed_tokens == batch.num_tokens + int(partitions.sizes[inner].sum())
    one = ["recompute" if part == inner[0] else "keep" for part in range(len(partitions.parents))]
    mixed = partitioned_step(model, batch, partitions, terms, modes=one)
    assert mixed.computed_tokens == batch.num_tokens + int(partitions.sizes[inner[0]])
    take(model)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_first_passes_of_chained_parts_run_as_one_unless_tokens_choose_experts(family):
    model = make_tiny_model(family, dtype=torch.float64, num_hidden_layers=8)
    if family == "gpt_oss":
        model.set_experts_implementation("eager")
    batch = pack(SAMPLES)
    partitions = cut_into(batch.tree, 20)
    terms = sft_terms(batch, "path_mean")
    forwards = []
    model.model.register_forward_hook(lambda *_: forwards.append(torch.is_grad_enabled()))
    handle = prepare(model)
    forwards.clear()
    kept = partitioned_step(model, batch, partitions, terms)
    expected, parts = take(model), len(forwards)
    forwards.clear()
    again = partitioned_step(model, batch, partitions, terms, modes="recompute")
    inner = {parent for parent in partitions.parents.tolist() if parent >= 0}
    first = forwards.count(False)
    assert forwards.count(True) == parts
    assert first == len(inner) if family == "gpt_oss" else first <= len(inner) / 2
    assert abs(float(again.loss - kept.loss)) <= ALLOWED * abs(float(kept.loss))
    assert worst(take(model), expected) <= ALLOWED
    handle.undo()


def test_first_passes_stay_apart_where_the_model_checkpoints_and_hold_what_a_plan_says():
    values = {"hidden_size": 32, "intermediate_size": 512, "num_key_value_heads": 1}
    model = make_tiny_model(
        "llama", num_hidden_layers=16, max_position_embeddings=4096, **values
    ).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    batch = pack([[3 + place % 50 for place in range(2304)]])
    handle = prepare(model)
    memory = measure_memory(model, optimizer="none")
    plan = plan_partitions(batch.tree, memory, capacity=256, mode="recompute")
    terms = sft_terms(batch, "token_mean")
    partitioned_step(model, batch, plan, terms)
    model.zero_grad(set_to_none=True)
    highest = measure_peak(lambda: partitioned_step(model, batch, plan, terms))
    assert highest + memory.weights <= 1.05 * plan.estimate.peak_bytes
    handle.undo()


def test_targets_across_cuts_are_trained_once():
    batch = pack(SAMPLES)
    for count in COUNTS:
        parts = cut_batch(batch, cut_into(batch.tree, count))
        places = [place for part in parts for place in part.part.places.tolist()]
        assert sorted(places) == list(range(len(batch.targets)))


def test_parts_that_train_nothing_do_not_run(prepared):
    model = prepared("llama").model
    trained, untrained = [5, 6, 7, 8, 9, 10], [5, 6, 11, 12, 13, 14]
    batch = pack([Sample(trained), Sample(untrained, [0] * 6)])
    partitions = partition_tree(batch.tree, 4)
    step = partitioned_step(model, batch, partitions, sft_terms(batch, "sum"))
    found = take(model)
    sft_loss(model, batch, "sum").backward()
    assert worst(found, take(model)) <= 1e-6
    assert step.computed_tokens < batch.num_tokens
    nothing = pack([Sample(untrained, [0] * 6)])
    step = partitioned_step(
        model, nothing, partition_tree(nothing.tree, 4), sft_terms(nothing, "sum")
    )
    assert (float(step.loss), step.targets, step.computed_tokens) == (0.0, 0, 0)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_from_before_are_added_to(prepared):
    model, batch = prepared("llama").model, pack(SAMPLES)
    terms = sft_terms(batch, "path_mean")
    partitioned_step(model, batch, cut_into(batch.tree, 7), terms)
    once = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    homes = {name: parameter.grad for name, parameter in model.named_parameters()}
    partitioned_step(model, batch, cut_into(batch.tree, 3), terms, loss_scale=2.0)
    for name, parameter in model.named_parameters():
        assert parameter.grad is homes[name]
    assert worst(take(model), {name: 3 * value for name, value in once.items()}) <= 1e-6


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("with_earlier", [False, True])
@pytest.mark.parametrize("call", [1, 9, 21])
def test_a_step_that_ends_early_adds_no_gradients(error, with_earlier, call, prepared, monkeypatch):
    model, batch = prepared("llama").model, pack(SAMPLES)
    terms, partitions = sft_terms(batch, "path_mean"), cut_into(batch.tree, 7)
    if with_earlier:
        partitioned_step(model, batch, partitions, terms)
    before = {
        name: p.grad.clone() if with_earlier else None for name, p in model.named_parameters()
    }
    calls = 0

    def strike():
        nonlocal calls
        calls += 1
        if calls == call:
            raise error

    def strike_before(function):
        def struck(*args):
            strike()
            return function(*args)

        return struck

    # Struck before a forward pass, or in the backward pass of some partition.
    monkeypatch.setattr(Passes, "_forward", strike_before(Passes._forward))
    monkeypatch.setattr(LayerStore, "add", strike_before(LayerStore.add))
    with pytest.raises(error):
        partitioned_step(model, batch, partitions, terms)
    for name, parameter in model.named_parameters():
        if with_earlier:
            assert torch.equal(parameter.grad, before[name])
        else:
            assert parameter.grad is None
    take(model)


def test_a_thousand_partitions_in_a_row_run(prepared):
    model = prepared("llama").model
    batch = pack([[3 + place % 50 for place in range(300)]])
    partitions = partition_tree(batch.tree, 1)
    assert partitions.num_partitions == 300
    step = partitioned_step(
        model, batch, partitions, sft_terms(batch, "token_mean"), modes="recompute"
    )
    found = take(model)
    loss = sft_loss(model, batch, "token_mean")
    loss.backward()
    assert float((step.loss - loss).abs()) <= 1e-9
    assert worst(found, take(model)) <= 1e-5


def test_wrong_arguments_are_refused_by_name(prepared):
    model, batch = prepared("llama").model, pack(SAMPLES)
    partitions, terms = cut_into(batch.tree, 3), sft_terms(batch, "sum")
    other = pack([[1, 2, 3], [1, 2, 4]])
    with pytest.raises(ValueError, match="terms must be made of the batch itself"):
        partitioned_step(model, other, partition_tree(other.tree, 2), terms)
    with pytest.raises(ValueError, match="partitions must divide the batch's tree"):
        partitioned_step(model, batch, partition_tree(other.tree, 2), terms)
    with pytest.raises(ValueError, match="gradients must be enabled"), torch.no_grad():
        partitioned_step(model, batch, partitions, terms)
    with pytest.raises(ValueError, match=r"modes\[0\] must be one of"):
        partitioned_step(model, batch, partitions, terms, modes="forget")
    with pytest.raises(ValueError, match="modes must have one entry per partition"):
        partitioned_step(model, batch, partitions, terms, modes=["keep"])
    with pytest.raises(TypeError, match="modes must be"):
        partitioned_step(model, batch, partitions, terms, modes=5)
    for scale in (0.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="loss_scale must be finite"):
            partitioned_step(model, batch, partitions, terms, loss_scale=scale)
    with pytest.raises(TypeError, match="plan must be"):
        partitioned_step(model, batch, 512, terms)
    with pytest.raises(TypeError, match="terms must be"):
        partitioned_step(model, batch, partitions, torch.zeros(()))


def test_hooks_on_gradients_are_refused(prepared):
    model, batch = prepared("llama").model, pack(SAMPLES)
    weight = model.model.layers[0].mlp.up_proj.weight
    for register in (weight.register_hook, weight.register_post_accumulate_grad_hook):
        handle = register(lambda value: None)
        with pytest.raises(UnsupportedModelError, match=r"up_proj\.weight has a hook"):
            partitioned_step(model, batch, cut_into(batch.tree, 3), sft_terms(batch, "sum"))
        handle.remove()


def test_terms_forget_the_routers_of_another_model():
    batch = pack(SAMPLES)
    for form in ("batch", "sequence", "deepseek_v3"):
        router = RouterLoss(form, load_balancing=1.0)
        terms = sft_terms(batch, "sum", router=router)
        for layers in (4, 2):
            model = make_tiny_model("qwen3_moe", num_hidden_layers=layers, seed=layers)
            prepare(model)
            step = partitioned_step(model, batch, cut_into(batch.tree, 3), terms)
            loss = float(sft_loss(model, batch, "sum", router=router).detach())
            assert float(step.loss) == pytest.approx(loss, rel=1e-5)
            whole = float(compute_whole(model, terms).loss.detach())
            assert whole == pytest.approx(loss, rel=1e-6)


def test_offloading_leaves_quantised_weights_where_they_are():
    peft = pytest.importorskip("peft")
    quantization = pytest.importorskip("torchao.quantization")
    model = make_tiny_model("llama")
    quantization.quantize_(model.model, quantization.Int8WeightOnlyConfig())
    model.requires_grad_(False)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(model, config)
    prepare(model)
    batch = pack(SAMPLES)
    terms, partitions = sft_terms(batch, "path_mean"), cut_into(batch.tree, 7)
    partitioned_step(model, batch, partitions, terms)
    kept = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    model.zero_grad()
    partitioned_step(model, batch, partitions, terms, modes="offload")
    assert worst({name: p.grad for name, p in model.named_parameters() if name in kept}, kept) == 0


def test_a_model_on_a_dense_mask_is_refused():
    model = make_tiny_model("llama")
    prepare(model, "mask")
    batch = pack(SAMPLES)
    with pytest.raises(UnsupportedModelError, match="dense mask"):
        partitioned_step(model, batch, cut_into(batch.tree, 3), sft_terms(batch, "sum"))
