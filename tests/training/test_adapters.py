from __future__ import annotations

import sys
import warnings

import peft
import pytest
import torch
from safetensors.torch import load_file
from tests.training.runs import SAMPLES, make_config

from treetrain.testing.models import make_tiny_model
from treetrain.training.adapters import add_lora, load_adapters
from treetrain.training.run import run_training
from treetrain.training.settings import LoraConfig


def make_lora(**values):
    return LoraConfig.model_validate({"r": 2, "alpha": 4, **values})


def train(output, model, **values):
    return run_training(model, SAMPLES, make_config(output, **values), say=len)


def test_adapters_alone_are_trained_and_saved_and_load_onto_the_model(tmp_path):
    plain = make_tiny_model("llama")
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    model = add_lora(plain, make_lora(), seed=1)
    done = train(tmp_path / "out", model, tree={"max_tokens": 12})
    assert done[-1].loss < done[0].loss
    assert done[0].partitions > 1
    assert not (tmp_path / "out" / "config.json").exists()
    saved = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert any(bool(value.any()) for name, value in saved.items() if "lora_B" in name)
    loaded = peft.PeftModel.from_pretrained(make_tiny_model("llama"), tmp_path / "out")
    ids = torch.tensor([SAMPLES[0].tokens.tolist()])
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    inside = model.unload().state_dict()
    assert all(torch.equal(inside[name], value) for name, value in before.items())


def test_adapters_are_put_in_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        add_lora(make_tiny_model("llama"), make_lora(), seed=0)


def test_the_seed_decides_what_adapters_begin_with_and_moves_no_random_state():
    before = torch.get_rng_state()
    states = [
        peft.get_peft_model_state_dict(add_lora(make_tiny_model("llama"), make_lora(), seed=seed))
        for seed in (1, 1, 2)
    ]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not all(torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_targets_are_layers_by_name_and_others_are_refused():
    model = add_lora(make_tiny_model("llama"), make_lora(targets=["q_proj"]), seed=0)
    names = [name for name, value in model.named_parameters() if value.requires_grad]
    assert names
    assert all("q_proj" in name for name in names)
    with pytest.raises(ValueError, match=r"model\.lora\.targets must name layers of the model"):
        add_lora(make_tiny_model("llama"), make_lora(targets=["nowhere"]), seed=0)


def test_other_adapters_are_refused(tmp_path):
    add_lora(make_tiny_model("llama"), make_lora(targets=["q_proj"]), seed=0).save_pretrained(
        tmp_path
    )
    other = add_lora(make_tiny_model("llama"), make_lora(targets=["v_proj"]), seed=0)
    with pytest.raises(ValueError, match="must hold this model's adapters, got others in"):
        load_adapters(other, tmp_path)


def test_without_peft_the_way_to_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        ValueError, match=r"package peft, got none: pip install 'treetrain\[lora\]'"
    ):
        add_lora(make_tiny_model("llama"), make_lora(), seed=0)
