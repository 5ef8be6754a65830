from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from treetrain.data.sample import Sample
from treetrain.verification.leaks import alter, check_changes, find_changes

PAIRS = [[1, 2, 10, 11, 20], [1, 2, 10, 11, 21], [1, 2, 12, 13, 22], [1, 2, 12, 13, 23], [7, 8]]


def make_samples(sequences):
    return [Sample(sequence) for sequence in sequences]


def hidden_of_paths(samples):
    """A model whose state at a token is a hash of the path to it, exactly."""
    states = []
    for sample in samples:
        state, own = 1.0, []
        for token in sample.tokens.tolist():
            state = (state * 31 + token + 1) % 1009
            own.append([state, token / 7])
        states.append(torch.tensor(own, dtype=torch.float64).reshape(-1, 2))
    return states


def run(samples, hidden, count=8):
    changes = find_changes(samples, count=count, vocabulary=64)
    checks = check_changes(samples, changes, hidden, tolerance=1e-10)
    return {check.rule: check for check in checks}


def test_a_right_model_passes_every_check_and_every_check_has_places():
    checks = run(make_samples(PAIRS), hidden_of_paths)
    assert all(check.passes for check in checks.values())
    assert all(check.places > 0 for check in checks.values())


def test_each_leak_fails_its_own_check():
    def next_seen(samples):
        return [value + torch.roll(value, -1, 0) * 1e-6 for value in hidden_of_paths(samples)]

    def others_seen(samples):
        total = sum(float(sample.tokens.sum()) for sample in samples)
        return [value + 1e-6 * total for value in hidden_of_paths(samples)]

    def nothing_seen(samples):
        return [value * 0 + 1 for value in hidden_of_paths(samples)]

    samples = make_samples(PAIRS)
    checks = run(samples, next_seen)
    assert not checks["future_child"].passes
    assert not checks["own_target"].passes
    assert checks["sibling"].passes
    checks = run(samples, others_seen)
    assert not checks["sibling"].passes
    assert not checks["other_tree"].passes
    checks = run(samples, nothing_seen)
    assert [rule for rule, check in checks.items() if not check.passes] == ["ancestor"]


def test_not_a_number_is_a_leak():
    calls = []

    def broken(samples):
        calls.append(1)
        scale = float("nan") if len(calls) > 1 else 1.0
        return [value * scale for value in hidden_of_paths(samples)]

    assert not run(make_samples(PAIRS), broken)["sibling"].passes


@given(st.lists(st.lists(st.integers(1, 3), max_size=6), min_size=1, max_size=8))
def test_an_altered_token_changes_its_sequences_alone_and_merges_with_no_sibling(sequences):
    samples = make_samples(sequences)
    for change in find_changes(samples, count=6, vocabulary=64):
        altered = [sample.tokens.tolist() for sample in alter(samples, change)]
        prefix = sequences[change.sequence][: change.place + 1]
        for old, new in zip(sequences, altered, strict=True):
            if old[: change.place + 1] == prefix:
                assert new == [*prefix[:-1], change.token, *old[change.place + 1 :]]
            else:
                assert new == old
                assert old[: change.place + 1] != [*prefix[:-1], change.token]


def test_groups_and_keys_do_not_share_tokens():
    samples = [
        Sample([1, 2, 3], group="a"),
        Sample([1, 2, 3], group="b"),
        Sample([1, 2, 3], group="c", keys=[0, 0, 0]),
        Sample([1, 2, 3], group="c", keys=[0, 1, 0]),
    ]
    for change in find_changes(samples, count=20, vocabulary=64):
        group = samples[change.sequence].group
        assert all(samples[i].group == group for i in change.shared.nonzero()[0])
        if group == "c" and change.place > 0:
            assert change.shared.sum() == 1
