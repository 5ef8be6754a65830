"""What every reader owes, on a few altered files; `make fuzz` tries a hundred thousand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.readers import all_readers, alter_for, check_in_new_folder

each_reader = pytest.mark.parametrize("reader", list(all_readers()), ids=lambda reader: reader.name)


@each_reader
def test_a_right_file_is_read(reader):
    for seed in reader.seeds:
        outcome = check_in_new_folder(reader, seed)
        assert outcome is not None
        assert outcome.told is None or "selected by" in outcome.told


@each_reader
@settings(max_examples=15)
@given(data=st.data())
def test_an_altered_file_is_told_by_name_or_accounted_for(reader, data):
    seed = data.draw(st.sampled_from(reader.seeds))
    random = data.draw(st.randoms(use_true_random=False))
    check_in_new_folder(reader, alter_for(reader, seed, random))
