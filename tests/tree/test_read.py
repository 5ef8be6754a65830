"""What counts as sequences of token ids, and how each wrong one is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from treetrain.tree.build import build_prefix_tree
from treetrain.tree.kinds import index_kind, key_kind, token_kind
from treetrain.tree.read import read_row, read_rows

ROWS = [[3, 1, 4], [3, 1], [2**31 - 1, 0]]
FORMS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "int64": np.array,
    "int32": lambda row: np.array(row, np.int32),
    "uint32": lambda row: np.array(row, np.uint32),
    "uint64": lambda row: np.array(row, np.uint64),
    "big endian": lambda row: np.array(row, ">i8"),
    "strided": lambda row: np.repeat(np.array(row), 2)[::2],
    "tensor": torch.tensor,
    "int32 tensor": lambda row: torch.tensor(row, dtype=torch.int32),
    "numpy integers": lambda row: [np.int64(token) for token in row],
    "index objects": lambda row: [torch.tensor(token) for token in row],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_integers_builds_the_same_tree(form: str) -> None:
    tree = build_prefix_tree([FORMS[form](row) for row in ROWS])
    assert [tree.tokens[tree.positions(i)].tolist() for i in range(3)] == ROWS


def test_forms_may_be_mixed() -> None:
    tree = build_prefix_tree([make(ROWS[0]) for make in FORMS.values()])
    assert tree.tokens.tolist() == ROWS[0]
    assert tree.path_counts.tolist() == [len(FORMS)]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_narrow_dtypes_are_read(dtype: type) -> None:
    assert build_prefix_tree([np.array([1, 100], dtype)]).tokens.tolist() == [1, 100]


@pytest.mark.parametrize("make", [np.array, torch.tensor, iter, range])
def test_containers_of_rows(make: Callable[[Any], Any]) -> None:
    if make is range:
        assert build_prefix_tree([range(3), range(2)]).tokens.tolist() == [0, 1, 2]
    else:
        assert build_prefix_tree(make([[1, 2], [1, 3]])).tokens.tolist() == [1, 2, 3]


@pytest.mark.parametrize("empty", [[], (), np.array([]), torch.tensor([]), np.zeros(0, np.int32)])
def test_rows_without_entries_are_empty_whatever_their_dtype(empty: Any) -> None:
    assert build_prefix_tree([[1], empty]).sequence_nodes.tolist() == [0, -1]


@pytest.mark.parametrize(
    ("entry", "said"),
    [(-1, "got -1"), (-100, "got -100"), (2**31, f"got {2**31}"), (2**70, f"got {2**70}")],
)
def test_ids_out_of_range_in_a_list_are_named(entry: int, said: str) -> None:
    with pytest.raises(ValueError, match=r"sequences\[1\]\[2\] must be a token id between 0") as e:
        build_prefix_tree([[1, 2], [1, 2, entry, -5]])
    assert said in str(e.value)
    assert "remove padding" in str(e.value)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.uint32, np.int32])
def test_ids_out_of_range_in_an_array_are_named(dtype: type) -> None:
    entry = -3 if np.dtype(dtype).kind == "i" else np.iinfo(dtype).max
    wrong = np.array([5, entry], dtype)
    with pytest.raises(ValueError, match=rf"sequences\[2\]\[1\] .* got {entry};"):
        build_prefix_tree([[1], [], wrong, np.array([-9])])


@pytest.mark.parametrize("entry", [1.0, True, False, "1", None, [2], np.float32(1), np.bool_(True)])
@pytest.mark.parametrize("before", [[], [1, 0], [7, 8, 9] * 20])
def test_entries_that_are_no_integers_are_named(entry: object, before: list[int]) -> None:
    where = rf"sequences\[1\]\[{len(before)}\] must be an integer token id, got "
    with pytest.raises(TypeError, match=where):
        build_prefix_tree([[4, 5], [*before, entry, 6]])


@pytest.mark.parametrize("dtype", [np.float64, np.bool_, np.str_, object, complex])
def test_arrays_that_hold_no_integers_are_named(dtype: type) -> None:
    with pytest.raises(TypeError, match=r"sequences\[1\] must hold integers, got dtype"):
        build_prefix_tree([[1], np.array([1, 0], dtype)])


@pytest.mark.parametrize(
    "tensor", [torch.tensor([1.0], requires_grad=True), torch.empty(2).bfloat16()]
)
def test_tensors_that_numpy_cannot_view_are_named(tensor: torch.Tensor) -> None:
    with pytest.raises(TypeError, match=r"sequences\[1\] must be readable as a numpy array"):
        build_prefix_tree([[1], tensor])


@pytest.mark.parametrize("row", [5, None, "abc", b"abc", {1: 2}, {1, 2}, iter([1])])
def test_rows_that_are_no_rows_are_named(row: object) -> None:
    with pytest.raises(TypeError, match=r"sequences\[1\] must be a row of integers, got"):
        build_prefix_tree([[1], row])


@pytest.mark.parametrize(
    "row", [np.zeros((2, 2), int), torch.zeros(1, 1, dtype=torch.int64), np.array(3)]
)
def test_rows_of_another_rank_are_named(row: Any) -> None:
    with pytest.raises(ValueError, match=r"sequences\[1\] must be one-dimensional, got shape"):
        build_prefix_tree([[1], row])


@pytest.mark.parametrize("rows", ["abc", b"ab", {0: [1]}, {1, 2}, 5, None])
def test_arguments_that_hold_no_rows_are_refused(rows: Any) -> None:
    with pytest.raises(TypeError, match="sequences must be a list of rows of integers"):
        build_prefix_tree(rows)


@pytest.mark.parametrize("rows", [np.array([1, 2]), torch.tensor([1, 2]), np.zeros((2, 2, 2), int)])
def test_arrays_of_another_rank_are_refused(rows: Any) -> None:
    with pytest.raises(ValueError, match="two-dimensional array, got an array of shape"):
        build_prefix_tree(rows)


def test_a_flat_list_is_named_by_its_first_entry() -> None:
    with pytest.raises(TypeError, match=r"sequences\[0\] must be a row of integers, got int 1"):
        build_prefix_tree([1, 2, 3])


def test_keys_out_of_range_and_of_wrong_type_are_named() -> None:
    with pytest.raises(ValueError, match=rf"keys\[0\]\[1\] must be a key between .* got {2**63};"):
        build_prefix_tree([[1, 2]], [[0, 2**63]])
    with pytest.raises(ValueError, match=rf"keys\[0\]\[1\] must be a key between .* got {2**63};"):
        build_prefix_tree([[1, 2]], [np.array([0, 2**63], np.uint64)])
    with pytest.raises(TypeError, match=r"keys\[0\]\[0\] must be an integer key, got bool False"):
        build_prefix_tree([[1, 2]], [[False, 1]])


def test_rows_are_read_flat_with_their_offsets() -> None:
    flat, offsets = read_rows([[1, 2], np.array([3]), []], token_kind("rows"))
    assert flat.dtype == np.int32
    assert (flat.tolist(), offsets.tolist()) == ([1, 2, 3], [0, 2, 3, 3])
    assert read_rows([[-1], [2]], key_kind("rows"))[0].dtype == np.int64


def test_one_row_is_named_without_an_index() -> None:
    assert read_row([0, -1, 1], index_kind("parents", 2)).tolist() == [0, -1, 1]
    with pytest.raises(ValueError, match=r"parents\[2\] must be a node index between -1 and 1"):
        read_row([0, -1, 2], index_kind("parents", 2))
    with pytest.raises(ValueError, match=r"parents\[1\] must be a node index between -1 and 1"):
        read_row(np.array([0, -2]), index_kind("parents", 2))
    with pytest.raises(TypeError, match=r"parents\[1\] must be an integer node index, got float"):
        read_row([0, 1.5], index_kind("parents", 2))
    with pytest.raises(TypeError, match=r"parents\[0\] must be an integer node index, got bool"):
        read_row([False, 1], index_kind("parents", 2))
    with pytest.raises(ValueError, match="parents must be one-dimensional"):
        read_row(np.zeros((1, 2), int), index_kind("parents", 2))


def test_a_masked_array_is_not_read_without_its_mask() -> None:
    masked = np.ma.array([1, 2, 3], mask=[False, False, True])
    with pytest.raises(TypeError, match=r"sequences\[1\] must be no masked array"):
        build_prefix_tree([[1, 2], masked])
