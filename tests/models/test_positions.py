"""Positions that a model counts by itself are shifted as it does, or refused."""

from __future__ import annotations

import pytest
from tests.models.baseline import check_equal, gradients, logits_alone, logits_on_tree

from treetrain.errors import UnsupportedModelError
from treetrain.models.prepare import prepare
from treetrain.packing.gateway import LayerGateway, LayerStore
from treetrain.packing.packed_tree import pack_tree
from treetrain.testing.models import make_tiny_model
from treetrain.testing.trees import tree_family
from treetrain.tree.build import build_prefix_tree

SEQUENCES = [
    [token + 4 for token in sequence if token < 60] for sequence in tree_family()["uneven"]
]


@pytest.mark.parametrize("padding", [0, 1, 3])
def test_positions_of_the_roberta_family_start_after_its_padding_id(padding: int) -> None:
    model = make_tiny_model("roberta", pad_token_id=padding)
    alone = logits_alone(model, SEQUENCES)
    expected = gradients(model, alone)
    prepared = prepare(model)
    assert prepared.positions.offset == padding + 1
    ours = logits_on_tree(prepared, SEQUENCES)
    check_equal(ours, alone, gradients(model, ours), expected)


def test_a_padding_id_that_takes_no_position_is_refused() -> None:
    model = make_tiny_model("roberta", pad_token_id=3)
    prepared = prepare(model)
    with pytest.raises(UnsupportedModelError, match=r"padding id 3 no position.*packed token 1"):
        logits_on_tree(prepared, [[5, 3, 6], [5, 3, 7]])


@pytest.mark.parametrize("model_type", ["opt", "gpt2", "llama", "bert"])
def test_other_models_need_no_offset(model_type: str) -> None:
    assert prepare(make_tiny_model(model_type)).positions.offset == 0


@pytest.mark.parametrize("model_type", ["bloom", "mpt"])
def test_alibi_is_named(model_type: str) -> None:
    with pytest.raises(UnsupportedModelError, match="ALiBi"):
        prepare(make_tiny_model(model_type))


def test_alibi_of_falcon_is_refused_only_where_it_is_on() -> None:
    prepare(make_tiny_model("falcon", alibi=False))
    with pytest.raises(UnsupportedModelError, match="ALiBi"):
        prepare(make_tiny_model("falcon", alibi=True))


def test_queries_scaled_by_packed_position_are_refused_from_the_floor_on() -> None:
    model = make_tiny_model(
        "llama4_text", floor_scale=40, attn_temperature_tuning=True, no_rope_layers=[1, 0, 1, 0]
    )
    short = [[5, 6, 7, 8], [5, 6, 9, 10, 11]]
    alone = logits_alone(model, short)
    expected = gradients(model, alone)
    prepared = prepare(model)
    ours = logits_on_tree(prepared, short)
    check_equal(ours, alone, gradients(model, ours), expected)
    siblings = [[5, *range(start, start + 12)] for start in (8, 20, 32, 44)]
    with pytest.raises(UnsupportedModelError, match="from packed position 40"):
        logits_on_tree(prepared, siblings)


def test_queries_of_a_row_are_scaled_by_its_depth_with_its_ancestors() -> None:
    """A short row of a long path would be scaled as if it began the sequence."""
    model = make_tiny_model(
        "llama4_text", floor_scale=40, attn_temperature_tuning=True, no_rope_layers=[1, 0, 1, 0]
    )
    prepared = prepare(model)
    tree = build_prefix_tree([list(range(3, 53))])
    gateway = LayerGateway([(LayerStore(), slice(0, 45))], [], copy=False)
    with pytest.raises(UnsupportedModelError, match=r"from packed position 40 .* 50 tokens"):
        prepared.hidden_states(
            pack_tree(tree, ancestors=45), dict.fromkeys(prepared.layers, gateway)
        )
