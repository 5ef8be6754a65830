from __future__ import annotations

from treetrain.tree.prefix_tree import PrefixTree


def paths_of(tree: PrefixTree) -> list[list[int]]:
    """Packed indices on the way from a root to each token, itself included, from the sequences."""
    paths: list[list[int]] = [[] for _ in range(tree.num_tokens)]
    for sequence in range(tree.num_sequences):
        path = tree.positions(sequence).tolist()
        for place, token in enumerate(path):
            paths[token] = path[: place + 1]
    return paths
