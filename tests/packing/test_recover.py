from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from treetrain.data.sample import Sample
from treetrain.packing.batch import pack
from treetrain.packing.recover import recover_sequences


def test_three_results_come_back_where_one_sequence_stands_twice():
    prompt, a, b = [1, 2], [3, 4], [5]
    batch = pack([prompt + a, prompt + b, prompt + a])
    by_token = torch.arange(batch.num_tokens)
    rows = recover_sequences(by_token, batch, per="token")
    assert rows[0].tolist() == rows[2].tolist()
    assert [batch.packed.tokens[0][row].tolist() for row in rows] == [
        prompt + a,
        prompt + b,
        prompt + a,
    ]


def test_gradients_of_all_owners_are_summed():
    batch = pack([[1, 2, 3], [1, 2, 4], [1, 2, 3]])
    values = torch.zeros(batch.num_tokens, dtype=torch.float64, requires_grad=True)
    rows = recover_sequences(values, batch, per="token")
    sum(row.sum() * scale for row, scale in zip(rows, [1.0, 10.0, 100.0], strict=True)).backward()
    by_path = dict(zip(batch.packed.tokens[0].tolist(), values.grad.tolist(), strict=True))
    assert by_path == {1: 111.0, 2: 111.0, 3: 101.0, 4: 10.0}


def test_values_per_target_start_at_the_second_token_and_fill_the_untrained():
    batch = pack([Sample([1, 2, 3, 4], [0, 0, 1, 1]), Sample([1, 2, 5], [0, 0, 0]), [1]])
    rows = recover_sequences(torch.tensor(batch.targets.tokens), batch, per="target", fill=-7)
    assert [row.tolist() for row in rows] == [[-7, 3, 4], [-7, -7], []]


def test_recovery_is_differentiable_to_the_last_digit():
    batch = pack([Sample([1, 2, 3, 4], [0, 1, 0, 1]), [1, 2, 5], [1, 2]])
    values = torch.randn(len(batch.targets), 2, dtype=torch.float64, requires_grad=True)
    assert gradcheck(
        lambda v: tuple(recover_sequences(v, batch, per="target", fill=float("nan"))[1:]), [values]
    )
    tokens = torch.randn(batch.num_tokens, 2, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda v: tuple(recover_sequences(v, batch, per="token")), [tokens])


def test_batch_that_trains_nothing_gives_fill():
    batch = pack([Sample([1, 2, 3], [0, 0, 0])])
    assert recover_sequences(torch.zeros(0), batch, per="target", fill=2.0)[0].tolist() == [
        2.0,
        2.0,
    ]


def test_wrong_number_of_rows_is_refused():
    batch = pack([[1, 2, 3], [1, 2, 4]])
    with pytest.raises(ValueError, match=r"one row per token, \[4, \.\.\.\], got shape \(3,\)"):
        recover_sequences(torch.zeros(3), batch, per="token")
    with pytest.raises(ValueError, match=r"one row per target, \[3, \.\.\.\], got shape \(4,\)"):
        recover_sequences(torch.zeros(4), batch, per="target")
    with pytest.raises(ValueError, match="per must be 'token' or 'target', got 'sequence'"):
        recover_sequences(torch.zeros(4), batch, per="sequence")
