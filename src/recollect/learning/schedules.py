"""Schedules of coefficients over the course of a run."""

from __future__ import annotations

import math

from recollect.config.algo_shared import Shape
from recollect.errors import ConfigError


def scheduled(end: float, shape: Shape, progress: float, warmup: float = 0.0) -> float:
    """The factor of a coefficient at ``progress`` (0 at the start of the run, 1 at its end).

    It rises linearly from 0 to 1 during the first ``warmup`` of the run. Then it stays 1 ("constant"), or
    moves to ``end`` along a line ("linear") or half a cosine ("cosine").
    """
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        return progress / warmup
    along = (progress - warmup) / (1 - warmup)
    if shape == "constant":
        return 1.0
    if shape == "linear":
        return 1 + (end - 1) * along
    if shape == "cosine":
        return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * along))
    raise ConfigError(f"no schedule is named {shape!r}: choose constant, linear or cosine")
