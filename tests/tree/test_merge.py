from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treetrain.tree.merge import merge_tokens


@given(st.data(), st.integers(1, 14), st.booleans())
def test_tokens_merge_exactly_where_whole_paths_are_equal(
    data: st.DataObject, count: int, keyed: bool
) -> None:
    tokens = [data.draw(st.integers(0, 1)) for _ in range(count)]
    keys = [data.draw(st.integers(-1, 0)) if keyed else 0 for _ in range(count)]
    before = [data.draw(st.integers(-1, place - 1)) for place in range(count)]
    paths: list[tuple[tuple[int, int], ...]] = []
    for place in range(count):
        above = paths[before[place]] if before[place] >= 0 else ()
        paths.append((*above, (tokens[place], keys[place])))
    kept, parents, entries = merge_tokens(
        np.array(tokens), np.array(keys) if keyed else None, np.array(before)
    )
    assert sorted(paths[k] for k in kept) == sorted(set(paths))
    assert all(paths[kept[entry]] == path for entry, path in zip(entries, paths, strict=False))
    assert entries[-1] == -1
    for place, parent in enumerate(parents):
        assert parent < place
        assert (paths[kept[parent]] if parent >= 0 else ()) == paths[kept[place]][:-1]
