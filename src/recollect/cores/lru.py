"""The Linear Recurrent Unit of Orvieto et al., "Resurrecting Recurrent Neural Networks for Long
Sequences" (2023).

    lambda = exp(-exp(nu) + i exp(theta))                             N complex numbers, |lambda| < 1
    h_t = lambda h_{t-1} + exp(gamma) B x_t                           elementwise but for B, N x D, complex
    y_t = Re(C h_t) + D x_t

lambda starts on a ring, evenly by area: |lambda|^2 uniform between r_min^2 and r_max^2, its phase uniform
up to ``max_phase``. gamma starts at log sqrt(1 - |lambda|^2), so that h has the scale of x whatever the
memory.

Chosen here: where theirs stands in a block, with a norm before it and a gated linear unit and a skip
connection behind it, this one core ends in the gate and norm of ``recollect.cores.readout``, whose F and V
are C and D (Re(C h) is F (Re h, Im h)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from recollect.cores.checks import check_size
from recollect.cores.contract import Core
from recollect.cores.readout import Readout
from recollect.cores.rotation import check_ring, log_gain, modulus, reaching_ring, ring, turn, turns


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


class LRU(Core):
    """State h [B, units, 2], the real and the imaginary parts."""

    initial_h: Tensor

    def __init__(self, input_size: int, config: LRUConfig):
        super().__init__(input_size, config.hidden)
        check_size(self, input_size=input_size)
        self.config = config
        self.starts_at_zero = True
        N = config.units
        nu, theta = ring(N, config.r_min, config.r_max, config.max_phase)
        self.nu, self.theta = nn.Parameter(nu), nn.Parameter(theta)
        self.gamma = nn.Parameter(log_gain(nu))
        self.weight = nn.Parameter(torch.randn(2 * N, input_size) / math.sqrt(2 * input_size))  # B, in pairs
        self.readout = Readout(2 * N, input_size, config.hidden)
        self.register_buffer("initial_h", torch.zeros(1, N, 2), persistent=False)

    def initial_state(self, batch: int) -> Tensor:
        """Zeros [batch, units, 2], as an expanded view."""
        return self.initial_h.expand(batch, -1, -1)

    def _input(self, x: Tensor) -> Tensor:
        """What x [..., D] adds to h, [..., units, 2]."""
        gain = self.gamma.exp().repeat_interleave(2).unsqueeze(-1)
        return linear(x, gain * self.weight).unflatten(-1, (-1, 2))

    def _step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h = turn(self._input(x), state, modulus(self.nu), self.theta.exp())
        return self.readout(h.flatten(-2), x), h

    def _unroll(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        h = turns(self._input(x), state, first, modulus(self.nu), self.theta.exp())
        return self.readout(h.flatten(-2), x), h[-1]
