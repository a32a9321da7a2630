"""The settings of PPO beside those that all algorithms share."""

from __future__ import annotations

from dataclasses import dataclass

from recollect.config.algo_shared import LearnerConfig
from recollect.config.fields import above_zero


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOConfig(LearnerConfig):
    """Settings of PPO. docs/tuning.md explains the defaults."""

    clip: float = 0.2
    """Clip range: how far a probability ratio may move in an update before its gradient stops."""
    value_clip: float | None = None
    """If set, clip range of the value, in units of the returns' standard deviation."""

    def __post_init__(self) -> None:
        """Validate."""
        LearnerConfig.__post_init__(self)  # no super(): slots=True replaces the class
        above_zero(self, "clip", "value_clip")
