from __future__ import annotations

import pytest
import torch

from treetrain.losses.tree_sums import make_tree_sums
from treetrain.testing.trees import tree_family
from treetrain.tree.build import build_prefix_tree


@pytest.mark.parametrize("name", list(tree_family()))
def test_sums_are_those_of_each_sequence_by_itself(name):
    sequences = tree_family()[name]
    tree = build_prefix_tree(sequences)
    sums = make_tree_sums(tree, "cpu")
    generator = torch.Generator().manual_seed(1)
    experts = torch.randint(0, 5, (tree.num_tokens, 2), generator=generator)
    counts = sums.count_choices(experts, 5)
    owners = [index for index, row in enumerate(sequences) if row]
    along = sums.sum_along_paths(counts)
    for place, index in enumerate(owners):
        chosen = experts[torch.tensor(tree.positions(index))].flatten()
        assert along[place].tolist() == chosen.bincount(minlength=5).tolist()
    values = torch.randint(0, 9, (len(owners), 3), generator=generator).double()
    over = sums.sum_over_sequences(values)[sums.token_nodes]
    expected = torch.zeros(tree.num_tokens, 3, dtype=torch.float64)
    for place, index in enumerate(owners):
        expected[torch.tensor(tree.positions(index))] += values[place]
    assert torch.equal(over, expected)
