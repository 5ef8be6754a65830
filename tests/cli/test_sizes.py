from __future__ import annotations

import pytest

from treetrain.cli.sizes import read_size, say_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 * 2**30),
        ("24GB", 24 * 10**9),
        ("512MiB", 2**29),
        ("1.5 TiB", 3 * 2**39),
        ("7kb", 7000),
        ("100B", 100),
        ("4096", 4096),
    ],
)
def test_sizes(text, size):
    assert read_size("--memory", text) == size


@pytest.mark.parametrize("text", ["", "GiB", "80 Gi", "-1GB", "1e3", "0", "0.2B", "eighty"])
def test_what_is_no_size_is_refused_with_examples(text):
    with pytest.raises(ValueError, match="--memory must be a size such as 80GiB, 24GB or 512MiB"):
        read_size("--memory", text)


def test_what_is_said_can_be_read():
    for size in (3, 4096, 3 * 2**29, 5 * 2**40):
        assert read_size("--memory", say_size(size)) == size
