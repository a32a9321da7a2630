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

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from recollect.config.cores.lru import LRUConfig
from recollect.cores.contract import Core
from recollect.cores.readout import Readout
from recollect.cores.rotation import log_gain, modulus, ring, turn, turns


class LRU(Core):
    """State h [B, units, 2], the real and the imaginary parts."""

    initial_h: Tensor

    def __init__(self, input_size: int, config: LRUConfig):
        super().__init__(input_size, config.hidden)
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
