"""Schedules: how a coefficient moves over the course of a run."""

from __future__ import annotations

import math

from recollect.config.learner import Shape
from recollect.errors import ConfigError


def scheduled(end: float, shape: Shape, progress: float, warmup: float = 0.0) -> float:
    """The share of a coefficient at ``progress`` (0 at the start of the run, 1 at its end).

    During the first ``warmup`` of the run it rises linearly from 0 to 1; then it stays ("constant")
    or goes to ``end`` in a straight line ("linear") or half a cosine ("cosine").
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
