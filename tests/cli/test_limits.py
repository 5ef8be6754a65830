from __future__ import annotations

import numpy as np
import pytest

from treetrain.cli.limits import limit_to_shared, limit_tokens
from treetrain.data.sample import Sample


def sample(tokens, group="a", *, trained=True):
    return Sample(np.array(tokens), np.full(len(tokens), float(trained)), group=group)


ALONE = [sample([n, 50, 51, 52], group=f"alone {n}") for n in range(4)]
SHARING = [sample([1, 2, 3, 4, n], group="b") for n in (5, 6, 7)]


def test_sequences_that_branch_are_taken_before_those_in_front():
    samples = [*ALONE, *SHARING]
    assert limit_tokens(samples, 12)[0] == ALONE[:3]
    kept, notes = limit_to_shared(samples, 10)
    assert kept == SHARING[:2]
    assert notes == [
        "limit of 10 flat tokens, those that share first: 2 of 7 sequences, 10 of 31 flat tokens, "
        "1 of 5 groups; the others were left out"
    ]


def test_room_that_is_left_goes_to_others_from_the_front():
    kept, _ = limit_to_shared([*ALONE, *SHARING], 20)
    assert kept == [ALONE[0], *SHARING]


def test_without_a_need_to_cut_nothing_is_said_and_everything_stays():
    samples = [*ALONE, *SHARING]
    assert limit_to_shared(samples, 31) == (samples, [])
    assert limit_to_shared(samples, None) == (samples, [])


def test_sequences_that_train_nothing_come_last():
    silent = [sample([1, 2, 9, n], group="b", trained=False) for n in (5, 6)]
    kept, _ = limit_to_shared([*silent, *SHARING], 10)
    assert kept == SHARING[:2]


@pytest.mark.parametrize(
    ("samples", "way_out"),
    [
        ([*ALONE, *SHARING], "two do from a limit of 10 on"),
        (ALONE, "none of the file do"),
    ],
)
def test_a_limit_under_which_nothing_branches_is_named(samples, way_out):
    _, notes = limit_to_shared(samples, 9)
    assert notes[1].startswith("no two of the sequences taken share a prefix and branch")
    assert notes[1].endswith(way_out)


def test_a_limit_below_the_shortest_sequence_is_refused():
    with pytest.raises(ValueError, match="shortest sequence, 4, got 3"):
        limit_to_shared([*ALONE, *SHARING], 3)
