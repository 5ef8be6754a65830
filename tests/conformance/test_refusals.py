"""What would be wrong on trees is refused by name: faults that were reported in public."""

from __future__ import annotations

import pytest
import torch

from treetrain.errors import UnsupportedModelError
from treetrain.models.prepare import prepare
from treetrain.testing.models import make_tiny_model

DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
SCAN = {"num_heads": 8, "head_dim": 8, "expand": 2, "state_size": 8, "n_groups": 2}
HYBRID = {
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "ssm_state_size": 8,
    "n_groups": 2,
    "layers_block_type": ["mamba", "mlp", "attention", "mamba"],
}


def check_refused(kind: str, values: dict[str, object]) -> None:
    model = make_tiny_model(kind, **values)
    before = model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False).logits
    with pytest.raises(UnsupportedModelError, match=r"train .* on separate sequences") as told:
        prepare(model)
    assert type(model).__name__ in str(told.value) or "convolves" in str(told.value)
    after = model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False).logits
    assert torch.equal(before, after)


@pytest.mark.parametrize(
    ("kind", "values"), [("qwen3_next", {**DELTA, **EXPERTS}), ("qwen3_5_text", DELTA)]
)
def test_a_delta_rule_that_would_run_into_the_next_branch_is_refused(kind, values):
    """Case 7. Source: NVIDIA-NeMo/Automodel#2147."""
    check_refused(kind, values)


@pytest.mark.parametrize(("kind", "values"), [("mamba2", SCAN), ("nemotron_h", HYBRID)])
def test_a_scan_that_would_run_into_the_next_branch_is_refused(kind, values):
    """Case 8. Source: PrimeIntellect-ai/prime-rl#3000."""
    check_refused(kind, values)
