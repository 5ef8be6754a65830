"""Train a language model on sequences that share prefixes, every shared token computed once.

The names below are loaded when they are first asked for: `import treetrain` loads neither torch nor
transformers, so that reading data and building trees stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treetrain.data.routes import number_routes
    from treetrain.data.rows import iter_samples, read_samples
    from treetrain.data.sample import Sample
    from treetrain.errors import CapacityError, EquivalenceError, UnsupportedModelError
    from treetrain.losses.load_balancing import measure_choices
    from treetrain.losses.logprobs import sequence_logprobs, sequence_logprobs_and_entropies
    from treetrain.losses.policy import PolicyLoss, policy_loss, policy_terms
    from treetrain.losses.router import expert_counts, router_terms
    from treetrain.losses.router_loss import RouterLoss, RouterTerms
    from treetrain.losses.sft import sft_loss, sft_terms
    from treetrain.losses.terms import LossTerms
    from treetrain.losses.values import sequence_values, token_values
    from treetrain.losses.window import LossWindow, measure_window
    from treetrain.models.prepare import prepare
    from treetrain.models.prepared import PreparedModel, find_prepared
    from treetrain.models.routers import Routing, record_routing
    from treetrain.packing.batch import Batch, pack
    from treetrain.packing.budget import pack_batches
    from treetrain.packing.recover import recover_sequences
    from treetrain.partitioning.logprobs import partitioned_logprobs
    from treetrain.partitioning.memory import measure_memory
    from treetrain.partitioning.memory_model import MemoryModel
    from treetrain.partitioning.plan import PartitionPlan
    from treetrain.partitioning.planning import plan_partitions
    from treetrain.partitioning.step import PartitionedStep, partitioned_step
    from treetrain.tree.build import build_prefix_tree, concatenate_trees
    from treetrain.tree.metrics import ModelShape, flop_bound, measure_tree
    from treetrain.tree.nodes import build_from_nodes
    from treetrain.tree.partition import partition_tree
    from treetrain.tree.partitions import Partitions
    from treetrain.tree.prefix_tree import PrefixTree
    from treetrain.verification.own_samples import make_samples_for
    from treetrain.verification.verify import verify

__version__ = "0.1.0"

_HOMES = {
    "Batch": "packing.batch",
    "CapacityError": "errors",
    "EquivalenceError": "errors",
    "LossTerms": "losses.terms",
    "LossWindow": "losses.window",
    "MemoryModel": "partitioning.memory_model",
    "ModelShape": "tree.metrics",
    "PartitionPlan": "partitioning.plan",
    "PartitionedStep": "partitioning.step",
    "Partitions": "tree.partitions",
    "PolicyLoss": "losses.policy",
    "PrefixTree": "tree.prefix_tree",
    "PreparedModel": "models.prepared",
    "RouterLoss": "losses.router_loss",
    "RouterTerms": "losses.router_loss",
    "Routing": "models.routers",
    "Sample": "data.sample",
    "UnsupportedModelError": "errors",
    "build_from_nodes": "tree.nodes",
    "build_prefix_tree": "tree.build",
    "concatenate_trees": "tree.build",
    "expert_counts": "losses.router",
    "find_prepared": "models.prepared",
    "flop_bound": "tree.metrics",
    "iter_samples": "data.rows",
    "make_samples_for": "verification.own_samples",
    "measure_choices": "losses.load_balancing",
    "measure_memory": "partitioning.memory",
    "measure_tree": "tree.metrics",
    "measure_window": "losses.window",
    "number_routes": "data.routes",
    "pack": "packing.batch",
    "pack_batches": "packing.budget",
    "partition_tree": "tree.partition",
    "partitioned_logprobs": "partitioning.logprobs",
    "partitioned_step": "partitioning.step",
    "plan_partitions": "partitioning.planning",
    "policy_loss": "losses.policy",
    "policy_terms": "losses.policy",
    "prepare": "models.prepare",
    "read_samples": "data.rows",
    "record_routing": "models.routers",
    "recover_sequences": "packing.recover",
    "router_terms": "losses.router",
    "sequence_logprobs": "losses.logprobs",
    "sequence_logprobs_and_entropies": "losses.logprobs",
    "sequence_values": "losses.values",
    "sft_loss": "losses.sft",
    "sft_terms": "losses.sft",
    "token_values": "losses.values",
    "verify": "verification.verify",
}

__all__ = [
    "Batch",
    "CapacityError",
    "EquivalenceError",
    "LossTerms",
    "LossWindow",
    "MemoryModel",
    "ModelShape",
    "PartitionPlan",
    "PartitionedStep",
    "Partitions",
    "PolicyLoss",
    "PrefixTree",
    "PreparedModel",
    "RouterLoss",
    "RouterTerms",
    "Routing",
    "Sample",
    "UnsupportedModelError",
    "__version__",
    "build_from_nodes",
    "build_prefix_tree",
    "concatenate_trees",
    "expert_counts",
    "find_prepared",
    "flop_bound",
    "iter_samples",
    "make_samples_for",
    "measure_choices",
    "measure_memory",
    "measure_tree",
    "measure_window",
    "number_routes",
    "pack",
    "pack_batches",
    "partition_tree",
    "partitioned_logprobs",
    "partitioned_step",
    "plan_partitions",
    "policy_loss",
    "policy_terms",
    "prepare",
    "read_samples",
    "record_routing",
    "recover_sequences",
    "router_terms",
    "sequence_logprobs",
    "sequence_logprobs_and_entropies",
    "sequence_values",
    "sft_loss",
    "sft_terms",
    "token_values",
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
