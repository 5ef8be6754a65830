from __future__ import annotations

from types import SimpleNamespace

import pytest

from treetrain.demo.models import make_small_model
from treetrain.errors import UnsupportedModelError
from treetrain.models.shape import measure_shape
from treetrain.testing.models import make_tiny_model


def test_shape_leaves_the_embedding_out() -> None:
    model, _ = make_small_model(0)
    shape = measure_shape(model)
    embedding = model.get_input_embeddings().weight.numel()
    assert shape.parameters == sum(p.numel() for p in model.parameters()) - embedding
    assert (shape.layers, shape.heads, shape.head_size) == (4, 4, 64)


def test_experts_count_as_many_as_a_token_is_sent_to() -> None:
    one = measure_shape(make_tiny_model("qwen3_moe", num_experts=8, num_experts_per_tok=2))
    other = measure_shape(make_tiny_model("qwen3_moe", num_experts=8, num_experts_per_tok=4))
    assert one.parameters < other.parameters
    fewer = measure_shape(make_tiny_model("qwen3_moe", num_experts=4, num_experts_per_tok=2))
    router = 4 * one.layers * make_tiny_model("qwen3_moe").config.hidden_size
    assert one.parameters - fewer.parameters == router


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "deepseek_v3", "gpt_oss"])
def test_other_families_have_a_shape(family: str) -> None:
    shape = measure_shape(make_tiny_model(family))
    assert min(shape.parameters, shape.layers, shape.heads, shape.head_size) > 0


def test_a_config_that_does_not_tell_is_refused() -> None:
    config = SimpleNamespace(num_hidden_layers=2)
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: config))
    with pytest.raises(UnsupportedModelError, match="num_attention_heads"):
        measure_shape(model)
