"""How the `slices` backend groups a tree's visibility into kernel calls.

Packed order is cut into tiles of consecutive queries: a long run by itself, or several short runs
together, since a kernel call costs as much as a few thousand pairs. Every tile gets one local call
(its own tokens, with the ancestors that only some of its rows see) and shares with its neighbours
full calls for the ancestors that all rows see. With a window or a chunk long runs are cut too, and
keys outside are never touched. Ancestors that a partition reads through its gateway are keys alone.
Everything here is host-side numpy; nothing depends on a model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from treetrain.tree.prefix_tree import Ints, PrefixTree
from treetrain.tree.runs import Runs, find_runs

#: A run of this many tokens or more is a tile of its own.
LONG_RUN = 96
#: Short runs are gathered into tiles of at most this many queries.
TILE_ROWS = 128
#: What one kernel call costs, in (query, key) pairs, when the gathering of short runs is weighed.
CALL_COST = 4096

Interval = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Call:
    """One kernel call: queries of one interval against keys of some intervals.

    Attributes:
        q_start: packed index of the first query.
        q_end: packed index one past the last query.
        keys: disjoint intervals of packed indices, ascending.
        causal: whether queries and keys are the same interval and only key <= query counts.
        visible: which pairs count, bool [queries, keys]; None for all (or the causal ones).
        local: whether the call holds each query's own token; exactly one call per query does.
    """

    q_start: int
    q_end: int
    keys: tuple[Interval, ...]
    causal: bool
    visible: np.ndarray | None
    local: bool

    @property
    def pairs(self) -> int:
        """Number of (query, key) pairs the kernel computes, masked ones included."""
        queries = self.q_end - self.q_start
        if self.causal:
            return queries * (queries + 1) // 2
        return queries * sum(end - start for start, end in self.keys)


def plan_calls(
    tree: PrefixTree, *, window: int | None = None, chunk: int | None = None, ancestors: int = 0
) -> list[Call]:
    """Group a tree's visibility into kernel calls.

    Args:
        tree: the prefix tree, any number of roots.
        window: depth positions a query reads back, itself included; None for all.
        chunk: size of the blocks of depth positions that do not read each other; None for one
            block.
        ancestors: tokens at the front of the tree, one path from a root, that are keys and no
            queries.

    Returns:
        The calls, local ones first in packed order. Together they hold every visible pair of a
        query behind the ancestors once and no other unmasked pair.
    """
    lowest = _lowest_depths(tree.depth_positions, window, chunk)
    # Subtree ends fall along a path; their negatives rise, as a binary search wants them.
    rising = -tree.token_subtree_ends
    runs = find_runs(tree)
    tiles = _tile_runs(tree, runs, ancestors)
    if lowest is not None:
        reach = min(size for size in (window, chunk) if size is not None)
        tiles = _cut_tiles(tiles, rows=min(max(reach // 2, 32), 256))
    local: list[Call] = []
    full: list[Call] = []
    masks: dict[bytes, np.ndarray] = {}
    shared: dict[Interval, int] = {}
    for start, end in tiles:
        seen_by_all, seen_by_some = _split_ancestors(
            tree, runs, (start, end), lowest=lowest, rising=rising
        )
        local.append(_local_call(tree, (start, end), seen_by_some, lowest=lowest, masks=masks))
        still_shared: dict[Interval, int] = {}
        for keys in seen_by_all:
            if keys in shared:
                place = shared[keys]
                full[place] = Call(full[place].q_start, end, (keys,), False, None, False)
            else:
                place = len(full)
                full.append(Call(start, end, (keys,), False, None, False))
            still_shared[keys] = place
        shared = still_shared
    return local + full


def _lowest_depths(depths: Ints, window: int | None, chunk: int | None) -> Ints | None:
    """Lowest depth position each token may read, [T]; None where nothing is cut off."""
    lowest = np.zeros_like(depths)
    if window is not None:
        lowest = np.maximum(lowest, depths - window + 1)
    if chunk is not None:
        lowest = np.maximum(lowest, depths // chunk * chunk)
    return lowest if lowest.any() else None


def _tile_runs(tree: PrefixTree, runs: Runs, ancestors: int) -> list[Interval]:
    """Cut packed order behind the ancestors into tiles of whole runs, or of what is left of one.

    A short run joins the tile before it where the pairs this wastes cost less than two calls.
    """
    depths = tree.depth_positions
    branch_depths = np.where(runs.parents >= 0, depths[np.maximum(runs.branch_ends - 1, 0)] + 1, 0)
    if ancestors and len(runs):
        # What is left of the ancestors' own run hangs from the last of them.
        branch_depths[0] = ancestors
    starts = np.maximum(runs.starts, ancestors)
    tiles: list[Interval] = []
    open_start = -1
    first_seen = rows = first_run = 0
    seen: dict[int, int] = {}
    for run, (start, length, parent, branch_end, branch_depth) in enumerate(
        zip(
            starts.tolist(),
            (runs.ends - starts).tolist(),
            runs.parents.tolist(),
            runs.branch_ends.tolist(),
            branch_depths.tolist(),
            strict=True,
        )
    ):
        end = start + length
        if length <= 0:
            continue
        if length >= LONG_RUN:
            if open_start >= 0:
                tiles.append((open_start, start))
                open_start = -1
            tiles.append((start, end))
            continue
        if open_start >= 0:
            # Keys before the tile that this run sees: a run hanging inside the tile sees its
            # parent's.
            before = branch_depth if branch_end <= open_start else seen[parent]
            wasted = length * (first_seen - before) + 2 * rows * length
            if rows + length <= TILE_ROWS and wasted <= 2 * CALL_COST:
                seen[run] = before
                rows += length
                continue
            tiles.append((open_start, start))
        open_start, first_seen, rows, first_run = start, branch_depth, length, run
        seen = {first_run: branch_depth}
    if open_start >= 0:
        tiles.append((open_start, tree.num_tokens))
    return tiles


def _cut_tiles(tiles: list[Interval], *, rows: int) -> list[Interval]:
    """Cut tiles into pieces of at most `rows` queries."""
    return [
        (piece, min(piece + rows, end)) for start, end in tiles for piece in range(start, end, rows)
    ]


def _split_ancestors(
    tree: PrefixTree, runs: Runs, tile: Interval, *, lowest: Ints | None, rising: Ints
) -> tuple[list[Interval], list[Interval]]:
    """Split the keys before a tile into those all its rows see and those only some see.

    The keys before a tile that any row sees are ancestors of its first token, and along that path
    subtree ends only shrink, so each kind is one stretch of the path.
    """
    start, end = tile
    deepest_cut = highest_cut = 0
    if lowest is not None:
        deepest_cut = int(lowest[start:end].max())
        highest_cut = int(lowest[start:end].min())
    seen_by_all: list[Interval] = []
    seen_by_some: list[Interval] = []
    run = int(np.searchsorted(runs.starts, start, side="right")) - 1
    keys_end = start
    while run >= 0:
        keys_start = int(runs.starts[run])
        if keys_end > keys_start:
            first_depth = int(tree.depth_positions[keys_start])
            keys_start += max(0, highest_cut - first_depth)
            if keys_start >= keys_end:
                break
            ends = rising[keys_start:keys_end]
            all_end = keys_start + int(np.searchsorted(ends, -end, side="right"))
            all_start = keys_start + max(0, deepest_cut - int(tree.depth_positions[keys_start]))
            if all_start < all_end:
                if keys_start < all_start:
                    seen_by_some.append((keys_start, all_start))
                seen_by_all.append((all_start, all_end))
                keys_start = all_end
            if keys_start < keys_end:
                seen_by_some.append((keys_start, keys_end))
        keys_end = int(runs.branch_ends[run])
        run = int(runs.parents[run])
    if lowest is not None:
        # Few keys are not worth a call and a merge of their own.
        few = [keys for keys in seen_by_all if keys[1] - keys[0] < 4 * (end - start)]
        seen_by_all = [keys for keys in seen_by_all if keys not in few]
        seen_by_some += few
    return seen_by_all, sorted(seen_by_some)


def _local_call(
    tree: PrefixTree,
    tile: Interval,
    ancestors: list[Interval],
    *,
    lowest: Ints | None,
    masks: dict[bytes, np.ndarray],
) -> Call:
    start, end = tile
    intervals = _join([*ancestors, tile])
    keys = np.concatenate([np.arange(first, last) for first, last in intervals])
    queries = np.arange(start, end)
    single_run = not ancestors and int(tree.token_subtree_ends[start:end].min()) >= end
    if single_run and (lowest is None or lowest[end - 1] <= tree.depth_positions[start]):
        return Call(start, end, intervals, True, None, True)
    visible = (keys[None, :] <= queries[:, None]) & (
        queries[:, None] < tree.token_subtree_ends[keys][None, :]
    )
    if lowest is not None:
        visible &= tree.depth_positions[keys][None, :] >= lowest[queries][:, None]
    content = np.packbits(visible).tobytes() + repr(visible.shape).encode()
    return Call(start, end, intervals, False, masks.setdefault(content, visible), True)


def _join(intervals: list[Interval]) -> tuple[Interval, ...]:
    """Join ascending intervals that touch."""
    joined: list[Interval] = []
    for start, end in intervals:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return tuple(joined)
