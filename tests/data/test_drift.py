from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treetrain.data.drift import NO_CHARACTER, common_length, find_drift

TEXTS = {1: "a", 2: "b", 3: "ab", 4: "c", 5: NO_CHARACTER}


def decode(ids: list[int]) -> str:
    return "".join(TEXTS[token] for token in ids)


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


short_lists = st.lists(st.integers(1, 4), max_size=6)


@given(short_lists, short_lists)
def test_there_is_a_drift_unless_the_one_begins_with_the_other(recorded, again):
    drift = find_drift(ids(*recorded), ids(*again), decode, source="f:1")
    assert (drift is None) == (again[: len(recorded)] == recorded)
    if drift is not None:
        assert recorded[: drift.place] == again[: drift.place]
        assert recorded[drift.place] not in again[drift.place : drift.place + 1]
        assert drift.lost == len(recorded) - drift.place > 0


@given(short_lists, short_lists)
def test_the_kind_says_whether_the_text_goes_on_alike(recorded, again):
    drift = find_drift(ids(*recorded), ids(*again), decode, source="f:1")
    if drift is not None:
        same = decode(again).startswith(decode(recorded))
        assert drift.kind == ("re-tokenised" if same else "re-rendered")


def test_pieces_stand_around_the_place():
    recorded, again = [4] * 20 + [1, 2] * 10, [4] * 20 + [3] * 10
    drift = find_drift(ids(*recorded), ids(*again), decode, source="f:1")
    assert drift is not None
    assert (drift.place, drift.length, drift.lost) == (20, 40, 20)
    assert drift.before.tolist() == [4] * 6
    assert drift.recorded.tolist() == [1, 2, 1, 2, 1, 2]
    assert drift.again.tolist() == [3] * 6


def test_a_character_cut_off_at_the_end_is_no_other_text():
    drift = find_drift(ids(1, 2, 5), ids(3, 4), decode, source="f:1")
    assert drift is not None
    assert drift.kind == "re-tokenised"


@pytest.mark.parametrize(("one", "other", "common"), [([], [], 0), ([1], [], 0), ([1, 2], [1], 1)])
def test_common_length_ends_with_the_shorter(one, other, common):
    assert common_length(ids(*one), ids(*other)) == common == common_length(ids(*other), ids(*one))
