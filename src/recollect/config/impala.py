"""The settings of IMPALA beside those that all algorithms share."""

from __future__ import annotations

from dataclasses import dataclass

from recollect.config.learner import LearnerConfig, require


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpalaConfig(LearnerConfig):
    """The settings of IMPALA. docs/algorithms.md says how the defaults were chosen."""

    rollout: int = 32
    """T: steps that every row records between two updates."""
    epochs: int = 1
    """Passes over each rollout; more than one make sense with ``clip``."""
    rho_clip: float = 1.0
    """The most that a step counts for, as the ratio of its probability now and when it was taken."""
    c_clip: float = 1.0
    """The most that a step passes on of what came after it; at most ``rho_clip``."""
    clip: float | None = None
    """If set, PPO's clip: how far a probability ratio may move in an update before its gradient stops."""
    normalise_advantages: bool = False
    """Advantages to mean 0 and spread 1, once over all valid steps of the batch."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        LearnerConfig.__post_init__(self)  # no super(): slots make the class anew
        self.require_positive("rho_clip", "c_clip", "clip")
        require(
            self.c_clip <= self.rho_clip,
            f"c_clip = {self.c_clip} is above rho_clip = {self.rho_clip}: V-trace needs it at most that",
        )
