"""Which losses of the routers are wanted, and what they came to; `router` defines them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from torch import Tensor

from treetrain.errors import check_number, check_type
from treetrain.losses.router_scores import Form


@dataclass(frozen=True, eq=False)
class RouterLoss:
    """Which losses of the routers are added to the loss of the tokens.

    Attributes:
        form: over what the load-balancing loss is taken: "batch" (all sequences of the window),
            "micro_batch" (those of each batch), "sequence" (each one) or "deepseek_v3" (each one,
            of sigmoid scores); `treetrain.losses.router` has the formulas.
        load_balancing: factor of the load-balancing loss, `router_aux_loss_coef` of many configs.
        z: factor of the router z-loss. With both 0 the routers have no loss.
        window_choices: for "batch" and a window of several batches, what `measure_choices` gave for
            all of them.

    Raises:
        ValueError: the form is unknown, or a factor is negative or not finite.
    """

    form: Form
    load_balancing: float = 0.0
    z: float = 0.0
    window_choices: Tensor | None = None

    def __post_init__(self) -> None:
        if self.form not in get_args(Form):
            raise ValueError(f"form must be one of {list(get_args(Form))}, got {self.form!r}")
        for name in ("load_balancing", "z"):
            number = getattr(self, name)
            check_number(name, number)
            if not (math.isfinite(number) and number >= 0):
                raise ValueError(f"{name} must be at least 0 and finite, got {number}")
        if self.window_choices is not None:
            check_type("window_choices", self.window_choices, Tensor, "from measure_choices")
            if self.form != "batch":
                raise ValueError(
                    f"window_choices must not be given for form {self.form!r}, which needs none"
                )

    @property
    def is_zero(self) -> bool:
        """Whether the routers have no loss."""
        return self.load_balancing == 0 and self.z == 0


@dataclass(frozen=True, eq=False)
class RouterTerms:
    """Losses of the routers; with a window, its batches' add up to those of the step.

    Attributes:
        loss: sum of the two below, each times its factor; a scalar with gradients.
        load_balancing: the load-balancing loss, a scalar without gradients; 0 where its factor is.
        z: the z-loss, a scalar without gradients; 0 where its factor is.
    """

    loss: Tensor
    load_balancing: Tensor
    z: Tensor
