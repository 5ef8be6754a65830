"""Partitions against the rules of a division, rebuilt here from paths alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from benchmarks import shapes
from hypothesis import given
from hypothesis import strategies as st
from tests.tree.paths import paths_of

from treetrain.errors import CapacityError
from treetrain.testing.trees import random_forest, tree_family
from treetrain.tree.build import build_prefix_tree, concatenate_trees
from treetrain.tree.nodes import build_from_nodes
from treetrain.tree.partition import Partitions, partition_tree
from treetrain.tree.prefix_tree import PrefixTree

SEQUENCES = st.lists(st.lists(st.integers(0, 1), max_size=9), min_size=1, max_size=9)
CAPACITIES = st.integers(1, 12)
LIMITS = st.none() | st.integers(1, 6)


def owners_of(partitions: Partitions) -> list[int]:
    """Partition of each packed token."""
    return partitions.node_partitions[partitions.tree.token_nodes].tolist()


def cut_tokens(paths: list[list[int]], owners: list[int], partition: int) -> set[int]:
    return {
        path[-2]
        for path in paths
        if owners[path[-1]] == partition and len(path) > 1 and owners[path[-2]] != partition
    }


def check_division(tree: PrefixTree, partitions: Partitions) -> None:
    """Every rule that a division has to keep."""
    paths, owners = paths_of(tree), owners_of(partitions)
    count = partitions.num_partitions
    assert len(owners) == tree.num_tokens
    assert sorted(set(owners)) == list(range(count))
    assert partitions.sizes.tolist() == [owners.count(index) for index in range(count)]
    assert max(partitions.sizes, default=0) <= partitions.capacity
    limit = partitions.path_capacity or partitions.capacity
    chains = partition_chains(partitions)
    for index in range(count):
        inside = [sum(owners[q] == index for q in path) for path in paths]
        assert partitions.heights[index] == max(inside) <= limit
        cuts = cut_tokens(paths, owners, index)
        deepest = max(cuts, key=lambda token: len(paths[token]), default=None)
        path = [] if deepest is None else paths[deepest]
        assert cuts <= set(path)
        assert partitions.gateway_sizes[index] == len(path)
        assert partitions.parents[index] == (-1 if deepest is None else owners[deepest])
        # All of the gateway lies above, so that it has run before.
        assert {owners[token] for token in path} <= set(chains[index][:-1])
        assert partitions.path_sizes[index] == partitions.sizes[chains[index]].sum()
    assert partitions.peak == max(partitions.path_sizes, default=0)
    assert partitions.num_cuts == sum(
        len({path[-1] for path in paths if len(path) > 1 and owners[path[-1]] == index
             and owners[path[-2]] != index})
        for index in range(count)
    )  # fmt: skip


def partition_chains(partitions: Partitions) -> list[list[int]]:
    """The partitions above each and itself; each comes after its parent, in one interval."""
    chains: list[list[int]] = []
    for index, parent in enumerate(partitions.parents.tolist()):
        assert -1 <= parent < index
        chains.append([*(chains[parent] if parent >= 0 else []), index])
        if parent >= 0:
            assert all(parent in chains[between] for between in range(parent, index))
    return chains


@given(SEQUENCES, CAPACITIES, LIMITS, st.none() | st.integers(1, 30))
def test_each_division_keeps_the_rules(
    sequences: list[list[int]], capacity: int, path_capacity: int | None, peak: int | None
) -> None:
    tree = build_prefix_tree(sequences)
    partitions = partition_tree(tree, capacity, path_capacity=path_capacity, peak_capacity=peak)
    check_division(tree, partitions)
    assert partitions.lower_bound <= partitions.num_partitions


@pytest.mark.parametrize("name", tree_family())
@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 8, 13, 21, 64])
def test_the_family_keeps_the_rules(name: str, capacity: int) -> None:
    tree = build_prefix_tree(tree_family()[name])
    for path_capacity in (None, 1, 3, 10):
        check_division(tree, partition_tree(tree, capacity, path_capacity=path_capacity))


def test_random_forests_keep_the_rules() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        children, roots = int(rng.integers(2, 7)), int(rng.integers(1, 6))
        tree = build_prefix_tree(
            random_forest(rng, roots=roots, depth=5, children=children, node_tokens=6)
        )
        capacity = int(rng.integers(1, 60))
        limit = None if rng.random() < 0.5 else int(rng.integers(1, 20))
        check_division(tree, partition_tree(tree, capacity, path_capacity=limit))


@given(SEQUENCES, CAPACITIES, LIMITS)
def test_refined_tree_holds_the_same_sequences(
    sequences: list[list[int]], capacity: int, path_capacity: int | None
) -> None:
    tree = build_prefix_tree(sequences)
    refined = partition_tree(tree, capacity, path_capacity=path_capacity).tree
    for name in ("tokens", "depth_positions", "token_subtree_ends", "token_path_counts",
                 "predecessors"):  # fmt: skip
        assert getattr(refined, name).tolist() == getattr(tree, name).tolist(), name
    for index, sequence in enumerate(sequences):
        assert refined.tokens[refined.positions(index)].tolist() == sequence
        assert refined.positions(index).tolist() == tree.positions(index).tolist()


@given(SEQUENCES, CAPACITIES, LIMITS)
def test_a_tree_that_fits_is_one_partition(
    sequences: list[list[int]], capacity: int, path_capacity: int | None
) -> None:
    tree = build_prefix_tree(sequences)
    depth = int(tree.sequence_lengths.max())
    fits = tree.num_tokens <= capacity and depth <= (path_capacity or capacity)
    partitions = partition_tree(tree, capacity, path_capacity=path_capacity)
    if tree.num_tokens:
        assert (partitions.num_partitions == 1) == fits
        assert (partitions.lower_bound == 1) == fits
    if fits:
        assert partitions.tree.num_nodes == tree.num_nodes


def divisions(count: int) -> Iterator[list[int]]:
    """All ways to put `count` tokens into groups, as the group of each."""

    def extend(groups: list[int]) -> Iterator[list[int]]:
        if len(groups) == count:
            yield groups
            return
        for group in range(max(groups, default=-1) + 2):
            yield from extend([*groups, group])

    yield from extend([])


def fewest_partitions(tree: PrefixTree, capacity: int, path_capacity: int) -> int:
    """Fewest partitions of all ways to divide the tokens that keep the rules."""
    paths = paths_of(tree)
    best = tree.num_tokens
    for owners in divisions(tree.num_tokens):
        count = max(owners) + 1
        if count < best and _is_allowed(paths, owners, capacity, path_capacity):
            best = count
    return best


def _is_allowed(paths: list[list[int]], owners: list[int], capacity: int, limit: int) -> bool:
    count = max(owners) + 1
    parents: list[int] = []
    for index in range(count):
        if owners.count(index) > capacity:
            return False
        if max(sum(owners[q] == index for q in path) for path in paths) > limit:
            return False
        cuts = cut_tokens(paths, owners, index)
        deepest = max(cuts, key=lambda token: len(paths[token]), default=None)
        if deepest is not None and not cuts <= set(paths[deepest]):
            return False
        parents.append(-1 if deepest is None else owners[deepest])
    return all(_reaches_root(parents, index) for index in range(count))


def _reaches_root(parents: list[int], index: int) -> bool:
    for _ in range(len(parents)):
        index = parents[index]
        if index < 0:
            return True
    return False


@given(
    st.lists(st.lists(st.integers(0, 1), max_size=4), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_lower_bound_is_not_more_than_the_best_of_all_divisions(
    sequences: list[list[int]], capacity: int, path_capacity: int
) -> None:
    tree = build_prefix_tree(sequences)
    if not 0 < tree.num_tokens <= 7:
        return
    partitions = partition_tree(tree, capacity, path_capacity=path_capacity)
    fewest = fewest_partitions(tree, capacity, path_capacity)
    assert partitions.lower_bound <= fewest <= partitions.num_partitions


def grow_tree(rng: np.random.Generator, parents: list[int], lengths: list[int]) -> PrefixTree:
    return build_from_nodes([rng.integers(0, 1 << 30, n).tolist() for n in lengths], parents)


def bushy_tree(rng: np.random.Generator, *, tokens: int, children: int, depth: int) -> PrefixTree:
    parents, layer = [-1], [0]
    for _ in range(depth - 1):
        layer = [len(parents) + place for place in range(len(layer) * children)]
        parents += [(node - 1) // children for node in layer]
    return grow_tree(rng, parents, [tokens] * len(parents))


@cache
def shaped_trees() -> dict[str, PrefixTree]:
    rng = np.random.default_rng(3)
    vocabulary = 1 << 30
    makers = (shapes.grpo, shapes.think_strip_comb, shapes.per_step_chain, shapes.random_forest,
              shapes.single_path, shapes.long_comb)  # fmt: skip
    trees = {make.__name__: build_prefix_tree(make(rng, vocabulary)) for make in makers}
    for leaf in (8, 64, 300):
        trees[f"star_{leaf}"] = build_prefix_tree(shapes.star(rng, vocabulary, leaf=leaf))
    trees["bushy"] = bushy_tree(rng, tokens=50, children=5, depth=5)
    trees["binary"] = bushy_tree(rng, tokens=37, children=2, depth=9)
    trees["forest"] = concatenate_trees(
        [bushy_tree(rng, tokens=40, children=3, depth=3) for _ in range(100)]
    )
    above = [-1] + [int(rng.integers(0, node)) for node in range(1, 1000)]
    trees["random"] = grow_tree(rng, above, rng.integers(1, 60, 1000).tolist())
    return trees


@pytest.mark.parametrize("capacity", [64, 128, 512, 2048])
@pytest.mark.parametrize("name", shaped_trees())
def test_partitions_are_few_and_their_peak_is_near_the_depth(name: str, capacity: int) -> None:
    tree = shaped_trees()[name]
    partitions = partition_tree(tree, capacity)
    assert partitions.sizes.max() <= capacity
    assert partitions.sizes.sum() == tree.num_tokens
    assert partitions.num_partitions <= partitions.lower_bound * 6 / 5 + 1
    # One partition beside the path at each of few levels; a path alone needs the depth.
    depth = int(tree.depth_positions.max()) + 1
    assert partitions.peak <= depth + 5 * capacity
    flat = partition_tree(tree, capacity, peak_capacity=1)
    assert flat.peak <= depth + 5 / 2 * capacity
    assert flat.peak <= partitions.peak


def test_a_peak_that_can_be_kept_is_kept() -> None:
    tree = shaped_trees()["bushy"]
    full, flat = partition_tree(tree, 512), partition_tree(tree, 512, peak_capacity=1)
    assert flat.peak < full.peak
    assert full.num_partitions < flat.num_partitions
    between = partition_tree(tree, 512, peak_capacity=full.peak - 1)
    assert between.peak < full.peak
    assert full.num_partitions < between.num_partitions <= flat.num_partitions
    assert partition_tree(tree, 512, peak_capacity=10**6).num_partitions == full.num_partitions


def test_roots_of_many_trees_share_partitions() -> None:
    # Each tree is a little larger than a partition: what is left of all of them fits in two.
    partitions = partition_tree(shaped_trees()["forest"], 512)
    assert partitions.num_partitions == 102
    assert partitions.peak <= 2 * 512


def test_partitions_are_even() -> None:
    sizes = partition_tree(build_prefix_tree([list(range(1025))]), 512).sizes
    assert len(sizes) == 3
    assert sizes.max() <= 400


def test_a_star_above_its_capacity_divides_leaves_rather_than_wasting_room() -> None:
    rng = np.random.default_rng(4)
    tree = grow_tree(rng, [-1] + [0] * 100, [1] + [300] * 100)
    partitions = partition_tree(tree, 512)
    assert partitions.num_partitions <= 1.1 * partitions.lower_bound


def test_a_path_deeper_than_the_recursion_limit_is_divided() -> None:
    count = 3 * sys.getrecursionlimit()
    path = [[node] for node in range(count)]
    # One token a node: at each, a leaf parts.
    parents = list(range(-1, count - 1)) + list(range(count))
    tree = build_from_nodes([*path, *([[count]] * count)], parents)
    for capacity in (1, 50, 10**6):
        partitions = partition_tree(tree, capacity)
        assert partitions.sizes.sum() == tree.num_tokens
    assert partitions.num_partitions == 1


def test_large_trees_are_divided() -> None:
    rng = np.random.default_rng(5)
    path = partition_tree(build_prefix_tree([rng.integers(0, 99, 200_000)]), 512)
    assert path.num_partitions == path.lower_bound == 391
    above = [-1] + [int(rng.integers(0, node)) for node in range(1, 10_000)]
    tree = grow_tree(rng, above, rng.integers(1, 20, 10_000).tolist())
    assert partition_tree(tree, 512).num_partitions <= 1.2 * -(-tree.num_tokens // 512)


@pytest.mark.parametrize("sequences", [[[]], [[], []], [[], [3]], [[3]]])
def test_trees_of_one_token_or_none(sequences: list[list[int]]) -> None:
    tree = build_prefix_tree(sequences)
    partitions = partition_tree(tree, 1, path_capacity=1)
    assert partitions.num_partitions == partitions.lower_bound == tree.num_tokens
    assert partitions.peak == partitions.sizes.sum() == tree.num_tokens
    assert partitions.parents.tolist() == [-1] * tree.num_tokens
    assert partitions.num_cuts == 0
    assert partitions.tree.num_sequences == len(sequences)


def test_arrays_are_int64_and_read_only() -> None:
    partitions = partition_tree(build_prefix_tree([[1, 2, 3], [1, 4]]), 2)
    for name in ("node_partitions", "parents", "sizes", "heights", "gateway_sizes", "path_sizes",
                 "piece_heads", "descendant_ends"):  # fmt: skip
        array = getattr(partitions, name)
        assert array.dtype == np.int64, name
        assert not array.flags.writeable, name


def test_capacities_are_whole_numbers_of_tokens() -> None:
    tree = build_prefix_tree([[1, 2]])
    with pytest.raises(CapacityError, match="capacity must be at least 1 token, got 0"):
        partition_tree(tree, 0)
    with pytest.raises(CapacityError, match="path_capacity must be at least 1 token, got -3"):
        partition_tree(tree, 4, path_capacity=-3)
    with pytest.raises(CapacityError, match="peak_capacity must be at least 1 token, got 0"):
        partition_tree(tree, 4, peak_capacity=0)
    with pytest.raises(TypeError, match="capacity must be an integer, got float"):
        partition_tree(tree, 2.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="path_capacity must be an integer, got bool"):
        partition_tree(tree, 2, path_capacity=True)
    with pytest.raises(TypeError, match="tree must be a PrefixTree"):
        partition_tree([[1, 2]], 2)  # type: ignore[arg-type]
