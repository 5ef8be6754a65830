from __future__ import annotations

import subprocess
import sys

import pytest

import treetrain


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_neither_torch_nor_transformers() -> None:
    code = "import sys, treetrain; print({'torch', 'transformers'} & set(sys.modules))"
    assert run_python(code) == "set()"


def test_tree_and_data_load_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from treetrain import ModelShape, PrefixTree, Sample, build_prefix_tree, "
        "measure_tree, read_samples;"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    assert run_python(code) == "set()"


@pytest.mark.parametrize("name", treetrain.__all__)
def test_every_public_name_loads(name: str) -> None:
    assert getattr(treetrain, name) is not None


def test_dir_lists_the_public_names() -> None:
    assert set(treetrain.__all__) == set(dir(treetrain))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_that_name'"):
        treetrain.nothing_of_that_name  # noqa: B018
