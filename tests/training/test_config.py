from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from treetrain.training.config_file import load_config

TEXT = """
model: {path: some/folder}
data: {files: rows.jsonl}
output: out
reduction: token_mean
optimizer: {lr: 1e-3}
steps: 4
"""


def load(tmp_path, text=TEXT, *overrides):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return load_config(path, overrides)


def test_values_are_typed_and_the_rest_has_defaults(tmp_path):
    config = load(tmp_path)
    assert config.optimizer.lr == 1e-3
    assert config.data.files == ["rows.jsonl"]
    assert config.accumulation == 1
    assert config.epochs is None


def test_overrides_are_read_as_yaml_at_their_place(tmp_path):
    config = load(
        tmp_path,
        TEXT,
        "optimizer.lr=3e-4",
        "optimizer.betas=[0.9, 0.95]",
        "steps=null",
        "epochs=2",
        "schedule.kind=cosine",
        "reduction=12.5",
        "data.select={kind: cot_n16}",
        "clip_norm=null",
    )
    assert config.optimizer.lr == 3e-4
    assert config.optimizer.betas == (0.9, 0.95)
    assert (config.steps, config.epochs) == (None, 2)
    assert config.schedule.kind == "cosine"
    assert config.reduction == 12.5
    assert config.data.select == {"kind": "cot_n16"}
    assert config.clip_norm is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimiser.lr=1", "unknown key 'optimiser'; did you mean 'optimizer'?"),
        ("tree.max_token=1", "unknown key 'tree.max_token'; did you mean 'max_tokens'?"),
        ("data.zzz=1", "unknown key 'data.zzz'; known are files, expand"),
        ("reduction=mean", "reduction: .*'path_mean'.*got 'mean'"),
        ("reduction=null", "reduction: "),
        ("steps=0", "steps: .*greater than or equal to 1, got 0"),
        ("epochs=2", "must have either 'epochs' or 'steps'"),
        ("model.scratch={type: llama}", "model: must have either 'path' or 'scratch'"),
        ("reduction=true", "reduction: .*'path_mean'.*must be a number, got True"),
        ("steps=true", "steps: must be a number, got True"),
        ("clip_norm=false", "clip_norm: must be a number, got False"),
        ("tree.max_tokens=true", "tree.max_tokens: must be a number, got True"),
        ("optimizer.betas=[true, 0.9]", "optimizer.betas.0: must be a number, got True"),
        ("optimizer.betas=[2, 0.9]", "optimizer.betas.0: .*less than 1, got 2"),
        ("schedule.final_factor=true", "schedule.final_factor: must be a number, got True"),
        ("seed=99999999999999999999", "seed: .*less than or equal to 9223372036854775807"),
        ("optimizer.lr=1e300", "optimizer.lr: .*less than or equal to 1000000"),
        ("output=some/folder", "output must be another folder than model.path"),
        ("tree.backend=magic", "tree.backend: must be one of auto, .*, got 'magic'"),
        ("tree.backend=null", "tree.backend: "),
        ("data.select={trial: [0]}", "data.select.trial: .*string, got .0."),
        ("optimizer.lr=fast", "optimizer.lr: .*got 'fast'"),
        ("steps", "--set must be KEY.KEY=VALUE, got 'steps'"),
        ("output.x=1", "'output' must be a mapping, got 'out'"),
        ("a.b=[", "--set a.b: must be YAML"),
        ("steps=2024-13-45", "--set steps: must be YAML: '2024-13-45' does not fit .*timestamp"),
        ("steps=!!timestamp x", "--set steps: must be YAML: 'x' does not fit .*timestamp"),
        ("steps=!!bool x", "--set steps: must be YAML: 'x' does not fit .*bool"),
        ("steps=!!float x", "--set steps: must be YAML: 'x' does not fit .*float"),
        (f"steps={'9' * 5000}", "--set steps: must be YAML: '999.* does not fit .*int"),
        ("a={{b: c}: d}", "--set a: must be YAML: .* is a list or a mapping"),
        (f"steps={'[' * 5000}", "--set steps: must be nested less deeply"),
        (f"model.path={'[' * 150}{']' * 150}", "must be nested at most 100 levels deep"),
        (f"{'a.' * 150}b=1", "must be nested at most 100 levels deep"),
        ("data.template_variables={a: &a [*a]}", "must be nested at most 100 levels deep"),
        ("model.lora={r: 2}", "key 'model.lora.alpha' is missing"),
        ("model.lora={r: 2, alpha: 1, rnak: 1}", "unknown key 'model.lora.rnak'; known are r"),
        ("evaluation={every: 1}", "evaluation: must have either 'files' or 'share'"),
        ("router={form: all}", "router.form: .*'micro_batch'.*got 'all'"),
        ("loss.name=dpo", "loss.name: .*'sft'.*got 'dpo'"),
        ("autocast=float16", "autocast: .*'bfloat16', got 'float16'"),
        ("output=some", "output must be another folder than model.path and none above it"),
    ],
)
def test_a_wrong_value_is_refused_by_name(tmp_path, override, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, TEXT, override)


@pytest.mark.parametrize(
    ("written", "text"), [("0", "0"), ("'0'", "0"), ("0.5", "0.5"), ("true", "True"), ("a", "a")]
)
def test_rows_are_selected_by_numbers_as_by_text(tmp_path, written, text):
    config = load(tmp_path, TEXT, f"data.select={{trial: {written}}}")
    assert config.data.select == {"trial": text}
    # As rows are compared: the text of what JSON reads.
    assert written in ("'0'", "a") or str(json.loads(written)) == text


def test_the_configuration_in_the_docs_is_valid(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```", page, re.S | re.M)
    assert load(tmp_path, block).evaluation.share == 0.05


def test_off_is_a_word(tmp_path):
    assert load(tmp_path, TEXT, "check.on_difference=off").check.on_difference == "off"
    assert not load(tmp_path, TEXT, "check={on_difference: 'off'}").check.wanted
    with pytest.raises(ValueError, match="'warn' or 'off', got True"):
        load(tmp_path, TEXT, "check.on_difference=on")


def test_a_configuration_is_read_without_torch(tmp_path):
    load(tmp_path)
    code = (
        "import sys; from treetrain.training.config_file import load_config;"
        f"load_config({str(tmp_path / 'run.yaml')!r});"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_reduction_must_be_chosen(tmp_path):
    with pytest.raises(ValueError, match=r"'reduction' is missing; it decides what .* path_mean"):
        load(tmp_path, TEXT.replace("reduction: token_mean\n", ""))


def test_a_file_that_is_no_mapping_or_has_a_key_twice_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"run\.yaml: must be a mapping of keys, got list"):
        load(tmp_path, "- 1")
    with pytest.raises(ValueError, match=r"run\.yaml: must be YAML.*key 'steps' stands twice"):
        load(tmp_path, TEXT + "steps: 5\n")
    with pytest.raises(ValueError, match="must have 'tokenizer' for a model from scratch"):
        load(tmp_path, TEXT.replace("path: some/folder", "scratch: {type: llama}"))


def test_a_file_that_is_not_text_is_refused_by_name(tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"steps: \xff")
    with pytest.raises(ValueError, match=r"run\.yaml: must be UTF-8, got .* at byte 7"):
        load_config(tmp_path / "run.yaml")


def test_aliases_may_not_blow_a_small_file_up(tmp_path):
    lines = ["model: {path: x}", "a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(ValueError, match=r"run\.yaml: must hold at most 100,000 values, aliases"):
        load(tmp_path, "\n".join(lines))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("output=''", "output: string should have at least 1 character"),
        ("data.files=['']", r"data\.files\.0: string should have at least 1 character"),
        ("evaluation={files: '', every: 1}", r"evaluation\.files\.0: string should have"),
        ("tokenizer=''", "tokenizer: string should have at least 1 character"),
        ("device=''", "device: string should have at least 1 character"),
        ("reduction=0", r"reduction: input should be greater than 0, got 0$"),
        ("reduction=-2.5", r"reduction: input should be greater than 0, got -2\.5$"),
        ("optimizer={lr: 1, lr: 2}", "--set optimizer: must be YAML: key 'lr' stands twice"),
        ("optimizer=" + "[" * 5000, "--set optimizer: must be nested less deeply"),
        ("optimizer={? {a: 1} : 2}", r"key \{'a': 1\} is a list or a mapping"),
    ],
)
def test_what_would_mean_something_else_than_it_says_is_refused(tmp_path, override, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, TEXT, override)


@pytest.mark.parametrize("text", ["? {a: 1}\n: 2\n", "[" * 5000])
def test_yaml_that_python_cannot_hold_is_refused_by_its_file(tmp_path, text):
    with pytest.raises(ValueError, match=r"run\.yaml: must be .*YAML"):
        load(tmp_path, text)
