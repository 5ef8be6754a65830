from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch import Tensor, nn

from treetrain.errors import UnsupportedModelError
from treetrain.losses.logprobs import sequence_logprobs
from treetrain.losses.sft import sft_loss
from treetrain.models.prepare import prepare
from treetrain.models.routers import record_routing
from treetrain.packing.batch import pack
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import worked_example

pytestmark = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.24"),
    reason="routers of older releases give probabilities or nothing, which is refused by name",
)


def test_a_record_holds_each_router_in_order_with_its_graph() -> None:
    model = make_tiny_model("deepseek_v3")
    prepare(model)
    batch = pack(worked_example())
    with record_routing(model) as routing:
        sequence_logprobs(model, batch)
    names = [layer.name for layer in routing.of(batch.packed)]
    assert names == [f"model.layers.{layer}.mlp.gate" for layer in (1, 2, 3)]
    for layer in routing.layers:
        assert layer.logits.shape == (9, 8)
        assert layer.experts.shape == (9, 2)
        assert layer.logits.requires_grad


def test_nothing_stays_attached_and_nothing_changes() -> None:
    model = make_tiny_model("mixtral")
    prepare(model)
    batch = pack(worked_example())
    before = sft_loss(model, batch, "sum")
    hooks = [len(module._forward_hooks) for module in model.modules()]
    with record_routing(model):
        recorded = sft_loss(model, batch, "sum")
    assert torch.equal(before, recorded)
    assert torch.equal(before, sft_loss(model, batch, "sum"))
    assert hooks == [len(module._forward_hooks) for module in model.modules()]


def test_plain_calls_are_not_recorded_and_the_last_tree_is() -> None:
    model = make_tiny_model("mixtral")
    prepare(model)
    first, second = pack(worked_example()), pack([[5, 6]])
    with record_routing(model) as routing:
        with pytest.raises(ValueError, match="got one of no forward pass"):
            routing.of(first.packed)
        sequence_logprobs(model, first)
        model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False)
        assert len(routing.of(first.packed)) == 4
        sequence_logprobs(model, second)
    assert len(routing.of(second.packed)) == 4
    with pytest.raises(ValueError, match="routing must be the record of the forward pass on"):
        routing.of(first.packed)


def test_collecting_outputs_in_plain_calls_does_not_count_as_a_change() -> None:
    model = make_tiny_model("mixtral")
    prepare(model)
    batch = pack(worked_example())
    before = sft_loss(model, batch, "sum")
    model(input_ids=torch.tensor([[1, 2]]), output_router_logits=True, output_hidden_states=True)
    assert torch.equal(before, sft_loss(model, batch, "sum"))


def test_a_model_without_routers_is_refused() -> None:
    model = make_tiny_model("llama")
    prepare(model)
    with (
        pytest.raises(UnsupportedModelError, match="LlamaForCausalLM has no router"),
        record_routing(model),
    ):
        pass


def test_a_compiled_decoder_is_refused() -> None:
    model = make_tiny_model("mixtral")
    prepare(model)
    model.model.layers[1].compile()
    with (
        pytest.raises(UnsupportedModelError, match=r"is compiled \(MixtralDecoderLayer\)"),
        record_routing(model),
    ):
        pass


def softmaxed(module: nn.Module, inputs: Any, output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return output[0].softmax(-1), *output[1:]


def without_choice(module: nn.Module, inputs: Any, output: tuple[Tensor, ...]) -> Any:
    return (*output[:2], output[2].float())


def of_fewer_tokens(module: nn.Module, inputs: Any, output: tuple[Tensor, ...]) -> Any:
    return output[0][:-1], *output[1:]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (softmaxed, "gives probabilities as its logits"),
        (without_choice, "does not give the experts it chose"),
        (of_fewer_tokens, "gives no logits of 9 tokens"),
    ],
)
def test_routers_that_give_something_else_are_refused(change: Any, said: str) -> None:
    model = make_tiny_model("qwen3_moe")
    prepared = prepare(model)
    packed = pack(worked_example()).packed

    class Changed(type(model.model.layers[2].mlp.gate)):
        def forward(self, hidden_states: Tensor) -> Any:
            output = super().forward(hidden_states)
            return change(self, None, output) if recording else output

    recording = False
    model.model.layers[2].mlp.gate.__class__ = Changed
    recording = True
    with pytest.raises(UnsupportedModelError, match=said), record_routing(model):
        prepared.hidden_states(packed)


def test_routers_that_do_not_run_or_run_twice_are_refused() -> None:
    model = make_tiny_model("mixtral")
    packed = pack(worked_example()).packed
    block = type(model.model.layers[0].mlp)

    class Silent(block):
        def forward(self, hidden_states: Tensor) -> Tensor:
            return hidden_states

    class Twice(block):
        def forward(self, hidden_states: Tensor) -> Tensor:
            self.gate(hidden_states)
            return super().forward(hidden_states)

    for kind, said in ((Silent, "1 of 4 routers .* did not run"), (Twice, "more than once")):
        model.model.layers[3].mlp.__class__ = kind
        prepared = prepare(model)
        with pytest.raises(UnsupportedModelError, match=said), record_routing(model):
            prepared.hidden_states(packed)
        prepared.undo()
