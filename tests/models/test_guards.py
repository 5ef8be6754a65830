from __future__ import annotations

import functools
import inspect
from types import MethodType
from typing import Any

import pytest
import torch
from tests.models.baseline import check_equal, gradients, logits_alone, logits_on_tree
from torch import nn
from transformers import (
    DynamicCache,
    LlamaForCausalLM,
    LlamaModel,
    PreTrainedModel,
)

from treetrain.errors import UnsupportedModelError
from treetrain.losses.sft import sft_loss
from treetrain.models.hooks import TreeCall
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.packing.packed_tree import pack_tree
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import worked_example
from treetrain.tree.build import build_prefix_tree


def double(module: nn.Module, inputs: Any, output: Any) -> Any:
    output.logits = output.logits * 2 if module.training else output.logits
    return output


def shift(module: nn.Module, inputs: Any) -> None:
    del module, inputs


@pytest.mark.parametrize("name", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_hook_that_a_tree_call_would_go_around_is_refused_before_and_after(name: str) -> None:
    model = make_tiny_model("llama")
    hook = double if name == "register_forward_hook" else shift
    handle = getattr(model, name)(hook)
    with pytest.raises(UnsupportedModelError, match=f"forward hook .{hook.__name__}.*remove it"):
        prepare(model)
    handle.remove()
    prepared = prepare(model)
    getattr(model, name)(hook)
    with pytest.raises(UnsupportedModelError, match="forward hook"):
        prepared.hidden_states(pack_tree(build_prefix_tree(worked_example())))


def test_a_forward_put_in_place_of_the_class_s_own_is_refused_before_and_after() -> None:
    model = make_tiny_model("llama")
    forward = model.forward

    @functools.wraps(forward)
    def in_bfloat16(self: nn.Module, *args: Any, **keywords: Any) -> Any:
        del self
        with torch.autocast("cpu", torch.bfloat16):
            return forward(*args, **keywords)

    model.forward = MethodType(in_bfloat16, model)
    with pytest.raises(UnsupportedModelError, match=r"LlamaForCausalLM has a forward of its own"):
        prepare(model)
    model.forward = forward  # as wrappers leave it that were taken off
    prepare(model)
    model.forward = MethodType(inspect.unwrap(forward), model)  # or so
    prepared = prepare(model)
    model.forward = MethodType(in_bfloat16, model)
    with pytest.raises(UnsupportedModelError, match=r"del model.forward"):
        prepared.hidden_states(pack_tree(build_prefix_tree(worked_example())))


def test_a_compiled_forward_is_no_other_forward() -> None:
    model = make_tiny_model("llama")
    model.forward = torch.compile(model.forward, backend="eager")
    prepare(model)


def test_a_forward_overridden_in_a_subclass_is_named() -> None:
    class Folded(LlamaForCausalLM):
        def forward(self, *args: Any, **keywords: Any) -> Any:
            output = super().forward(*args, **keywords)
            output.logits = output.logits.abs()
            return output

    model = Folded(make_tiny_model("llama").config)
    with pytest.raises(UnsupportedModelError, match=r"what .*Folded\.forward does after"):
        prepare(model)


def test_a_factor_in_a_subclass_s_forward_is_measured_and_trained() -> None:
    class Doubled(LlamaForCausalLM):
        def forward(self, *args: Any, **keywords: Any) -> Any:
            output = super().forward(*args, **keywords)
            output.logits = output.logits * 2
            return output

    model = Doubled(make_tiny_model("llama").config)
    sequences = worked_example()
    alone = logits_alone(model, sequences)
    expected = gradients(model, alone)
    ours = logits_on_tree(prepare(model), sequences)
    check_equal(ours, alone, gradients(model, ours), expected)


@pytest.mark.parametrize("before", [True, False])
def test_hooks_of_the_output_layer_run_on_trees(before: bool) -> None:
    model = make_tiny_model("llama")
    layer = model.get_output_embeddings()
    if before:
        layer.register_forward_pre_hook(lambda module, inputs: (inputs[0].clamp(-1, 1),))
    else:
        layer.register_forward_hook(lambda module, inputs, output: output.tanh())
    sequences = worked_example()
    alone = logits_alone(model, sequences)
    tree = logits_on_tree(prepare(model), sequences)
    for one, other in zip(tree, alone, strict=True):
        torch.testing.assert_close(one, other)


def test_a_hook_of_the_output_layer_with_a_parameter_of_its_own_is_refused() -> None:
    model = make_tiny_model("llama")
    bias = torch.zeros(64, requires_grad=True)
    model.get_output_embeddings().register_forward_hook(
        lambda module, inputs, output: output + bias
    )
    with pytest.raises(UnsupportedModelError, match=r"shape \[64\] .*would get no gradient"):
        prepare(model)


def test_a_decoder_is_found_where_transformers_says_another_name() -> None:
    model = make_tiny_model("llama4_text", num_local_experts=2)
    assert prepare(model).decoder is model.model


def test_a_decoder_alone_is_sent_to_the_loader_of_language_models() -> None:
    with pytest.raises(UnsupportedModelError, match="AutoModelForCausalLM"):
        prepare(LlamaModel(make_tiny_model("llama").config))


def make_sharing_model(*, shared: int, reentrant: bool | None) -> PreTrainedModel:
    model = make_tiny_model(
        "gemma3n_text",
        num_kv_shared_layers=shared,
        laurel_rank=4,
        altup_num_inputs=2,
        hidden_size_per_layer_input=8,
        layer_types=["sliding_attention", "full_attention"] * 2,
        activation_sparsity_pattern=[0.0] * 4,
    )
    if reentrant is not None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    return model.train()


@pytest.mark.parametrize(("shared", "reentrant"), [(0, True), (2, False), (2, None)])
def test_shared_keys_keep_their_gradients_under_checkpointing(
    shared: int, reentrant: bool | None
) -> None:
    sequence = [5, 6, 7, 8, 9, 10]
    plain = make_sharing_model(shared=shared, reentrant=None)
    tokens = torch.tensor([sequence])
    plain(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    model = make_sharing_model(shared=shared, reentrant=reentrant)
    prepare(model)
    sft_loss(model, pack([sequence]), "token_mean").backward()
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, msg=name)


def test_shared_keys_under_reentrant_checkpointing_are_refused_in_training_only() -> None:
    model = make_sharing_model(shared=2, reentrant=True)
    prepared = prepare(model)
    packed = pack_tree(build_prefix_tree([[5, 6, 7], [5, 8]]))
    with pytest.raises(UnsupportedModelError, match="'use_reentrant': False"):
        prepared.hidden_states(packed)
    with torch.no_grad():
        prepared.hidden_states(packed)
    model.eval()
    prepared.hidden_states(packed)


def test_layers_left_out_at_random_are_named() -> None:
    model = make_tiny_model("opt", layerdrop=0.5).train()
    prepared = prepare(model)
    packed = pack_tree(build_prefix_tree(worked_example()))
    with pytest.raises(UnsupportedModelError, match=r"layerdrop is 0\.5.*layerdrop = 0"):
        prepared.hidden_states(packed)
    model.eval()
    prepared.hidden_states(packed)
    model.train()
    model.model.decoder.layerdrop = 0.0
    prepared.hidden_states(packed)


@pytest.mark.parametrize("model_type", ["deepseek_v32", "glm_moe_dsa"])
def test_choosing_tokens_by_score_is_refused(model_type: str) -> None:
    with pytest.raises(UnsupportedModelError, match="indexer picks the highest-scored tokens"):
        prepare(make_tiny_model(model_type))


@pytest.mark.parametrize(
    "with_it",
    [
        {"labels": torch.tensor([[5, 6, 7]])},
        {"attention_mask": torch.ones(1, 3, dtype=torch.int64)},
        {"past_key_values": DynamicCache()},
    ],
)
def test_a_tree_in_a_call_of_the_whole_model_is_refused(with_it: dict[str, Any]) -> None:
    """Labels would be shifted in packed order, without a word."""
    model = make_tiny_model("llama")
    prepared = prepare(model)
    call = TreeCall(pack([[5, 6, 7]]).packed, prepared.layers)
    with pytest.raises(UnsupportedModelError, match=next(iter(with_it))):
        model(input_ids=torch.tensor([[5, 6, 7]]), prefix_tree=call, **with_it)
    model(input_ids=torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]]))
    prepared.undo()
    assert not model._forward_pre_hooks
    assert not model._forward_pre_hooks_with_kwargs


def test_a_bias_of_scores_by_position_is_refused() -> None:
    model = make_tiny_model("llama")
    attention = model.model.layers[0].self_attn
    original = type(attention).forward

    def forward(self: Any, *args: Any, **keywords: Any) -> Any:
        return original(self, *args, position_bias=torch.zeros(1), **keywords)

    attention.forward = MethodType(forward, attention)
    with pytest.raises(UnsupportedModelError, match="position_bias"):
        prepare(model)


def test_a_mask_that_reads_both_ways_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="mask functions did not build"):
        prepare(make_tiny_model("bert", is_decoder=False))


def test_a_mask_that_looks_up_blocks_of_the_call_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="blocks read in both directions"):
        prepare(make_tiny_model("gemma4_unified"))


@pytest.mark.parametrize("model_type", ["bart", "marian", "blenderbot"])
def test_learned_positions_that_nobody_can_hand_over_are_named(model_type: str) -> None:
    with pytest.raises(UnsupportedModelError, match="names no position_ids"):
        prepare(make_tiny_model(model_type))
