"""Who sees whom: small cases of faults that were reported in public against other systems."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from treetrain.attention import api
from treetrain.errors import UnsupportedModelError
from treetrain.losses.sft import sft_loss
from treetrain.models.hooks import TreeCall
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.packing.recover import recover_sequences
from treetrain.testing.models import make_tiny_model
from treetrain.verification.verify import verify

# Two branch points, one below the other.
DEEP = [[1, 2, 10, 11, 20], [1, 2, 10, 11, 21], [1, 2, 12, 13, 22], [1, 2, 12, 13, 23]]

# Packed as ids 1..7 with depth positions 0 1 2 3 4 3 4.
FORK = [[1, 2, 3, 4, 5], [1, 2, 3, 6, 7]]


def hidden_of(handle, sequences):
    batch = pack(sequences)
    with torch.no_grad():
        return recover_sequences(handle.hidden_states(batch.packed), batch, per="token")


def test_every_token_sees_its_own_path_only_in_any_order_of_siblings(logits_alone):
    """Case 1. Source: verl-project/verl#6689."""
    model = make_tiny_model("llama", dtype=torch.float64)
    alone = logits_alone(model, DEEP)
    handle = prepare(model)
    for order in permutations(range(4)):
        hidden = hidden_of(handle, [DEEP[place] for place in order])
        for place, own in zip(order, hidden, strict=True):
            error = (handle.head(own) - alone[place]).detach().abs().max()
            assert error.item() <= 1e-10


def test_a_branch_sees_its_prefix_and_not_the_branch_packed_before_it():
    """Case 4. Source: huggingface/transformers#46634."""
    assert pack(FORK).packed.tokens.tolist() == [[1, 2, 3, 4, 5, 6, 7]]
    assert pack(FORK).packed.depth_positions.tolist() == [[0, 1, 2, 3, 4, 3, 4]]
    handle = prepare(make_tiny_model("llama"))
    before = hidden_of(handle, FORK)[1]
    other_sibling = hidden_of(handle, [[1, 2, 3, 8, 9], FORK[1]])[1]
    assert torch.equal(before, other_sibling)
    other_prefix = hidden_of(handle, [[1, 2, 8, 4, 5], [1, 2, 8, 6, 7]])[1]
    assert bool((before[2:] != other_prefix[2:]).any(-1).all())
    assert torch.equal(before[:2], other_prefix[:2])


def test_the_call_hands_over_an_explicit_mask():
    """Case 4. Source: huggingface/transformers#46634."""
    model = make_tiny_model("llama")
    masks = []
    model.base_model.register_forward_pre_hook(
        lambda module, args, keywords: masks.append(keywords.get("attention_mask")),
        with_kwargs=True,
    )
    handle = prepare(model)
    masks.clear()
    hidden_of(handle, FORK)
    assert [mask.shape for mask in masks] == [(1, 1, 1, 1)]


def test_a_mask_of_ones_in_a_tree_call_makes_no_sibling_visible():
    """Case 5. Source: axolotl-ai-cloud/axolotl#3796."""
    handle = prepare(make_tiny_model("llama"))

    def call(sequences):
        packed = pack(sequences).packed
        with torch.no_grad():
            return handle.decoder(
                input_ids=packed.tokens,
                attention_mask=torch.ones(1, 7, dtype=torch.long),
                position_ids=packed.depth_positions,
                use_cache=False,
                prefix_tree=TreeCall(packed, handle.layers),
            )[0][0]

    hidden = call(FORK)
    assert torch.equal(hidden[[0, 1, 2, 5, 6]], hidden_of(handle, FORK)[1])
    altered = call([[1, 2, 3, 8, 9], FORK[1]])
    assert torch.equal(hidden[5:], altered[5:])
    assert not torch.equal(hidden[3:5], altered[3:5])


def test_a_mask_that_the_tree_does_not_know_is_refused():
    """Case 5. Source: axolotl-ai-cloud/axolotl#3796."""
    handle = prepare(make_tiny_model("llama"))
    packed = pack(FORK).packed
    with pytest.raises(UnsupportedModelError, match="mask of shape"):
        handle.decoder(
            input_ids=packed.tokens,
            attention_mask=torch.tensor([[0, 1, 1, 1, 1, 1, 1]]),
            position_ids=packed.depth_positions,
            use_cache=False,
            prefix_tree=TreeCall(packed, handle.layers),
        )


@pytest.mark.parametrize("family", ["gemma3_text", "gpt_oss", "mistral"])
def test_a_window_of_4_is_counted_on_the_path(family):
    """Case 6. Source: sgl-project/sglang#30050."""
    model = make_tiny_model(family)
    assert model.config.sliding_window == 4
    prefix = [1, 2, 3, 4, 5, 6]
    assert verify(model, [prefix + list(range(10, 16)), prefix + list(range(20, 26))]).equal


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradients_survive_recomputation_of_activations(
    gradients_of, assert_same_gradients, use_reentrant
):
    """Case 10. Source: areal-project/AReaL#889."""
    model = make_tiny_model("llama").train()
    prepare(model)
    batch = pack(DEEP)
    kept = gradients_of(model, sft_loss(model, batch, "path_mean"))
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    recomputed = gradients_of(model, sft_loss(model, batch, "path_mean"))
    assert_same_gradients(recomputed, kept, 1e-5)
    assert verify(model, DEEP).equal


def test_a_training_step_runs_on_a_cpu_without_flex_attention(monkeypatch):
    """Case 11. Source: pytorch/pytorch#148752."""

    def refuse(*arguments, **options):
        raise AssertionError("FlexAttention has no backward pass on a CPU")

    monkeypatch.setattr("torch.nn.attention.flex_attention.flex_attention", refuse)
    model = make_tiny_model("llama")
    handle = prepare(model)
    assert {layer.backend for layer in handle.layers.values()} == {next(iter(api.BACKENDS))}
    before = [parameter.detach().clone() for parameter in model.parameters()]
    sft_loss(model, pack(DEEP), "token_mean").backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert all(
        not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)
    )
