from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treetrain.data.sample import Sample
from treetrain.packing.batch import pack
from treetrain.packing.parts import cut_batch
from treetrain.tree.partition import partition_tree

ROWS = st.lists(st.lists(st.integers(0, 2), max_size=9), min_size=1, max_size=10)


@given(ROWS, st.integers(1, 12), st.integers(0, 2**31))
def test_parts_hold_each_token_and_each_target_once(rows, capacity, seed):
    rng = np.random.default_rng(seed)
    samples = [
        Sample(row, rng.integers(0, 2, len(row)), group=int(rng.integers(2))) for row in rows
    ]
    batch = pack(samples)
    parts = cut_batch(batch, partition_tree(batch.tree, capacity))
    places = np.concatenate([part.places for part in parts] or [np.zeros(0, np.int64)])
    assert sorted(places.tolist()) == list(range(batch.num_tokens))
    for part in parts:
        row = part.packed
        assert row.tokens[0].tolist() == batch.tree.tokens[part.places].tolist()
        assert row.depth_positions[0].tolist() == batch.tree.depth_positions[part.places].tolist()
        own = part.part.targets
        assert (part.places[own.predictors] == batch.targets.predictors[part.part.places]).all()
        assert (own.tokens == batch.targets.tokens[part.part.places]).all()
        assert (own.edge_weights == batch.targets.edge_weights[part.part.edges]).all()
    trained = [place for part in parts for place in part.part.places.tolist()]
    assert sorted(trained) == list(range(len(batch.targets)))


@given(ROWS, st.integers(1, 12))
def test_what_a_row_reads_is_what_earlier_rows_keep(rows, capacity):
    batch = pack(rows)
    parts = cut_batch(batch, partition_tree(batch.tree, capacity))
    before = batch.tree.predecessors
    for number, part in enumerate(parts):
        read = []
        for owner, kept in part.ancestors:
            assert owner < number
            rows_of_owner = np.concatenate([np.r_[rows] for rows in parts[owner].kept])
            read += parts[owner].places[rows_of_owner[kept]].tolist()
        # The path to the deepest place where the row hangs, from the predecessors alone.
        own = set(part.places.tolist())
        paths = []
        for place in part.places.tolist():
            path, token = [], int(before[place])
            while token >= 0:
                if token not in own:
                    path.append(token)
                token = int(before[token])
            paths.append(path[::-1])
        longest = max(paths, key=len, default=[])
        assert read == longest
        assert part.packed.ancestors == len(read)
        assert all(path == longest[: len(path)] for path in paths)
