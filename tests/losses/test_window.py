from __future__ import annotations

from treetrain.data.sample import Sample
from treetrain.losses.window import LossWindow, WeightSum, measure_window
from treetrain.packing.batch import pack

ROWS = [
    Sample([1, 2, 3], [5, 0.5, 2], trajectory="x"),
    Sample([1, 2], [0, 0], trajectory="y"),
    Sample([1, 2, 4], [0, 0, -1], group="b", trajectory="x"),
    Sample([7]),
    Sample([]),
]


def test_sums_count_edges_and_leave_out_first_tokens():
    window = measure_window([pack(ROWS)])
    assert window.sequences == 5
    assert window.weights == WeightSum(1.5, 3)
    assert window.unnamed == 2
    assert window.trajectories == {
        (None, "x"): WeightSum(2.5, 2),
        (None, "y"): WeightSum(0.0, 0),
        ("b", "x"): WeightSum(-1.0, 1),
    }
    assert window.num_trajectories == 5


def test_windows_add_as_their_batches_do():
    parts = [pack(ROWS[:1]), pack([*ROWS[1:], ROWS[0]])]
    whole = measure_window([pack([*ROWS, ROWS[0]])])
    assert measure_window(parts) == whole
    assert measure_window(parts[:1]) + measure_window(parts[1:]) == whole
    assert LossWindow() + whole == whole


def test_no_batches_make_an_empty_window():
    assert measure_window([]) == LossWindow()
