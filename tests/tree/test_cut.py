"""Cut nodes against the tree they were cut from."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treetrain.tree.build import build_prefix_tree
from treetrain.tree.cut import cut_nodes

SEQUENCES = st.lists(st.lists(st.integers(0, 1), max_size=7), min_size=1, max_size=6)


@given(SEQUENCES, st.data())
def test_cutting_nodes_changes_no_token_and_no_path(
    sequences: list[list[int]], data: st.DataObject
) -> None:
    tree = build_prefix_tree(sequences)
    more = data.draw(st.lists(st.integers(0, max(tree.num_tokens - 1, 0)), max_size=5))
    starts = np.unique([*tree.node_starts[:-1], *more[: tree.num_tokens]]).astype(np.int64)
    cut = cut_nodes(tree, starts)
    assert cut.node_starts[:-1].tolist() == starts.tolist()
    assert cut.tokens.tolist() == tree.tokens.tolist()
    for name in ("depth_positions", "token_subtree_ends", "token_path_counts", "predecessors"):
        assert getattr(cut, name).tolist() == getattr(tree, name).tolist(), name
    assert cut.sequence_lengths.tolist() == [len(sequence) for sequence in sequences]
    for index, sequence in enumerate(sequences):
        assert cut.tokens[cut.positions(index)].tolist() == sequence


def test_keys_stay_with_their_tokens() -> None:
    tree = build_prefix_tree([[1, 2, 3]], [[7, 8, 9]])
    cut = cut_nodes(tree, np.array([0, 2]))
    assert cut.keys is not None
    assert cut.keys.tolist() == [7, 8, 9]
    assert cut.parents.tolist() == [-1, 0]
