"""The settings of the Mamba core."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from recollect.config.cores.base import CoreConfig
from recollect.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MambaConfig(CoreConfig):
    """Settings of the Mamba core."""

    code = "recollect.cores.mamba:Mamba"

    hidden: int = 128
    """Size of the output."""
    d_state: int = 16
    """Size of the state of every channel."""
    expand: int = 1
    """Number of channels, as a multiple of hidden."""
    conv: int = 4
    """Steps of the convolution, the current one included; at least 2."""
    dt_rank: int | None = None
    """Size of the bottleneck that computes the step sizes; None: a sixteenth of hidden."""
    dt_min: float = 0.01
    """Smallest initial step size. A memory with decay a fades over about 1 / (dt a) steps."""
    dt_max: float = 1.0
    """Largest initial step size."""
    a_min: float = 0.1
    """Smallest initial decay a = -A in every channel; the others are spread up to d_state."""

    def __post_init__(self) -> None:
        self.check("hidden", "d_state", "expand", "dt_rank")
        self.check("conv", least=2)
        if not 0 < self.a_min <= self.d_state:
            raise ConfigError(
                f"core.a_min = {self.a_min!r}: it must be above 0 and at most d_state = {self.d_state}, the "
                "largest decay"
            )
        if not 0 < self.dt_min <= self.dt_max < math.inf:
            raise ConfigError(
                f"core.dt_min = {self.dt_min!r} and core.dt_max = {self.dt_max!r}: step sizes need "
                "0 < dt_min <= dt_max, such as 0.01 and 1.0"
            )

    def reaching(self, steps: int) -> MambaConfig:
        """With a memory in every channel that fades over at least ``steps`` steps.

        The decays become slower, not the steps smaller, which would also write less.
        """
        return replace(self, a_min=min(self.a_min, 1 / (max(1, steps) * self.dt_max)))
