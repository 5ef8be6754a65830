from __future__ import annotations

import pytest
import torch
from tests.partitioning.deep_trees import draw_deep_samples

from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.partitioning.logprobs import partitioned_logprobs
from treetrain.testing.cuts import cut_into
from treetrain.testing.models import make_tiny_model
from treetrain.tree.partition import partition_tree


@pytest.mark.parametrize("targets", ["all", "trained"])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_partitions_give_the_log_probabilities_of_each_sequence_alone(family, targets):
    samples = draw_deep_samples()
    model = make_tiny_model(family)
    expected = []
    with torch.no_grad():
        for sample in samples:
            tokens = torch.tensor(sample.tokens)[None]
            own = torch.zeros(0)
            if len(sample) > 1:
                logits = model(input_ids=tokens, use_cache=False).logits[0, :-1] / 0.8
                own = logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
            expected.append(own)
    prepare(model)
    batch = pack(samples)
    trained = {int(place) for place in batch.targets.packed_indices}
    for count in (1, 3, 20):
        found = partitioned_logprobs(
            model, batch, cut_into(batch.tree, count), temperature=0.8, targets=targets
        )
        for index, (own, other) in enumerate(zip(found, expected, strict=True)):
            assert not own.requires_grad
            places = batch.tree.positions(index)[1:].tolist()
            is_trained = torch.tensor([place in trained for place in places], dtype=torch.bool)
            wanted = other if targets == "all" else torch.where(is_trained, other, 0.0)
            torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-4)


def test_empty_sequences_and_unknown_targets():
    model = make_tiny_model("llama")
    prepare(model)
    batch = pack([[], [5]])
    partitions = partition_tree(batch.tree, 4)
    assert [len(own) for own in partitioned_logprobs(model, batch, partitions)] == [0, 0]
    with pytest.raises(ValueError, match="targets must be 'all' or 'trained'"):
        partitioned_logprobs(model, batch, partitions, targets="none")
