"""How exactly the learner must reproduce what the actor recorded, by precision. Imports no torch."""

from __future__ import annotations

from typing import Literal

Precision = Literal["fp32", "bf16"]

TOLERANCES: dict[str, float] = {"fp32": 1e-4, "bf16": 5e-2}
"""How far log-probs and values (in units of their scale) that the learner recomputes may be from the
recorded ones, unless the settings say otherwise. ``policy/precision.py`` says why bf16 needs more."""


def tolerance(given: float | None, precision: str, rounding: float = 1.0) -> float:
    """The tolerance that was given, or that of the precision for a core of that ``rounding``."""
    return TOLERANCES[precision] * rounding if given is None else given
