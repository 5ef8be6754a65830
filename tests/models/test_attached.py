from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from transformers import PreTrainedModel

from treetrain.errors import UnsupportedModelError
from treetrain.losses.sft import sft_loss
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import worked_example

CHANGED = r"changed after prepare\(model\) \(first: .*call prepare\(model\) again"


def add_noise(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output + torch.randn_like(output) if module.training else output


def drop(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return torch.dropout(output, 0.5, module.training)


def mix(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output + output.roll(1, dims=1)


def replace_forward(model: PreTrainedModel) -> Callable[[], None]:
    norm = model.base_model.norm
    forward = norm.forward
    norm.forward = lambda hidden: forward(hidden).roll(1, dims=1)
    return lambda: delattr(norm, "forward")


CHANGES: dict[str, Callable[[PreTrainedModel], Callable[[], None]]] = {
    "noise": lambda model: model.get_input_embeddings().register_forward_hook(add_noise).remove,
    "dropout": lambda model: model.base_model.layers[0].mlp.register_forward_hook(drop).remove,
    "mixing": lambda model: model.base_model.layers[1].register_forward_hook(mix).remove,
    "head": lambda model: (
        model.get_output_embeddings().register_forward_pre_hook(lambda module, inputs: None).remove
    ),
    "forward": replace_forward,
    "global": lambda model: (
        register_module_forward_hook(lambda module, inputs, output: None).remove
    ),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_what_is_attached_after_preparing_is_refused_until_it_is_gone(change: str) -> None:
    model = make_tiny_model("llama").train()
    prepare(model)
    batch = pack(worked_example())
    before = sft_loss(model, batch, "sum")
    take_off = CHANGES[change](model)
    try:
        with pytest.raises(ValueError, match=CHANGED):
            sft_loss(model, batch, "sum")
    finally:
        take_off()
    assert torch.equal(sft_loss(model, batch, "sum"), before)


@pytest.mark.parametrize("change", ["noise", "dropout"])
def test_preparing_again_looks_for_randomness_again(change: str) -> None:
    model = make_tiny_model("llama").train()
    prepare(model)
    batch = pack(worked_example())
    sft_loss(model, batch, "sum")
    CHANGES[change](model)
    prepare(model)
    with pytest.raises(UnsupportedModelError, match="draws at random"):
        sft_loss(model, batch, "sum")


@pytest.mark.parametrize("change", ["mixing", "forward"])
def test_preparing_again_checks_what_was_attached(change: str) -> None:
    model = make_tiny_model("llama")
    prepare(model)
    CHANGES[change](model)
    with pytest.raises(UnsupportedModelError, match="other logits on a tree"):
        prepare(model)


def test_a_hook_that_changes_nothing_is_served_once_prepared_again() -> None:
    model = make_tiny_model("llama")
    prepare(model)
    seen: list[str] = []
    model.base_model.register_forward_hook(lambda module, inputs, output: seen.append("called"))
    prepare(model)
    seen.clear()
    sft_loss(model, pack(worked_example()), "sum")
    assert seen == ["called"]


def test_compiling_checkpointing_and_hooks_of_the_backward_pass_need_no_second_preparing() -> None:
    model = make_tiny_model("llama").train()
    prepare(model)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model.enable_input_require_grads()
    layer = model.base_model.layers[0]
    layer.forward = torch.compile(layer.forward, backend="eager")
    layer.mlp.register_full_backward_hook(lambda module, inputs, outputs: None)
    sft_loss(model, pack(worked_example()), "sum").backward()


def test_attention_that_is_made_to_look_both_ways_afterwards_is_refused() -> None:
    model = make_tiny_model("llama")
    prepare(model)
    batch = pack(worked_example())
    model.base_model.layers[2].self_attn.is_causal = False
    with pytest.raises(ValueError, match=r"first: is_causal of attention layer 2"):
        sft_loss(model, batch, "sum")
    model.base_model.layers[2].self_attn.is_causal = True
    model.config.is_causal = False
    with pytest.raises(ValueError, match=r"config\.is_causal was changed"):
        sft_loss(model, batch, "sum")


@pytest.mark.parametrize("before", [True, False])
def test_gradients_divided_by_how_often_a_token_stands_in_a_call_are_refused(before: bool) -> None:
    model = make_tiny_model("llama")
    if not before:
        prepare(model)
    model.get_input_embeddings().scale_grad_by_freq = True
    with pytest.raises(UnsupportedModelError, match="scale_grad_by_freq=True"):
        prepare(model) if before else sft_loss(model, pack(worked_example()), "sum")


def compile_call(module: nn.Module) -> None:
    module.compile(backend="eager")


def compile_forward(module: nn.Module) -> None:
    module.forward = torch.compile(module.forward, backend="eager")


@pytest.mark.parametrize("compile_part", [compile_call, compile_forward])
@pytest.mark.parametrize("before", [True, False])
def test_a_compiled_decoder_computes_the_same_whenever_it_was_compiled(
    compile_part: Callable[[nn.Module], None], before: bool
) -> None:
    torch._dynamo.reset()
    batch = pack(worked_example())
    model = make_tiny_model("llama")
    prepare(model)
    expected = sft_loss(model, batch, "sum")
    model = make_tiny_model("llama")
    if before:
        compile_part(model.base_model)
        model(torch.tensor([[1, 2, 3]]))
    prepare(model)
    if not before:
        compile_part(model.base_model)
    loss = sft_loss(model, batch, "sum")
    torch.testing.assert_close(loss, expected)
    loss.backward()
