"""Recurrent Trace Units of Elelimy et al., "Real-Time Recurrent Learning using Trace Units in
Reinforcement Learning" (2024), the linear kind.

    r = exp(-exp(nu)),   phi = exp(theta),   g = sqrt(1 - r^2)
    p_t = r (cos phi p_{t-1} - sin phi q_{t-1}) + g W_p x_t
    q_t = r (sin phi p_{t-1} + cos phi q_{t-1}) + g W_q x_t
    f_t = (relu p_t, relu q_t)

A diagonal complex recurrence in real numbers, whose two parts go on through a nonlinearity instead of a
complex product: the LRU is the same recurrence with a product behind it and g learned. (Their other kind has
the nonlinearity inside the recurrence, and would need a loop over steps.)

Chosen here: theirs feeds f to the layers of actor and critic, ours have one linear head each, so
that ``recollect.cores.readout`` is that layer. Learning is by backpropagation, as for all cores: the
traces, which would make it run in real time, are left out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from recollect.config.cores.rtu import RTUConfig
from recollect.cores.contract import Core
from recollect.cores.readout import Readout
from recollect.cores.rotation import log_gain, modulus, ring, turn, turns


class RTU(Core):
    """State (p, q) in pairs, [B, units, 2]."""

    initial_h: Tensor

    def __init__(self, input_size: int, config: RTUConfig):
        super().__init__(input_size, config.hidden)
        self.config = config
        self.starts_at_zero = True
        N = config.units
        nu, theta = ring(N, config.r_min, config.r_max, config.max_phase)
        self.nu, self.theta = nn.Parameter(nu), nn.Parameter(theta)
        self.weight = nn.Parameter(torch.randn(2 * N, input_size) / math.sqrt(input_size))  # p, q in pairs
        self.readout = Readout(2 * N, input_size, config.hidden)
        self.register_buffer("initial_h", torch.zeros(1, N, 2), persistent=False)

    def initial_state(self, batch: int) -> Tensor:
        """Zeros [batch, units, 2], as an expanded view."""
        return self.initial_h.expand(batch, -1, -1)

    def _input(self, x: Tensor) -> Tensor:
        """What x [..., D] adds to (p, q), [..., units, 2]."""
        gain = log_gain(self.nu).exp().repeat_interleave(2).unsqueeze(-1)
        return linear(x, gain * self.weight).unflatten(-1, (-1, 2))

    def _step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h = turn(self._input(x), state, modulus(self.nu), self.theta.exp())
        return self.readout(torch.relu(h).flatten(-2), x), h

    def _unroll(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        h = turns(self._input(x), state, first, modulus(self.nu), self.theta.exp())
        return self.readout(torch.relu(h).flatten(-2), x), h[-1]
