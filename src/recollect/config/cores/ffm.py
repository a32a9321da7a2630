"""The settings of the Fast and Forgetful Memory core."""

from __future__ import annotations

from dataclasses import dataclass, replace

from recollect.config.cores.base import CoreConfig


@dataclass(frozen=True, slots=True)
class FFMConfig(CoreConfig):
    """Settings of Fast and Forgetful Memory."""

    code = "recollect.cores.ffm:FFM"

    hidden: int = 128
    """Size of the output."""
    trace: int = 32
    """Number of traces, the features of an input that are remembered."""
    context: int = 4
    """Rotation speeds of every trace; the state has 2 * trace * context numbers."""
    chrono: int = 128
    """Longest time to remember, in steps: the initial decays are spread from one step to this."""

    def __post_init__(self) -> None:
        self.check("hidden", "trace", "context")
        self.check("chrono", least=2)

    def reaching(self, steps: int) -> FFMConfig:
        """With traces that last for up to twice ``steps`` steps."""
        return replace(self, chrono=2 * max(1, steps))
