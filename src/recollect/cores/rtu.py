"""Recurrent Trace Units of Elelimy et al., "Real-Time Recurrent Learning using Trace Units in
Reinforcement Learning" (2024), the linear kind.

    r = exp(-exp(nu)),   phi = exp(theta),   g = sqrt(1 - r^2)
    p_t = r (cos phi p_{t-1} - sin phi q_{t-1}) + g W_p x_t
    q_t = r (sin phi p_{t-1} + cos phi q_{t-1}) + g W_q x_t
    f_t = (relu p_t, relu q_t)

A diagonal complex recurrence in real numbers. The LRU is the same recurrence with a learned g and a complex
product in place of the relu. (The paper's other kind has the nonlinearity inside the recurrence, which would
need a loop over steps.)

Differences from the paper: f feeds ``recollect.cores.readout``, because actor and critic here are one linear
layer each. Gradients come from back-propagation through time, without the traces of real-time recurrent
learning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recollect.cores.checks import check_size
from recollect.cores.rotation import RingCore, check_ring, reaching_ring


@dataclass(frozen=True, slots=True)
class RTUConfig:
    """Settings of the RTU core."""

    hidden: int = 128
    """Size of the output."""
    units: int = 128
    """Trace units, two numbers each."""
    r_min: float = 0.5
    """The smallest share of a unit that is left after a step, to begin with."""
    r_max: float = 0.99
    """The largest one: a unit keeps for about 1 / (1 - r) steps."""
    max_phase: float = 3.1416
    """The largest angle by which a unit turns in a step, to begin with; half a turn by default."""

    def __post_init__(self) -> None:
        check_size(self, hidden=self.hidden, units=self.units)
        check_ring(self, self.r_min, self.r_max, self.max_phase)

    def reaching(self, steps: int) -> RTUConfig:
        """With units that keep for a tenth of ``steps`` to twice as long."""
        r_min, r_max = reaching_ring(steps)
        return replace(self, r_min=r_min, r_max=r_max)

    def build(self, input_size: int) -> RTU:
        """The core for inputs of ``input_size`` features."""
        return RTU(input_size, self)


class RTU(RingCore):
    """State (p, q) in pairs, [B, units, 2]."""

    def __init__(self, input_size: int, config: RTUConfig):
        super().__init__(input_size, config, fan_in=input_size, learns_gain=False)

    def _features(self, h: Tensor) -> Tensor:
        return torch.relu(h)
