from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from treetrain.losses.head_chunks import cut_chunks, plan_chunks
from treetrain.packing.batch import pack


class ZeroHead:
    parameters = ()

    def __call__(self, hidden):
        return torch.zeros(len(hidden), 4096)


@given(st.lists(st.lists(st.integers(0, 1), max_size=8), min_size=1, max_size=6), st.integers(1, 9))
def test_chunks_cover_predictors_and_targets_once_in_equal_parts(sequences, chunk_tokens):
    batch = pack(sequences)
    tensors = batch.target_tensors
    hidden = torch.arange(len(tensors.distinct_predictors))[:, None]
    work = plan_chunks(
        hidden,
        ZeroHead(),
        batch.targets,
        tensors=tensors,
        temperature=1.0,
        chunk_tokens=chunk_tokens,
    )
    chunks = list(cut_chunks(work, hidden))
    sizes = [len(chunk.hidden) for chunk in chunks]
    assert len(chunks) == -(-len(hidden) // chunk_tokens)
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    empty = [torch.zeros(0, dtype=torch.int64)]
    assert torch.cat(empty + [chunk.hidden[:, 0] for chunk in chunks]).equal(hidden[:, 0])
    predictors = [chunk.hidden[:, 0][chunk.rows] for chunk in chunks]
    assert torch.cat(empty + predictors).equal(tensors.predictor_of_target)
    assert torch.cat(empty + [chunk.tokens for chunk in chunks]).equal(tensors.tokens)


def test_default_chunk_makes_logits_of_64_mebibytes():
    batch = pack([[1, 2]])
    work = plan_chunks(
        torch.zeros(1, 2),
        ZeroHead(),
        batch.targets,
        tensors=batch.target_tensors,
        temperature=1.0,
        chunk_tokens=None,
    )
    assert work.chunk_tokens * 4096 * 4 == 64 * 2**20
