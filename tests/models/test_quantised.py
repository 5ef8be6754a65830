from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from tests.models.baseline import check_equal, gradients, logits_alone, logits_on_tree
from torch import Tensor, nn
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    quantize_,
)
from transformers import PreTrainedModel

from treetrain.errors import UnsupportedModelError
from treetrain.losses.sft import sft_loss
from treetrain.models.prepare import prepare
from treetrain.models.quantised import find_quantised
from treetrain.packing.batch import pack
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import tree_family, worked_example
from treetrain.verification.verify import verify

SEQUENCES = tree_family()["uneven"]


class WeightOnly(nn.Linear):
    """Eight-bit weights with a scale per output, activations as they are."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False)
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        del self.weight
        self.register_buffer("weight", (layer.weight.detach() / scale).round().to(torch.int8))

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(self.quantise(hidden), self.weight.to(hidden.dtype) * self.scale)

    def quantise(self, hidden: Tensor) -> Tensor:
        return hidden


class TokenByToken(WeightOnly):
    def quantise(self, hidden: Tensor) -> Tensor:
        return round_to(hidden, hidden.detach().abs().amax(-1, keepdim=True) / 127)


class PerCall(WeightOnly):
    def quantise(self, hidden: Tensor) -> Tensor:
        return round_to(hidden, hidden.detach().abs().amax() / 127)


class ColumnsPerCall(WeightOnly):
    """Columns in which any token of the call is large stay as they are."""

    def quantise(self, hidden: Tensor) -> Tensor:
        large = hidden.detach().abs().flatten(0, -2).amax(0) > 6
        rest = round_to(hidden, hidden.detach().abs().amax(-1, keepdim=True) / 127)
        return torch.where(large, hidden, rest)


class GradientsPerCall(nn.Linear):
    """Weights and activations as they are; gradients are scaled over the call."""

    def forward(self, hidden: Tensor) -> Tensor:
        return ScaledGradient.apply(F.linear(hidden, self.weight))


class ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return round_to(grads[0], grads[0].abs().amax() / 127)


def round_to(hidden: Tensor, scale: Tensor) -> Tensor:
    """Rounded to multiples of the scale, with the gradient of no rounding."""
    scale = scale.clamp(min=1e-9)
    return hidden + ((hidden / scale).round() * scale - hidden).detach()


def replace_linear(model: PreTrainedModel, kind: Callable[[nn.Linear], nn.Module]) -> None:
    for module in list(model.model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, kind(child))


def adapt(model: PreTrainedModel) -> PeftModel:
    config = LoraConfig(
        r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False, task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return get_peft_model(model, config)


def test_adapters_over_quantised_weights_are_exact() -> None:
    model = make_tiny_model("llama")
    replace_linear(model, WeightOnly)
    assert len(find_quantised(model)) == 4 * 7
    adapted = adapt(model)
    plain = copy.deepcopy(adapted)
    prepared = prepare(adapted)
    alone, tree = logits_alone(plain, SEQUENCES), logits_on_tree(prepared, SEQUENCES)
    grads = gradients(adapted, tree)
    assert any("lora_A" in name and float(grad.abs().max()) > 0 for name, grad in grads.items())
    check_equal(tree, alone, grads, gradients(plain, alone))
    assert verify(adapted, worked_example(), truth=False).equal


@pytest.mark.parametrize("kind", [PerCall, ColumnsPerCall])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_quantised_over_a_whole_call_are_refused_by_name(
    kind: Callable[..., nn.Module], dtype: torch.dtype
) -> None:
    model = make_tiny_model("llama", dtype=dtype)
    replace_linear(model, kind)
    named = rf"layers\.\d+\.\w+\.\w+ \({kind.__name__}\) .*quantise weights only"
    with pytest.raises(UnsupportedModelError, match=named):
        prepare(model)
    with pytest.raises(UnsupportedModelError, match=rf"base_layer \({kind.__name__}\)"):
        prepare(adapt(model))
    assert model.config._attn_implementation == "sdpa"


def quantise(model: PreTrainedModel, config: Any) -> None:
    quantize_(model.model, config)


@pytest.mark.parametrize("config", [Int8WeightOnlyConfig(), Float8WeightOnlyConfig()])
def test_adapters_over_weights_of_torchao_are_exact(config: Any) -> None:
    model = make_tiny_model("llama")
    quantise(model, config)
    assert len(find_quantised(model)) == 4 * 7
    adapted = adapt(model)
    plain = copy.deepcopy(adapted)
    prepared = prepare(adapted)
    alone, tree = logits_alone(plain, SEQUENCES), logits_on_tree(prepared, SEQUENCES)
    for one, other in zip(tree, alone, strict=True):
        torch.testing.assert_close(
            one, other, rtol=0, atol=1e-5 * float(other.detach().abs().max())
        )
    for part, logits in ((adapted, tree), (plain, alone)):
        weights = torch.linspace(-1, 1, 64)
        torch.stack([(one * weights).sum() for one in logits]).sum().backward()
        assert all((p.grad is not None) == p.requires_grad for p in part.parameters())
    pairs = [
        (one.grad, other.grad)
        for one, other in zip(adapted.parameters(), plain.parameters(), strict=True)
        if other.grad is not None
    ]
    largest = max(float(other.abs().max()) for _, other in pairs)
    assert all(float((one - other).abs().max()) <= 1e-5 * largest for one, other in pairs)
    assert verify(adapted, worked_example(), truth=False).equal


def test_activations_rounded_by_torchao_are_refused_by_name() -> None:
    model = make_tiny_model("llama")
    quantise(model, Int8DynamicActivationInt8WeightConfig())
    with pytest.raises(UnsupportedModelError, match=r"\(Linear, Int8Tensor\) rounds its activati"):
        prepare(model)


def test_activations_rounded_token_by_token_are_refused_in_float32_and_served_in_bfloat16() -> None:
    model = make_tiny_model("llama")
    replace_linear(model, TokenByToken)
    with pytest.raises(UnsupportedModelError, match=r"\(TokenByToken\) rounds its activations"):
        prepare(model)
    model = make_tiny_model("llama", dtype=torch.bfloat16)
    replace_linear(model, TokenByToken)
    prepare(model)


def test_gradients_quantised_over_a_whole_call_are_refused_by_name() -> None:
    model = make_tiny_model("llama")
    layer = model.model.layers[1].mlp
    layer.down_proj = GradientsPerCall(48, 32, bias=False)
    with pytest.raises(UnsupportedModelError, match=r"layers\.1\.mlp\.down_proj \(GradientsPer"):
        prepare(model)


def test_a_linear_layer_of_another_class_is_no_quantised_one() -> None:
    class Plain(nn.Linear):
        def forward(self, hidden: Tensor) -> Tensor:
            return F.linear(hidden, self.weight)

    model = make_tiny_model("llama")
    model.model.layers[1].mlp.down_proj = Plain(48, 32, bias=False)
    prepare(model)
    assert find_quantised(model) == []


def test_a_quantised_module_whose_tokens_cannot_be_told_is_refused() -> None:
    class Opaque(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.zeros(4, 4, dtype=torch.uint8))

        def forward(self, hidden: list[Tensor]) -> Tensor:
            return hidden[0]

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Opaque()

        def forward(self, hidden: Tensor) -> Tensor:
            return self.inner([hidden])

    model = make_tiny_model("llama")
    model.model.layers[1].mlp = Wrapped()
    with pytest.raises(UnsupportedModelError, match=r"inner \(Opaque\) .*cannot be checked"):
        prepare(model)


def test_quantised_weights_have_no_float64_copy_and_verify_says_so() -> None:
    model = make_tiny_model("llama", dtype=torch.bfloat16)
    replace_linear(model, WeightOnly)
    with pytest.raises(UnsupportedModelError, match=r"truth=False, tolerance="):
        verify(adapt(model), worked_example())


def test_quantised_weights_train_with_a_fused_head() -> None:
    model = make_tiny_model("llama")
    replace_linear(model, WeightOnly)
    adapted = adapt(model)
    prepare(adapted)
    sft_loss(adapted, pack(SEQUENCES), "sum").backward()
    assert all(
        parameter.grad is not None for parameter in adapted.parameters() if parameter.requires_grad
    )
