"""Parts of a configuration that say what is trained: adapters, loss, routers, evaluation.

`config` holds the others and the whole; the types of numbers are here, for both.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator


def _refuse_bool(value: Any) -> Any:
    # pydantic would take true for 1.
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _write_number(value: Any) -> Any:
    # Fields are compared as text, and YAML reads 0 as a number.
    return str(value) if isinstance(value, int | float) else value


Whole = Annotated[int, Field(le=2**63 - 1), BeforeValidator(_refuse_bool)]
Number = Annotated[float, BeforeValidator(_refuse_bool)]
Text = Annotated[
    str,
    BeforeValidator(_write_number),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]
#: Name of a file, a folder or a model; an empty one would be the folder the command runs in.
Name = Annotated[str, Field(min_length=1)]
Decay = Annotated[Number, Field(ge=0, lt=1)]
#: Far above what makes sense, and far below what float32 cannot hold.
LARGEST = 1e6


def one_file_as_list(values: Any) -> Any:
    """Take a single name of `files` for a list of one.

    Args:
        values: what the part of a configuration was written as.

    Returns:
        The same with a list.
    """
    if isinstance(values, dict) and isinstance(values.get("files"), str):
        return {**values, "files": [values["files"]]}
    return values


class Part(BaseModel):
    """A part of a configuration: unknown keys are errors, values stay what they are."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LoraConfig(Part):
    """Low-rank adapters of peft in place of all weights; without dropout.

    Attributes:
        r: rank.
        alpha: the adapters' output is multiplied by alpha / r.
        targets: names of layers, as peft matches them, or "all-linear": all but the output layer.
        rank_stabilised: whether alpha is divided by the square root of r instead.
    """

    r: Whole = Field(ge=1)
    alpha: Number = Field(gt=0, le=LARGEST)
    targets: Literal["all-linear"] | list[str] = "all-linear"
    rank_stabilised: bool = False


class LossConfig(Part):
    """The loss, by name; `treetrain.losses.policy` has the formulas.

    Attributes:
        name: "sft" is weighted negative log-likelihood. The others are policy losses, whose
            advantages the rows carry: "plain" without a ratio, "ppo" with a clipped one, "grpo"
            with a KL term as well.
        old_logprobs: for "ppo" and "grpo": the policy that sampled. "current": the one that is
            trained, so that the ratio is 1 and only its gradient counts. "start": the model before
            its first step. "recorded": what the rows recorded.
        clip_low: for "ppo" and "grpo": how far the ratio may fall below 1.
        clip_high: for "ppo" and "grpo": how far it may rise above 1.
        reference: policy of the KL term; "start" is the model before its first step.
        kl_coefficient: weight of the KL term; given together with `reference`.
        entropy_coefficient: weight of the entropy bonus of a policy loss.
        temperature: what logits are divided by in a policy loss; that of sampling.
    """

    name: Literal["sft", "plain", "ppo", "grpo"] = "sft"
    old_logprobs: Literal["current", "start", "recorded"] | None = None
    clip_low: Number | None = Field(None, ge=0, le=LARGEST)
    clip_high: Number | None = Field(None, ge=0, le=LARGEST)
    reference: Literal["start"] | None = None
    kl_coefficient: Number | None = Field(None, ge=0, le=LARGEST)
    entropy_coefficient: Number = Field(0.0, ge=0, le=LARGEST)
    temperature: Number = Field(1.0, gt=0, le=LARGEST)

    @model_validator(mode="after")
    def _only_what_is_used(self) -> LossConfig:
        ratio = {name: getattr(self, name) for name in ("old_logprobs", "clip_low", "clip_high")}
        divergence = {name: getattr(self, name) for name in ("reference", "kl_coefficient")}
        for name, value in ratio.items():
            if (value is None) == (self.name in ("ppo", "grpo")):
                word = "must be given" if value is None else "must not be given"
                raise ValueError(f"{name} {word} for loss {self.name!r}")
        if self.name == "sft":
            given = [name for name, value in divergence.items() if value is not None]
            given += ["entropy_coefficient"] * (self.entropy_coefficient != 0)
            given += ["temperature"] * (self.temperature != 1)
            if given:
                raise ValueError(f"{given[0]} must not be given for loss 'sft'")
        missing = [name for name, value in divergence.items() if value is None]
        if len(missing) == 1 or (self.name == "grpo" and missing):
            raise ValueError(
                f"{missing[0]} must be given: reference and kl_coefficient belong together, and "
                "'grpo' needs them"
            )
        return self

    @property
    def needs_start(self) -> bool:
        """Whether log-probabilities of the model before its first step are needed."""
        return self.reference == "start" or self.old_logprobs == "start"


class RouterConfig(Part):
    """Losses of the routers of a mixture of experts; `treetrain.losses.router` has the formulas.

    Attributes:
        form: over what the load-balancing loss is taken.
        load_balancing: its factor, `router_aux_loss_coef` of many models.
        z: factor of the router z-loss.
    """

    form: Literal["batch", "micro_batch", "sequence", "deepseek_v3"]
    load_balancing: Number = Field(0.0, ge=0, le=LARGEST)
    z: Number = Field(0.0, ge=0, le=LARGEST)


class EvaluationConfig(Part):
    """Sequences that are not trained, whose loss is computed while training.

    Attributes:
        files: files of rows, read as those of `data`.
        share: part of the groups of `data` that is held out instead, chosen by `seed`.
        every: optimiser steps between two evaluations; there is one after the last step too.
    """

    files: list[Name] | None = Field(None, min_length=1)
    share: Number | None = Field(None, gt=0, lt=1)
    every: Whole = Field(ge=1)

    @model_validator(mode="before")
    @classmethod
    def _single_file(cls, values: Any) -> Any:
        return one_file_as_list(values)

    @model_validator(mode="after")
    def _one_of_both(self) -> EvaluationConfig:
        if (self.files is None) == (self.share is None):
            raise ValueError("must have either 'files' or 'share'")
        return self
