"""The settings of IQN beside those that all replay algorithms share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recollect.config.fields import above_zero, at_least
from recollect.config.replay import ReplayConfig
from recollect.errors import ConfigError


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

    def check(self, policy: Any, rows: int) -> None:
        """Raise unless these settings fit the policy and the number of rows."""
        ReplayConfig.check(self, policy, rows)
        if not hasattr(policy.head, "quantiles"):
            raise ConfigError(
                f"{type(policy.head).__name__} has no quantiles, which iqn learns: leave head out, or use "
                "head='quantile', or algo='r2d2'"
            )
