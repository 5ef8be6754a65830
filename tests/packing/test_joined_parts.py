from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treetrain.packing.batch import pack
from treetrain.packing.joined_parts import join_parts
from treetrain.packing.parts import cut_batch
from treetrain.tree.partition import partition_tree

ROWS = st.lists(st.lists(st.integers(0, 2), max_size=9), min_size=1, max_size=10)


@given(ROWS, st.integers(1, 12), st.integers(2, 5))
def test_a_joined_row_reads_what_is_above_and_fills_the_stores_of_its_parts(rows, capacity, most):
    batch = pack(rows)
    partitions = partition_tree(batch.tree, capacity)
    parts = cut_batch(batch, partitions)
    groups, first = [], 0
    for part in range(1, len(parts) + 1):
        chained = part < len(parts) and partitions.parents[part] == part - 1
        if not chained or part - first == most:
            groups.append(range(first, part))
            first = part
    before = batch.tree.predecessors

    def stored(part):
        return [parts[part].places[row] for rows in parts[part].kept for row in np.r_[rows]]

    joined = join_parts(batch, partitions, parts, groups)
    for group, row in zip(groups, joined, strict=True):
        own = [place for part in group for place in parts[part].places.tolist()]
        ancestors = [place for part, kept in row.ancestors for place in stored(part)[kept]]
        assert all(part < group.start for part, _ in row.ancestors)
        tree = row.packed.tree
        assert row.packed.num_tokens == len(own)
        assert row.packed.ancestors == len(ancestors)
        # Where each token of the row stands in the batch, from what the stores shall hold and from
        # tokens and predecessors of the row's own tree.
        places = ancestors + [-1] * len(own)
        for part, kept in row.kept:
            rows_of_part = [index for rows in kept for index in np.r_[rows]]
            assert len(rows_of_part) == len(stored(part))
            for index, place in zip(rows_of_part, stored(part), strict=True):
                places[len(ancestors) + index] = place
        assert [part for part, _ in row.kept] == list(group)
        for index, place in enumerate(places):
            if place >= 0:
                above = int(tree.predecessors[index])
                assert tree.tokens[index] == batch.tree.tokens[place]
                assert (places[above] if above >= 0 else -1) == before[place]
        paths = sorted(
            (int(depth), int(token))
            for depth, token in zip(
                row.packed.depth_positions[0], row.packed.tokens[0], strict=True
            )
        )
        tree_of_batch = batch.tree
        assert paths == sorted(
            (int(tree_of_batch.depth_positions[place]), int(tree_of_batch.tokens[place]))
            for place in own
        )
