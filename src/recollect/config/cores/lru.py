"""The settings of the LRU core."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from recollect.config.cores.base import CoreConfig, reaching_ring


@dataclass(frozen=True, slots=True)
class LRUConfig(CoreConfig):
    """Settings of the LRU core."""

    code = "recollect.cores.lru:LRU"

    hidden: int = 128
    """Size of the output."""
    units: int = 128
    """Units of the state: complex numbers, or pairs of real ones."""
    r_min: float = 0.5
    """Smallest initial decay factor of a unit per step."""
    r_max: float = 0.99
    """Largest initial decay factor: a unit remembers for about 1 / (1 - r) steps."""
    max_phase: float = 3.1416
    """Largest initial angle, in radians, by which a unit turns in a step."""

    def __post_init__(self) -> None:
        self.check("hidden", "units")
        self.check_ring(self.r_min, self.r_max, self.max_phase)

    def reaching(self, steps: int) -> Self:
        """With units that remember for a tenth of ``steps`` to twice as long."""
        r_min, r_max = reaching_ring(steps)
        return replace(self, r_min=r_min, r_max=r_max)
