from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from treetrain.attention.api import BACKENDS, choose_backend, tree_attention
from treetrain.attention.names import BACKEND_NAMES, MASK
from treetrain.packing.packed_tree import PackedTree, pack_tree
from treetrain.testing.trees import worked_example
from treetrain.tree.build import build_prefix_tree

CPU = torch.device("cpu")
Inputs = Callable[..., tuple[Tensor, Tensor, Tensor]]


@pytest.fixture
def packed() -> PackedTree:
    return pack_tree(build_prefix_tree(worked_example()))


def test_auto_takes_slices_and_a_name_is_taken_as_named() -> None:
    assert choose_backend("auto") == "slices"
    assert choose_backend("reference") == "reference"


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match=r"backend must be 'auto' or one of.*got 'flash'"):
        choose_backend("flash")


def test_the_names_that_are_checked_without_torch_are_those_of_the_backends() -> None:
    assert ("auto", *BACKENDS, MASK) == BACKEND_NAMES


def test_a_layer_does_not_take_the_mask_of_a_whole_model(
    packed: PackedTree, make_inputs: Inputs
) -> None:
    with pytest.raises(ValueError, match=r"prepare\(model\) takes for a whole model"):
        tree_attention(*make_inputs(9), packed, backend="mask")


def test_softcap_is_computed(packed: PackedTree, make_inputs: Inputs) -> None:
    inputs = make_inputs(9)
    capped = tree_attention(*inputs, packed, softcap=0.5)
    assert not torch.allclose(capped, tree_attention(*inputs, packed))


def test_shapes_are_checked(packed: PackedTree, make_inputs: Inputs) -> None:
    query, key, value = make_inputs(9)
    with pytest.raises(ValueError, match="row's 9 tokens"):
        tree_attention(query[:, :, :8], key[:, :, :8], value[:, :, :8], packed)
    with pytest.raises(ValueError, match=r"query must be \[B, heads, T, D\]"):
        tree_attention(query[0], key, value, packed)
    with pytest.raises(ValueError, match="multiple of key heads"):
        tree_attention(query[:, :3], key, value, packed)
    with pytest.raises(ValueError, match="one floating dtype"):
        tree_attention(query.float(), key, value, packed)
    with pytest.raises(ValueError, match="window must be at least 1"):
        tree_attention(query, key, value, packed, window=0)
    with pytest.raises(ValueError, match="one score per query head"):
        tree_attention(query, key, value, packed, sinks=torch.zeros(3))


def test_scale_defaults_to_the_head_size(packed: PackedTree, make_inputs: Inputs) -> None:
    inputs = make_inputs(9)
    assert torch.equal(
        tree_attention(*inputs, packed), tree_attention(*inputs, packed, scale=8**-0.5)
    )
