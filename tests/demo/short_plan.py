"""A plan that goes through every stage of the demo in seconds."""

from __future__ import annotations

from dataclasses import replace

from treetrain.demo.plans import PLANS

SHORT_PLAN = replace(
    PLANS["small"],
    tasks=2,
    trials=1,
    compared_steps=2,
    compared_tokens=1000,
    steps=4,
    errands_per_step=2,
    held_out=2,
    verified_tokens=2000,
    measured_tokens=2000,
    rounds=1,
)
