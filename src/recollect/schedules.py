"""Schedules: how a coefficient moves over the course of a run."""

from __future__ import annotations

import math
from typing import Literal

from recollect.errors import ConfigError

Shape = Literal["constant", "linear", "cosine"]


def scheduled(start: float, end: float, shape: Shape, progress: float, warmup: float = 0.0) -> float:
    """The coefficient at ``progress`` (0 at the start of the run, 1 at its end).

    During the first ``warmup`` of the run it rises linearly from 0 to ``start``; then it stays
    ("constant") or goes to ``end`` in a straight line ("linear") or half a cosine ("cosine").
    """
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        return start * progress / warmup
    along = (progress - warmup) / (1 - warmup) if warmup < 1 else 1.0
    if shape == "constant":
        return start
    if shape == "linear":
        return start + (end - start) * along
    if shape == "cosine":
        return end + (start - end) * 0.5 * (1 + math.cos(math.pi * along))
    raise ConfigError(f"no schedule is named {shape!r}: choose constant, linear or cosine")
