"""The settings of PPO beside those that all algorithms share."""

from __future__ import annotations

from dataclasses import dataclass

from recollect.config.learner import LearnerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOConfig(LearnerConfig):
    """The settings of PPO. docs/tuning.md says how the defaults were chosen."""

    clip: float = 0.2
    """How far a probability ratio may move before its gradient stops."""
    value_clip: float | None = None
    """If set, how far the value may move in an update, in units of the returns' spread."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        LearnerConfig.__post_init__(self)  # no super(): slots make the class anew
        self.require_positive("clip", "value_clip")
