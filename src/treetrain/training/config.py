"""Configuration of a training run: every key with its type, its default and what it means.

`settings` holds the parts about the loss; `config_file` reads it all from a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from treetrain.attention.names import BACKEND_NAMES
from treetrain.training.settings import (
    LARGEST,
    Decay,
    EvaluationConfig,
    LoraConfig,
    LossConfig,
    Name,
    Number,
    Part,
    RouterConfig,
    Text,
    Whole,
    one_file_as_list,
)
from treetrain.training.tracker_names import TrackerName

Dtype = Literal["float32", "bfloat16", "float64"]


class ScratchConfig(Part):
    """A model with random weights.

    Attributes:
        type: a model type of transformers, for example "llama".
        config: values of its configuration that are not the type's defaults; the vocabulary is that
            of the tokenizer where it is not given.
    """

    type: str
    config: dict[str, Any] = Field(default_factory=dict)


class ModelConfig(Part):
    """The model: loaded from somewhere, or made from scratch.

    Attributes:
        path: folder, GGUF file, "smollm2", "tiny:TYPE" (random weights, for trying things out), or
            a name for transformers to look up.
        scratch: a model with random weights instead.
        attention: attention implementation, "sdpa" or "eager"; None: transformers' choice.
        trust_remote_code: whether code that comes with a model and its tokenizer may run.
        gradient_checkpointing: whether activations are computed again in the backward pass.
        lora: adapters that are trained in place of the weights; None: all weights are trained.
    """

    path: Name | None = None
    scratch: ScratchConfig | None = None
    attention: Literal["sdpa", "eager"] | None = None
    trust_remote_code: bool = False
    gradient_checkpointing: bool = False
    lora: LoraConfig | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> ModelConfig:
        if (self.path is None) == (self.scratch is None):
            raise ValueError("must have either 'path' or 'scratch'")
        return self


class DataConfig(Part):
    """The rows, and how they become sequences; see `treetrain.data.rows`.

    Attributes:
        files: one file or several.
        expand: one sequence per conversation, or one per assistant message.
        tools: JSON file of tool schemas, or "none"; None: `tools.json` beside each file, if any.
        select: values that fields of a row must have, text or numbers; {} selects every row.
        chat_template: Jinja file, or "demo"; None: the tokenizer's own.
        template_variables: further variables of the chat template.
        unrendered: what happens to tools and calls that the template leaves out.
        split: which split of folders that have several.
        skip_bad_rows: whether wrong rows are skipped and listed.
        limit_tokens: flat tokens to train on: whole sequences from the front; None: all.
        shuffle: whether trees and packed rows are put in random order.
    """

    files: list[Name] = Field(min_length=1)
    expand: Literal["whole", "per_step"] = "whole"
    tools: Name | None = None
    select: dict[str, Text] = Field(default_factory=dict)
    chat_template: Name | None = None
    template_variables: dict[str, Any] = Field(default_factory=dict)
    unrendered: Literal["refuse", "count"] = "refuse"
    split: str | None = None
    skip_bad_rows: bool = False
    limit_tokens: Whole | None = Field(None, ge=1)
    shuffle: bool = True

    @model_validator(mode="before")
    @classmethod
    def _single_file(cls, values: Any) -> Any:
        return one_file_as_list(values)


class TreeConfig(Part):
    """Packing.

    Attributes:
        grouping: which sequences may share tokens: those of one group, those of one trajectory
            (one that names none is its own), or all. Each makes one tree, and trees stay whole, so
            that "all" is one step per epoch.
        max_tokens: tree tokens of one packed row.
        larger: what happens to the tree of a group that is larger: it is cut into partitions of
            `max_tokens` and each token computed once, or the group is split into rows of its own
            sequences, which compute shared prefixes again.
        activations: what a partition does with its activations while those below it run: keep them,
            compute them again, or hold them in host memory.
        backend: attention backend, one of `BACKEND_NAMES`.
    """

    grouping: Literal["group", "trajectory", "all"] = "group"
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


class OptimizerConfig(Part):
    """AdamW. Parameters of one dimension (norms, biases) do not decay.

    Attributes:
        lr: highest learning rate.
        betas: decay of the two running means.
        eps: added to the denominator.
        weight_decay: decay of weights, times the learning rate.
        fused: whether one kernel updates all parameters; None: where torch has one for the device.
    """

    lr: Number = Field(gt=0, le=LARGEST)
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: Number = Field(1e-8, gt=0, le=LARGEST)
    weight_decay: Number = Field(0.0, ge=0, le=LARGEST)
    fused: bool | None = None


class ScheduleConfig(Part):
    """Learning rate over the run.

    Attributes:
        kind: what follows the warm-up.
        warmup_steps: steps over which the rate rises to `lr` in a straight line.
        final_factor: part of `lr` at the last step, for "linear" and "cosine".
    """

    kind: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Whole = Field(0, ge=0)
    final_factor: Number = Field(0.0, ge=0, le=1)


class CheckConfig(Part):
    """The check of the first packed row against separate sequences.

    Attributes:
        flat_tokens: about how many tokens are checked: whole sequences, the shortest first; 0: no
            check.
        on_difference: "error" stops the run before its first step, "warn" says what differs and
            goes on, "off" leaves the check out.
    """

    flat_tokens: Whole = Field(2000, ge=0)
    on_difference: Literal["error", "warn", "off"] = "error"

    @field_validator("on_difference", mode="before")
    @classmethod
    def _read_off(cls, value: Any) -> Any:
        # YAML 1.1 reads off as false.
        return "off" if value is False else value

    @property
    def wanted(self) -> bool:
        """Whether there is a check."""
        return self.flat_tokens > 0 and self.on_difference != "off"


class TrainConfig(Part):
    """A training run.

    Attributes:
        model: the model.
        tokenizer: folder, GGUF file, "demo", "smollm2" or a name; None: the model's own.
        data: the rows.
        evaluation: sequences that are evaluated and not trained; None: none.
        output: folder for the trained model, checkpoints, `metrics.jsonl` and `config.yaml`.
        overwrite: whether the folder may hold an earlier run; its model and its checkpoints go
            before the first step.
        save_every: optimiser steps between two checkpoints; the last step has one too. None: none
            but that of an interruption.
        keep_last: checkpoints that stay; older ones go once a newer one is whole. None: all.
        loss: the loss; supervised where nothing is said.
        router: losses of the routers of a mixture of experts; None: none.
        reduction: how losses are weighted against each other, by name or a number to divide by.
        tree: packing.
        optimizer: AdamW.
        schedule: learning rate over the run.
        accumulation: packed rows of one optimiser step.
        clip_norm: largest norm of all gradients together; None: no limit.
        epochs: passes over the data; exclusive with `steps`.
        steps: optimiser steps.
        seed: of weights and order.
        dtype: of weights, and of computation but for `autocast`.
        autocast: narrower dtype that matrix products are computed in, over float32 weights; None:
            that of the weights.
        device: where to train; None: CUDA where there is a device, otherwise the CPU.
        check: the check before the first step.
        trackers: services that are told the figures of every step; each must be installed.
    """

    model: ModelConfig
    tokenizer: Name | None = None
    data: DataConfig
    evaluation: EvaluationConfig | None = None
    output: Name
    overwrite: bool = False
    save_every: Whole | None = Field(100, ge=1)
    keep_last: Whole | None = Field(2, ge=1)
    reduction: (
        Literal["path_mean", "sequence_mean", "token_mean", "trajectory_mean", "sum"]
        | Annotated[Number, Field(gt=0)]
    )
    loss: LossConfig = LossConfig()  # pyright: ignore[reportCallIssue]
    router: RouterConfig | None = None
    tree: TreeConfig = TreeConfig()  # pyright: ignore[reportCallIssue]
    optimizer: OptimizerConfig
    schedule: ScheduleConfig = ScheduleConfig()  # pyright: ignore[reportCallIssue]
    accumulation: Whole = Field(1, ge=1)
    clip_norm: Number | None = Field(1.0, gt=0)
    epochs: Whole | None = Field(None, ge=1)
    steps: Whole | None = Field(None, ge=1)
    seed: Whole = Field(0, ge=0)
    dtype: Dtype = "float32"
    autocast: Literal["bfloat16"] | None = None
    device: Name | None = None
    check: CheckConfig = CheckConfig()  # pyright: ignore[reportCallIssue]
    trackers: list[TrackerName] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_length(self) -> TrainConfig:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("must have either 'epochs' or 'steps'")
        trained = self.model.path
        output = Path(self.output).resolve()
        if trained is not None and Path(trained).resolve().is_relative_to(output):
            raise ValueError(
                "output must be another folder than model.path and none above it, whose model a "
                f"run that ends early would take away, got {self.output!r}"
            )
        if self.tokenizer is None and self.model.path is None:
            raise ValueError("must have 'tokenizer' for a model from scratch")
        if self.autocast is not None and self.dtype != "float32":
            raise ValueError(f"autocast must go with dtype float32, got dtype {self.dtype}")
        return self
