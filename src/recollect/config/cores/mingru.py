"""The settings of the minGRU core."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from recollect.config.cores.base import CoreConfig


@dataclass(frozen=True, slots=True)
class MinGRUConfig(CoreConfig):
    """Settings of the minGRU core."""

    code = "recollect.cores.mingru:MinGRU"

    hidden: int = 128
    """Size of h and of the output."""
    learned_initial_state: bool = False
    """Whether the state at the start of an episode is learned; otherwise it is zero."""
    chrono: int = 32
    """Longest time to remember, in steps: the initial gates are spread from one step to this."""
    convolution: int = 4
    """Steps of the convolution before the gates, the current one included; 1: no convolution."""

    def __post_init__(self) -> None:
        self.check("hidden", "convolution")
        self.check("chrono", least=2)

    def reaching(self, steps: int) -> Self:
        """With gates that start open for up to twice ``steps`` steps."""
        return replace(self, chrono=2 * max(1, steps))
