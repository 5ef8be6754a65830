"""Train a language model on sequences that share prefixes, every shared token computed once.

The names below are loaded when they are first asked for: `import treetrain` loads neither torch nor
transformers, so that reading data and building trees stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treetrain.data.rows import read_samples
    from treetrain.data.sample import Sample
    from treetrain.errors import CapacityError, EquivalenceError, UnsupportedModelError
    from treetrain.losses.logprobs import sequence_logprobs, sequence_logprobs_and_entropies
    from treetrain.losses.policy import PolicyLoss, policy_loss
    from treetrain.losses.sft import sft_loss
    from treetrain.losses.window import LossWindow, measure_window
    from treetrain.models.prepare import PreparedModel, find_prepared, prepare
    from treetrain.packing.batch import Batch, pack
    from treetrain.packing.budget import pack_batches
    from treetrain.packing.recover import recover_sequences
    from treetrain.tree.build import build_prefix_tree, concatenate_trees
    from treetrain.tree.metrics import ModelShape, flop_bound, measure_tree
    from treetrain.tree.nodes import build_from_nodes
    from treetrain.tree.prefix_tree import PrefixTree
    from treetrain.verification.own_samples import make_samples_for
    from treetrain.verification.verify import verify

__version__ = "0.1.0"

_HOMES = {
    "Batch": "packing.batch",
    "CapacityError": "errors",
    "EquivalenceError": "errors",
    "LossWindow": "losses.window",
    "ModelShape": "tree.metrics",
    "PolicyLoss": "losses.policy",
    "PrefixTree": "tree.prefix_tree",
    "PreparedModel": "models.prepare",
    "Sample": "data.sample",
    "UnsupportedModelError": "errors",
    "build_from_nodes": "tree.nodes",
    "build_prefix_tree": "tree.build",
    "concatenate_trees": "tree.build",
    "find_prepared": "models.prepare",
    "flop_bound": "tree.metrics",
    "make_samples_for": "verification.own_samples",
    "measure_tree": "tree.metrics",
    "measure_window": "losses.window",
    "pack": "packing.batch",
    "pack_batches": "packing.budget",
    "policy_loss": "losses.policy",
    "prepare": "models.prepare",
    "read_samples": "data.rows",
    "recover_sequences": "packing.recover",
    "sequence_logprobs": "losses.logprobs",
    "sequence_logprobs_and_entropies": "losses.logprobs",
    "sft_loss": "losses.sft",
    "verify": "verification.verify",
}

__all__ = [
    "Batch",
    "CapacityError",
    "EquivalenceError",
    "LossWindow",
    "ModelShape",
    "PolicyLoss",
    "PrefixTree",
    "PreparedModel",
    "Sample",
    "UnsupportedModelError",
    "__version__",
    "build_from_nodes",
    "build_prefix_tree",
    "concatenate_trees",
    "find_prepared",
    "flop_bound",
    "make_samples_for",
    "measure_tree",
    "measure_window",
    "pack",
    "pack_batches",
    "policy_loss",
    "prepare",
    "read_samples",
    "recover_sequences",
    "sequence_logprobs",
    "sequence_logprobs_and_entropies",
    "sft_loss",
    "verify",
]


def __getattr__(name: str) -> object:
    """Loads a public name from the file it lives in.

    Args:
        name: one of `__all__`.

    Returns:
        The function or class.

    Raises:
        AttributeError: the package has no such name.
    """
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'treetrain' has no attribute {name!r}")
    value = getattr(import_module(f"treetrain.{home}"), name)
    globals()[name] = value  # the next use finds it without this function
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
