from __future__ import annotations

import numpy as np
import pytest
import torch

from treetrain.models.prepare import prepare
from treetrain.models.prepared import find_prepared
from treetrain.testing.models import make_tiny_model
from treetrain.tree.build import build_prefix_tree
from treetrain.verification.own_samples import BEYOND, find_enough_ids, make_samples_for
from treetrain.verification.reach import count_experts, find_reach
from treetrain.verification.verify import verify

#: Longer than the short paths, so that only the long ones reach beyond them.
WINDOW = 40


def tree_of(samples):
    return build_prefix_tree([sample.tokens for sample in samples])


def groups_of(samples):
    groups = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    return groups


def test_the_short_tree_has_every_form_that_data_has():
    samples = groups_of(make_samples_for(make_tiny_model("llama")))["short paths"]
    tree = tree_of(samples)
    depths = np.zeros(tree.num_nodes, int)
    for node, parent in enumerate(tree.parents):
        depths[node] = 1 if parent < 0 else depths[parent] + 1
    assert depths.max() >= 4
    assert (tree.parents < 0).sum() == 2
    assert (tree.node_lengths == 1).any()
    rows = [tuple(sample.tokens.tolist()) for sample in samples]
    assert len(set(rows)) < len(rows)
    assert any(a != b and b[: len(a)] == a for a in rows for b in rows)
    assert any((sample.weights == 0).any() for sample in samples)
    assert len({float(sample.weights[-1]) for sample in samples}) > 1


def test_around_a_window_s_edge_paths_part_before_at_and_after_it():
    samples = make_samples_for(make_tiny_model("mistral", sliding_window=WINDOW))
    tree = tree_of(groups_of(samples)[f"beyond {WINDOW}"])
    assert tree.sequence_lengths.max() == WINDOW + BEYOND
    parts = {int(tree.depth_starts[node]) for node in range(tree.num_nodes)}
    assert {WINDOW // 2, WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + 2} <= parts
    assert WINDOW in tree.sequence_lengths


@pytest.mark.parametrize(
    ("family", "values", "features"),
    [
        ("llama", {}, []),
        ("mistral", {"sliding_window": WINDOW}, [("window", WINDOW)]),
        ("gpt_oss", {"sliding_window": 1}, [("window", 1), ("experts", 2)]),
        ("gemma3_text", {"sliding_window": WINDOW}, [("window", WINDOW)]),
        ("deepseek_v3", {}, [("experts", 2)]),
        ("qwen3_moe", {"num_experts": 32}, [("experts", 2)]),
    ],
)
def test_everything_a_model_has_is_reached_and_equal(family, values, features):
    model = make_tiny_model(family, **values)
    report = verify(model, make_samples_for(model))
    assert report.equal, str(report)
    assert [(one.feature, one.size) for one in report.reach] == features
    assert all(one.tested for one in report.reach)
    assert all(check.places for check in report.leak_checks)


def test_nearly_all_experts_are_chosen_where_there_are_many():
    model = make_tiny_model("qwen3_moe", num_experts=48)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("gate.weight"):
                parameter.normal_(0.0, 1.0)
    prepared = prepare(model)
    [reach] = find_reach(prepared, make_samples_for(model))
    assert (reach.feature, reach.size, reach.total, reach.layers) == ("experts", 2, 48, 4)
    assert reach.found > 24
    assert "not tested" not in str(reach)


def test_experts_are_counted_as_the_router_chooses_them():
    model = make_tiny_model("qwen3_moe")
    prepared = prepare(model)
    sequence = np.array([5, 6, 7])
    found = count_experts(prepared, [sequence, sequence[:2], np.zeros(0, np.int64)])
    with torch.no_grad():
        logits = model(
            input_ids=torch.tensor(sequence)[None], use_cache=False, output_router_logits=True
        ).router_logits
    chosen = [set(layer.topk(2).indices.flatten().tolist()) for layer in logits]
    assert found is not None
    assert found.found == min(map(len, chosen))
    assert found.total == 6
    assert count_experts(prepare(make_tiny_model("llama")), [sequence]) is None


def test_ids_with_a_role_are_not_used():
    model = make_tiny_model("llama", eos_token_id=[2, 9])  # as of models with two ends of a turn
    model.generation_config.eos_token_id = [2, 9, 11]
    ids = find_enough_ids(model).tolist()
    assert ids == [token for token in range(64) if token not in (0, 1, 2, 9, 11)]
    used = {token for sample in make_samples_for(model) for token in sample.tokens.tolist()}
    assert used <= set(ids)


def test_within_a_limit_the_window_is_reached_before_it_gets_all_its_branches():
    model = make_tiny_model("mistral", sliding_window=WINDOW)
    everything = make_samples_for(model)
    flat = sum(map(len, everything))
    short = sum(map(len, groups_of(everything)["short paths"]))
    limit = short + 2 * (WINDOW + BEYOND)
    assert limit < flat
    kept = make_samples_for(model, limit_tokens=limit)
    assert sum(map(len, kept)) <= limit
    assert max(map(len, kept)) == WINDOW + BEYOND
    few = make_samples_for(model, limit_tokens=60)
    assert sum(map(len, few)) <= 60
    assert tree_of(few).num_tokens < sum(map(len, few))
    assert sum(map(len, make_samples_for(model, limit_tokens=flat))) == flat
    with pytest.raises(ValueError, match="shortest sequence, 9, got 8"):
        make_samples_for(model, limit_tokens=8)


def test_paths_are_no_deeper_than_the_model_s_positions():
    model = make_tiny_model("mistral", sliding_window=WINDOW, max_position_embeddings=WINDOW)
    samples = make_samples_for(model)
    assert max(map(len, samples)) <= WINDOW
    [reach] = verify(model, samples).reach
    assert not reach.tested
    assert str(reach) == "not tested: the longest path is 31 tokens"


def test_the_model_is_left_as_it_was_and_the_samples_are_the_same_each_time():
    model = make_tiny_model("qwen3_moe").train()
    random = torch.random.get_rng_state()
    first = make_samples_for(model)
    assert torch.equal(random, torch.random.get_rng_state())
    assert model.training
    with pytest.raises(ValueError, match="model must be prepared"):
        find_prepared(model)
    assert all(not module._forward_pre_hooks for module in model.modules())
    handle = prepare(model)
    again = make_samples_for(model)
    assert handle.active
    assert [s.tokens.tolist() for s in first] == [s.tokens.tolist() for s in again]
    assert [s.weights.tolist() for s in first] == [s.weights.tolist() for s in again]


def test_a_vocabulary_of_roles_is_refused():
    model = make_tiny_model("llama", vocab_size=8)
    with pytest.raises(ValueError, match="at least 8 token ids without a role, got 5 of a vocab"):
        make_samples_for(model)
