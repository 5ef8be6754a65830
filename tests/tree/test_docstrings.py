from __future__ import annotations

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import treetrain.tree

MODULES = [module.name for module in pkgutil.iter_modules(treetrain.tree.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_say_what_happens(name: str) -> None:
    module = importlib.import_module(f"treetrain.tree.{name}")
    names = {public: getattr(treetrain.tree, public) for public in treetrain.tree.__all__}
    done = doctest.testmod(module, extraglobs={**names, "np": np}, report=False)
    assert not done.failed
