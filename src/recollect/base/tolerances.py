"""How exactly the learner must reproduce what the actor recorded, by precision. Imports no torch."""

from __future__ import annotations

from typing import Literal

Precision = Literal["auto", "fp32", "tf32", "bf16"]

TOLERANCES: dict[str, float] = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 5e-2}
"""How far log-probs and values (in units of their scale) that the learner recomputes may be from the
recorded ones, unless the settings say otherwise. ``policy/precision.py`` says why bf16 needs more."""


def on_device(precision: str, device: str) -> str:
    """What "auto" means on a device: "tf32" on a GPU, "fp32" elsewhere; all else is what it is."""
    if precision != "auto":
        return precision
    return "tf32" if device.startswith("cuda") else "fp32"


def tolerance(given: float | None, precision: str, rounding: float = 1.0) -> float:
    """The tolerance that was given, or that of the precision for a core of that ``rounding``."""
    return TOLERANCES[precision] * rounding if given is None else given
