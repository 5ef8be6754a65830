from __future__ import annotations

import json

import pytest
import torch
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
    with pytest.raises(ValueError, match="model must be a folder"):
        load_model(folder)
    assert not (tmp_path / "ran").exists()
