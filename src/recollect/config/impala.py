"""The settings of IMPALA beside those that all algorithms share."""

from __future__ import annotations

from dataclasses import dataclass

from recollect.config.algo_shared import LearnerConfig
from recollect.config.fields import above_zero, require


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpalaConfig(LearnerConfig):
    """Settings of IMPALA. docs/algorithms.md explains the defaults."""

    rollout: int = 32
    """T: steps that every row records between two updates."""
    epochs: int = 1
    """Passes over each rollout; use more than one only with ``clip``."""
    rho_clip: float = 1.0
    """Upper bound of the importance weight of a step, the ratio of its probability now and when acting."""
    c_clip: float = 1.0
    """Upper bound of the importance weight that V-trace passes back in time; at most ``rho_clip``."""
    clip: float | None = None
    """If set, PPO's clip range: how far a probability ratio may move in an update before its gradient
    stops."""
    normalise_advantages: bool = False
    """Normalise advantages to mean 0 and standard deviation 1, over all valid steps of the batch."""

    def __post_init__(self) -> None:
        """Validate."""
        LearnerConfig.__post_init__(self)  # no super(): slots=True replaces the class
        above_zero(self, "rho_clip", "c_clip", "clip")
        require(
            self.c_clip <= self.rho_clip,
            f"c_clip = {self.c_clip} is above rho_clip = {self.rho_clip}: V-trace needs c_clip <= rho_clip",
        )
