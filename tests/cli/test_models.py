from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import dynamic_module_utils

from treetrain.cli.configs import check_source
from treetrain.cli.models import load_model
from treetrain.testing.models import make_tiny_model


def test_code_that_comes_with_a_model_runs_only_where_it_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "model"
    make_tiny_model("llama").save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnModel"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    marker = tmp_path / "ran"
    (folder / "own.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        f"open({str(marker)!r}, 'w').close()\n"
        "class Own(LlamaConfig):\n    model_type = 'own'\n"
        "class OwnModel(LlamaForCausalLM):\n    config_class = Own\n"
    )
    for load in (check_source, load_model):
        with pytest.raises(ValueError, match="contains custom code which must be executed"):
            load(folder)
    assert not marker.exists()
    assert type(load_model(folder, trust_remote_code=True)).__name__ == "OwnModel"
    assert marker.exists()


def test_pickled_weights_run_no_code(tmp_path):
    folder = tmp_path / "model"
    make_tiny_model("llama").save_pretrained(folder)
    (folder / "model.safetensors").unlink()

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"model.norm.weight": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"model must be .* save them as safetensors$"):
        load_model(folder)
    assert not (tmp_path / "ran").exists()


def test_weights_that_are_missing_are_not_drawn_at_random(tmp_path):
    model = make_tiny_model("llama")
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for name in ("lm_head.weight", "model.norm.weight"):
        del weights[name]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    message = r"with all of its weights, got .* without lm_head\.weight \(2 tensors missing\)"
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path)
    tied = make_tiny_model("llama", tie_word_embeddings=True)
    tied.save_pretrained(tmp_path)
    assert torch.equal(load_model(tmp_path).lm_head.weight, tied.model.embed_tokens.weight)


def test_a_folder_of_adapters_is_told_from_one_of_a_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"holds adapters alone: name the model they were"):
        check_source(tmp_path)


@pytest.mark.parametrize("family", ["opt", "phi3", "gptj"])
def test_a_tiny_model_draws_nothing_and_has_room_for_its_special_ids(family):
    model = load_model(f"tiny:{family}").train()
    tokens = torch.tensor([[5, 6, 7]])
    one, other = (model(input_ids=tokens, use_cache=False).logits for _ in range(2))
    assert torch.equal(one, other)
