"""The settings of IQN beside those that all replay algorithms share."""

from __future__ import annotations

from dataclasses import dataclass

from recollect.config.fields import above_zero, at_least
from recollect.config.replay import ReplayConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class IQNConfig(ReplayConfig):
    """Settings of IQN. docs/tuning.md explains the defaults."""

    default_head = "quantile"

    quantiles: int = 8
    """Fractions drawn for each learned step, at which the return's distribution is predicted."""
    target_quantiles: int = 8
    """Fractions drawn for each target."""
    kappa: float = 1.0
    """Error from which the quantile Huber loss is linear."""

    def __post_init__(self) -> None:
        """Validate."""
        ReplayConfig.__post_init__(self)  # no super(): slots=True replaces the class
        at_least(self, 1, "quantiles", "target_quantiles")
        above_zero(self, "kappa")
