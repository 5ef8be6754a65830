"""Mixtures of experts: small cases of faults that were reported in public."""

from __future__ import annotations

import pytest
import transformers
from packaging.version import Version
from tests.losses.router_baseline import (
    all_gradients,
    largest_difference,
    path_mean,
    router_baseline,
    run_alone,
)

from treetrain.data.routes import number_routes
from treetrain.data.sample import Sample
from treetrain.losses.router import RouterLoss
from treetrain.losses.sft import sft_loss
from treetrain.models.prepare import prepare
from treetrain.packing.batch import pack
from treetrain.testing.models import make_tiny_model

pytestmark = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.24"),
    reason="routers of older releases give probabilities or nothing, which is refused by name",
)

SEQUENCES = [[1, 2, 3, 4, 5], [1, 2, 3, 6, 7], [1, 2, 3, 6, 7, 8, 9]]


@pytest.mark.parametrize("form", ["batch", "sequence"])
def test_the_auxiliary_loss_counts_a_shared_token_once_for_each_sequence(form):
    """Source: NVIDIA/Megatron-LM#6108."""
    model = make_tiny_model("qwen3_moe", output_router_logits=True)
    alone = run_alone(model, SEQUENCES)
    load, _ = router_baseline(alone, form)
    expected = path_mean(alone) + load
    gradients = all_gradients(expected, model)
    prepare(model)
    router = RouterLoss(form, load_balancing=1.0)
    loss = sft_loss(model, pack(SEQUENCES), "path_mean", router=router)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert largest_difference(all_gradients(loss, model), gradients) <= 1e-5


def test_a_token_that_other_experts_computed_does_not_merge():
    """Source: NVIDIA/Megatron-LM#7386."""
    routes = [[[[0, 1], [2, 3]] for _ in tokens] for tokens in SEQUENCES]
    routes[1][2] = [[0, 1], [2, 4]]
    keys = number_routes(routes)
    samples = [Sample(row, keys=key) for row, key in zip(SEQUENCES, keys, strict=True)]
    tree = pack(samples).tree
    paths = [tree.positions(index).tolist() for index in range(3)]
    assert paths[0][:2] == paths[1][:2] == paths[2][:2]
    assert paths[0][2] == paths[2][2] != paths[1][2]
    assert not set(paths[1][2:]) & {*paths[0], *paths[2]}
    assert tree.num_tokens == 9 + 3
