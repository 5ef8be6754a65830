from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from tests.partitioning.peaks import measure_peak, measure_saved
from transformers import AutoConfig, AutoModelForCausalLM

from treetrain.errors import UnsupportedModelError
from treetrain.losses.sft import sft_loss
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.partitioning.memory import measure_memory
from treetrain.testing.models import make_tiny_model

DTYPES = (torch.float32, torch.bfloat16)
FAMILIES = ("llama", "gemma2", "mistral", "gpt2", "qwen3_moe")
WIDE = {"hidden_size": 64, "intermediate_size": 160, "max_position_embeddings": 2048}


def make_model(family, dtype=torch.float32, **overrides):
    if family == "gpt2":
        overrides = {"n_embd": 64, "n_positions": 2048} | overrides
    elif family in ("gemma2", "mistral"):
        overrides = WIDE | {"sliding_window": 2048} | overrides
    else:
        overrides = WIDE | overrides
    model = make_tiny_model(family, dtype=dtype, **overrides)
    prepare(model)
    return model


def make_batch(tokens):
    rng = np.random.default_rng(tokens)
    prefix = rng.integers(3, 60, tokens // 2).tolist()
    rest = (tokens - tokens // 2) // 3
    return pack([[*prefix, 4 + place, *rng.integers(3, 60, rest - 1)] for place in range(3)])


def bytes_at(line, batch):
    return float(line.at(np.array(batch.num_tokens)))


@pytest.fixture(scope="module", params=[(f, d) for f in FAMILIES for d in DTYPES], ids=str)
def measured(request):
    """A model and its memory, measured at 512 and 1024 tokens."""
    model = make_model(*request.param)
    return model, measure_memory(model, optimizer="none")


def test_activations_at_another_size_are_those_of_a_real_run(measured):
    model, memory = measured
    batch = make_batch(700)
    handle = prepare(model)
    saved = measure_saved(model, lambda: handle.hidden_states(batch.packed))
    assert bytes_at(memory.activations, batch) == pytest.approx(saved, rel=0.03)


def test_peak_at_another_size_is_that_of_a_real_step(measured):
    model, memory = measured
    batch = make_batch(700)
    sft_loss(model, batch, "token_mean").backward()
    model.zero_grad(set_to_none=True)
    peak = measure_peak(lambda: sft_loss(model, batch, "token_mean").backward())
    tokens = np.array(batch.num_tokens)
    expected = max(memory.body_peak(tokens, first=True), memory.head_peak(tokens))
    # Capped scores are matrix products, whose scores hang on the shape of the tree.
    capped = model.config.model_type == "gemma2"
    assert expected == pytest.approx(peak, rel=0.15 if capped else 0.05)


def test_a_config_is_as_good_as_its_model(measured):
    model, memory = measured
    found = measure_memory(copy.deepcopy(model.config), model.dtype, optimizer="none")
    # A model that is converted as a whole has rotary frequencies of its dtype, 4 bytes each if not.
    assert found.weights == pytest.approx(memory.weights, abs=100)
    assert dataclasses.replace(found, weights=memory.weights) == memory


def test_weights_are_never_there():
    config = AutoConfig.for_model(
        "llama", hidden_size=8192, intermediate_size=28672, num_hidden_layers=1
    )
    peak = measure_peak(lambda: measure_memory(config, torch.bfloat16))
    memory = measure_memory(config, torch.bfloat16)
    assert memory.weights > 2**30
    assert peak < 2**27


def test_the_model_is_left_as_it_is():
    model = make_model("llama")
    handle, batch = prepare(model), make_batch(40)
    before = handle.hidden_states(batch.packed)
    modes = [module.training for module in model.modules()]
    measure_memory(model)
    assert torch.equal(handle.hidden_states(batch.packed), before)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())


def test_what_is_frozen_has_no_gradient_and_no_state():
    model = make_model("llama")
    whole = measure_memory(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("q_proj" in name)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    frozen = measure_memory(model)
    assert frozen.weights == whole.weights
    assert frozen.gradients == sum(parameter.nbytes for parameter in trainable)
    # Two moments, and the number of steps.
    assert frozen.optimizer == 2 * frozen.gradients + 4 * len(trainable)
    assert frozen.activations.per_token < whole.activations.per_token
    assert frozen.shape == whole.shape


def test_adapters_alone_are_trained():
    peft = pytest.importorskip("peft")
    model = make_tiny_model("llama", **WIDE)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    prepare(wrapped)
    memory = measure_memory(wrapped)
    trainable = [value for value in wrapped.parameters() if value.requires_grad]
    assert memory.gradients == sum(value.nbytes for value in trainable) < memory.weights / 10
    batch = make_batch(300)
    saved = measure_saved(wrapped, lambda: prepare(wrapped).hidden_states(batch.packed))
    assert bytes_at(memory.activations, batch) == pytest.approx(saved, rel=0.03)


def test_checkpointing_keeps_less_and_is_told_from_the_model():
    config = copy.deepcopy(make_tiny_model("llama", **WIDE).config)
    plain = measure_memory(config, torch.float32)
    again = measure_memory(config, torch.float32, gradient_checkpointing=True)
    assert again.checkpointing
    assert not plain.checkpointing
    assert again.activations.per_token < plain.activations.per_token / 5
    model = AutoModelForCausalLM.from_config(config)
    model.gradient_checkpointing_enable()
    prepare(model.train())
    assert measure_memory(model) == again


def test_tied_embeddings_count_once():
    config = make_model("llama").config
    tied = copy.deepcopy(config)
    tied.tie_word_embeddings = True
    one, two = (measure_memory(one, torch.float32) for one in (tied, config))
    matrix = 4 * config.vocab_size * config.hidden_size
    assert two.weights - one.weights == two.gradients - one.gradients == matrix


def test_another_device_has_taller_chunks_and_updates_all_parameters_together():
    config = make_model("llama").config
    host, other = (measure_memory(config, torch.float32, device=name) for name in ("cpu", "cuda:0"))
    assert host.on_host
    assert not other.on_host
    assert other.head.rows == 8 * host.head.rows
    assert other.optimizer_working == other.gradients > host.optimizer_working
    assert other.activations.per_token == pytest.approx(host.activations.per_token, rel=0.01)


def test_keys_and_values_are_those_of_the_layers():
    memory = measure_memory(make_model("llama", torch.bfloat16))
    # 4 layers of 2 heads of 8, keys and values, and their gradients in float32.
    assert memory.key_values == 4 * 2 * 8 * 2 * 2
    assert memory.accumulators == 2 * memory.key_values


def test_more_tokens_take_more():
    memory = measure_memory(make_model("llama"))
    tokens = np.arange(0, 100_000, 37)
    for peak in (
        memory.head_peak(tokens),
        memory.body_peak(tokens, first=True),
        memory.body_peak(tokens, first=False),
        memory.forward.at(tokens),
    ):
        assert (np.diff(peak) >= 0).all()
    assert (memory.body_peak(tokens, first=False) >= memory.body_peak(tokens, first=True)).all()


def test_of_experts_as_many_count_as_a_token_is_sent_to():
    model = make_model("qwen3_moe")
    experts = sum(p.numel() for p in model.parameters() if p.ndim == 3)
    outside = 2 * model.config.vocab_size * model.config.hidden_size
    active = model.num_parameters() - outside - experts * 4 // 6
    assert measure_memory(model).shape.parameters == active


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": torch.float32}, "dtype and gradient_checkpointing must be left out"),
        ({"gradient_checkpointing": True}, "must be left out for a model"),
        ({"optimizer": "sgd"}, "optimizer must be 'adamw' or 'none', got 'sgd'"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        measure_memory(make_model("llama"), **arguments)


def test_a_config_wants_a_dtype_and_a_model_to_be_prepared():
    with pytest.raises(ValueError, match="dtype must be given for a config"):
        measure_memory(make_model("llama").config)
    with pytest.raises(ValueError, match="must be prepared"):
        measure_memory(make_tiny_model("llama"))
    with pytest.raises(TypeError, match="source must be a prepared model or a config"):
        measure_memory("llama")


def test_a_model_that_takes_trees_as_one_dense_mask_is_refused():
    with pytest.raises(UnsupportedModelError, match="one dense mask"):
        measure_memory(make_tiny_model("bloom").config, torch.float32)
