"""The settings of the action head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recollect.config.fields import at_least, check_fields
from recollect.errors import ConfigError


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Settings of the action head, which makes an action distribution of features."""

    section = "head."

    squash: Literal["auto"] | bool = "auto"
    """Whether a Box action is tanh(u), scaled to its bounds; auto: where all bounds are finite."""
    state_dependent_std: bool = False
    """Whether the standard deviation is a function of the features; else one parameter per dimension."""
    log_std_init: float = -0.5
    """Initial log standard deviation, in units of the (pre-tanh) action."""
    log_std_min: float = -5.0
    """Lower bound of the log standard deviation."""
    log_std_max: float = 1.0
    """Upper bound of the log standard deviation; at most 1 for a squashed Box."""
    gain: float = 0.01
    """Gain of the orthogonal initial weights of the last layer; a small one makes all actions likely."""

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(self, 0, "gain")
        if not self.log_std_min < self.log_std_max:
            raise ConfigError(
                f"head.log_std_min = {self.log_std_min} must be below head.log_std_max = {self.log_std_max}"
            )
        if not self.log_std_min <= self.log_std_init <= self.log_std_max:
            raise ConfigError(
                f"head.log_std_init = {self.log_std_init} is outside of "
                f"[{self.log_std_min}, {self.log_std_max}] (log_std_min, log_std_max): change one of them"
            )
