from __future__ import annotations

import pytest
from transformers import AutoConfig

from treetrain.errors import UnsupportedModelError
from treetrain.models.outline import check_config
from treetrain.testing.models import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_can_be_trained_passes_at_its_own_size(family: str) -> None:
    # The defaults are those of models with up to hundreds of billions of parameters.
    check_config(AutoConfig.for_model(family))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("t5", "is an encoder-decoder and has no paths"),
        ("bloom", "ALiBi"),
        ("mamba", "convolves 4 neighbouring tokens"),
        ("mamba2", "convolves 4 neighbouring tokens"),
        ("qwen3_next", "convolves 4 neighbouring tokens"),
        ("vit", "has no causal language model"),
    ],
)
def test_a_model_that_cannot_is_refused_with_the_reason_and_a_way_out(
    kind: str, reason: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=reason) as told:
        check_config(AutoConfig.for_model(kind))
    assert "train" in str(told.value).partition(";")[2]


def test_a_config_that_no_model_can_be_made_of_is_left_to_loading() -> None:
    check_config(AutoConfig.for_model("llama", hidden_act="of no such name"))
