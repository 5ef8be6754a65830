"""Configuration of a supervised training run: a YAML file, and overrides from the command line.

Every key is known by name; a key that is not is refused with the closest one that is.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from treetrain.attention.names import BACKEND_NAMES

Dtype = Literal["float32", "bfloat16", "float64"]


def _refuse_bool(value: Any) -> Any:
    # pydantic would take true for 1.
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _write_number(value: Any) -> Any:
    # Fields are compared as text, and YAML reads 0 as a number.
    return str(value) if isinstance(value, int | float) else value


Whole = Annotated[int, BeforeValidator(_refuse_bool), Field(le=2**63 - 1)]
Number = Annotated[float, BeforeValidator(_refuse_bool)]
Text = Annotated[str, BeforeValidator(_write_number)]
Decay = Annotated[Number, Field(ge=0, lt=1)]
#: Far above what makes sense, and far below what float32 cannot hold.
LARGEST = 1e6


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ScratchConfig(_Part):
    """A model with random weights.

    Attributes:
        type: a model type of transformers, for example "llama".
        config: values of its configuration that are not the type's defaults; the vocabulary is that
            of the tokenizer where it is not given.
    """

    type: str
    config: dict[str, Any] = {}


class ModelConfig(_Part):
    """The model: loaded from somewhere, or made from scratch.

    Attributes:
        path: folder, GGUF file, "smollm2", or a name for transformers to look up.
        scratch: a model with random weights instead.
        attention: attention implementation, "sdpa" or "eager"; None: transformers' choice.
        gradient_checkpointing: whether activations are computed again in the backward pass.
    """

    path: str | None = None
    scratch: ScratchConfig | None = None
    attention: Literal["sdpa", "eager"] | None = None
    gradient_checkpointing: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> ModelConfig:
        if (self.path is None) == (self.scratch is None):
            raise ValueError("must have either 'path' or 'scratch'")
        return self


class DataConfig(_Part):
    """The rows, and how they become sequences; see `treetrain.data.rows`.

    Attributes:
        files: one file or several.
        expand: one sequence per conversation, or one per assistant message.
        tools: JSON file of tool schemas, or "none"; None: `tools.json` beside each file, if any.
        select: values that fields of a row must have, text or numbers.
        chat_template: Jinja file, or "demo"; None: the tokenizer's own.
        template_variables: further variables of the chat template.
        unrendered: what happens to tools and calls that the template leaves out.
        split: which split of folders that have several.
        skip_bad_rows: whether wrong rows are skipped and listed.
        limit_tokens: flat tokens to train on: whole sequences from the front; None: all.
        shuffle: whether trees and packed rows are put in random order.
    """

    files: list[str] = Field(min_length=1)
    expand: Literal["whole", "per_step"] = "whole"
    tools: str | None = None
    select: dict[str, Text] = {}
    chat_template: str | None = None
    template_variables: dict[str, Any] = {}
    unrendered: Literal["refuse", "count"] = "refuse"
    split: str | None = None
    skip_bad_rows: bool = False
    limit_tokens: Whole | None = Field(None, ge=1)
    shuffle: bool = True

    @model_validator(mode="before")
    @classmethod
    def _single_file(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("files"), str):
            return {**values, "files": [values["files"]]}
        return values


class TreeConfig(_Part):
    """Packing.

    Attributes:
        max_tokens: tree tokens of one packed row.
        larger: what happens to the tree of a group that is larger: it is cut into partitions of
            `max_tokens` and each token computed once, or the group is split into rows of its own
            sequences, which compute shared prefixes again.
        activations: what a partition does with its activations while those below it run: keep them,
            compute them again, or hold them in host memory.
        backend: attention backend, one of `BACKEND_NAMES`.
    """

    max_tokens: Whole = Field(8192, ge=1)
    larger: Literal["partition", "split"] = "partition"
    activations: Literal["keep", "recompute", "offload"] = "keep"
    backend: str = "auto"

    @field_validator("backend")
    @classmethod
    def _known_backend(cls, name: str) -> str:
        if name not in BACKEND_NAMES:
            raise ValueError(f"must be one of {', '.join(BACKEND_NAMES)}")
        return name


class OptimizerConfig(_Part):
    """AdamW. Parameters of one dimension (norms, biases) do not decay.

    Attributes:
        lr: highest learning rate.
        betas: decay of the two running means.
        eps: added to the denominator.
        weight_decay: decay of weights, times the learning rate.
    """

    lr: Number = Field(gt=0, le=LARGEST)
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: Number = Field(1e-8, gt=0, le=LARGEST)
    weight_decay: Number = Field(0.0, ge=0, le=LARGEST)


class ScheduleConfig(_Part):
    """Learning rate over the run.

    Attributes:
        kind: what follows the warm-up.
        warmup_steps: steps over which the rate rises to `lr` in a straight line.
        final_factor: part of `lr` at the last step, for "linear" and "cosine".
    """

    kind: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Whole = Field(0, ge=0)
    final_factor: Number = Field(0.0, ge=0, le=1)


class CheckConfig(_Part):
    """The check of the first packed row against separate sequences.

    Attributes:
        flat_tokens: about how many tokens are checked: whole sequences, the shortest first; 0: no
            check.
    """

    flat_tokens: Whole = Field(2000, ge=0)


class TrainConfig(_Part):
    """A supervised training run.

    Attributes:
        model: the model.
        tokenizer: folder, GGUF file, "demo", "smollm2" or a name; None: the model's own.
        data: the rows.
        output: folder for the trained model, `metrics.jsonl` and `config.yaml`.
        overwrite: whether the folder may hold an earlier run; its model goes before the first step.
        reduction: how losses are weighted against each other, by name or a number to divide by.
        tree: packing.
        optimizer: AdamW.
        schedule: learning rate over the run.
        accumulation: packed rows of one optimiser step.
        clip_norm: largest norm of all gradients together; None: no limit.
        epochs: passes over the data; exclusive with `steps`.
        steps: optimiser steps.
        seed: of weights and order.
        dtype: of weights and computation.
        device: where to train; None: CUDA where there is a device, otherwise the CPU.
        check: the check before the first step.
    """

    model: ModelConfig
    tokenizer: str | None = None
    data: DataConfig
    output: str
    overwrite: bool = False
    reduction: (
        Literal["path_mean", "sequence_mean", "token_mean", "trajectory_mean", "sum"] | Number
    )
    tree: TreeConfig = TreeConfig()  # pyright: ignore[reportCallIssue]
    optimizer: OptimizerConfig
    schedule: ScheduleConfig = ScheduleConfig()  # pyright: ignore[reportCallIssue]
    accumulation: Whole = Field(1, ge=1)
    clip_norm: Number | None = Field(1.0, gt=0)
    epochs: Whole | None = Field(None, ge=1)
    steps: Whole | None = Field(None, ge=1)
    seed: Whole = Field(0, ge=0)
    dtype: Dtype = "float32"
    device: str | None = None
    check: CheckConfig = CheckConfig()  # pyright: ignore[reportCallIssue]

    @model_validator(mode="after")
    def _one_length(self) -> TrainConfig:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("must have either 'epochs' or 'steps'")
        trained = self.model.path
        if trained is not None and Path(trained).resolve() == Path(self.output).resolve():
            raise ValueError(
                f"output must be another folder than model.path, which a run that ends early would "
                f"leave without its model, got {self.output!r}"
            )
        if self.tokenizer is None and self.model.path is None:
            raise ValueError("must have 'tokenizer' for a model from scratch")
        return self


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a configuration file.

    Args:
        path: the YAML file.
        overrides: "a.b=value" each; the value is read as YAML, so that numbers, lists and null are
            what they look like.

    Returns:
        The configuration.

    Raises:
        ValueError: the file is not UTF-8 or no YAML mapping, a key is unknown or missing, or a
            value does not fit; the key is named.
    """
    path = Path(path)
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: must be YAML: {' '.join(str(error).split())}") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: must be UTF-8, got {error.reason} at byte {error.start}"
        ) from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: must be a mapping of keys, got {type(values).__name__}")
    for override in overrides:
        _override(values, override)
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        found = "; ".join(_explain(one, values) for one in error.errors())
        raise ValueError(f"{path}: {found}") from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML would take the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _override(values: dict[str, Any], override: str) -> None:
    name, sign, text = override.partition("=")
    if not sign or not all(name.split(".")):
        raise ValueError(f"--set must be KEY.KEY=VALUE, got {override!r}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"--set {name}: value must be YAML, got {text!r}") from error
    *parents, last = name.split(".")
    place: Any = values
    for depth, parent in enumerate(parents):
        if place.get(parent) is None:
            place[parent] = {}
        place = place[parent]
        if not isinstance(place, dict):
            raise ValueError(
                f"--set {name}: {'.'.join(parents[: depth + 1])!r} must be a mapping, got {place!r}"
            )
    place[last] = value


def _explain(error: Any, values: dict[str, Any]) -> str:
    location = [part for part in error["loc"] if not _is_union_branch(part)]
    key = ".".join(str(part) for part in location)
    if error["type"] == "extra_forbidden":
        *parents, last = location
        known = list(_fields_at(parents))
        close = get_close_matches(str(last), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
        return f"unknown key {key!r}; {hint}"
    if error["type"] == "missing":
        return f"key {key!r} is missing{_choices(location)}"
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    shown = "" if isinstance(error["input"], dict) else f", got {error['input']!r}"
    return f"{key or 'the configuration'}: {message}{shown}"


def _is_union_branch(part: Any) -> bool:
    """Whether part of a location names a type that pydantic tried, not a key."""
    return isinstance(part, str) and part.startswith(("literal[", "function-before["))


def _fields_at(parents: Sequence[Any]) -> list[str]:
    part: Any = TrainConfig
    for name in parents:
        annotation = part.model_fields[name].annotation
        options = [annotation, *get_args(annotation)]
        part = next(o for o in options if isinstance(o, type) and issubclass(o, BaseModel))
    return list(part.model_fields)


def _choices(location: Sequence[Any]) -> str:
    if list(location) != ["reduction"]:
        return ""
    return (
        "; it decides what a sequence weighs and has no default: path_mean, sequence_mean, "
        "token_mean, trajectory_mean, sum, or a number to divide by"
    )
