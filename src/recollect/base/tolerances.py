"""How closely the learner must reproduce the actor's records, by precision. Imports no torch."""

from __future__ import annotations

from typing import Literal

Precision = Literal["auto", "fp32", "tf32", "bf16"]

TOLERANCES: dict[str, float] = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 5e-2}
"""Default maximum difference between recomputed and recorded log-probs and values (in units of their scale).
``policy/precision.py`` explains the value for bf16."""


def on_device(precision: str, device: str) -> str:
    """The precision; "auto" is "tf32" on a GPU and "fp32" elsewhere."""
    if precision != "auto":
        return precision
    return "tf32" if device.startswith("cuda") else "fp32"


def tolerance(given: float | None, precision: str, rounding: float = 1.0) -> float:
    """``given``, or the default of the precision times the ``rounding`` factor of the core."""
    return TOLERANCES[precision] * rounding if given is None else given
