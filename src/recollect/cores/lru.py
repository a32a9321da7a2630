"""The Linear Recurrent Unit of Orvieto et al., "Resurrecting Recurrent Neural Networks for Long
Sequences" (2023).

    lambda = exp(-exp(nu) + i exp(theta))                             N complex numbers, |lambda| < 1
    h_t = lambda h_{t-1} + exp(gamma) B x_t                           elementwise but for B, N x D, complex
    y_t = Re(C h_t) + D x_t

lambda starts uniform by area on a ring: |lambda|^2 uniform between r_min^2 and r_max^2, the phase uniform up
to ``max_phase``. gamma starts at log sqrt(1 - |lambda|^2), which gives h the scale of x.

Difference from the paper: its block has a norm before the unit and a gated linear unit with a skip connection
behind it. This core ends in the gate and norm of ``recollect.cores.readout``, whose F and V are C and D
(Re(C h) is F (Re h, Im h)).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from recollect.cores.checks import check_size
from recollect.cores.rotation import RingCore, check_ring, reaching_ring


@dataclass(frozen=True, slots=True)
class LRUConfig:
    """Settings of the LRU core."""

    hidden: int = 128
    """Size of the output."""
    units: int = 128
    """Complex numbers in the state."""
    r_min: float = 0.5
    """The smallest share of a unit that is left after a step, to begin with."""
    r_max: float = 0.99
    """The largest one: a unit keeps for about 1 / (1 - r) steps."""
    max_phase: float = 3.1416
    """The largest angle by which a unit turns in a step, to begin with; half a turn by default."""

    def __post_init__(self) -> None:
        check_size(self, hidden=self.hidden, units=self.units)
        check_ring(self, self.r_min, self.r_max, self.max_phase)

    def reaching(self, steps: int) -> LRUConfig:
        """With units that keep for a tenth of ``steps`` to twice as long."""
        r_min, r_max = reaching_ring(steps)
        return replace(self, r_min=r_min, r_max=r_max)

    def build(self, input_size: int) -> LRU:
        """The core for inputs of ``input_size`` features."""
        return LRU(input_size, self)


class LRU(RingCore):
    """State h [B, units, 2]: real and imaginary parts."""

    def __init__(self, input_size: int, config: LRUConfig):
        # Complex weights of variance 1 / D: real and imaginary parts of half of it.
        super().__init__(input_size, config, fan_in=2 * input_size, learns_gain=True)
