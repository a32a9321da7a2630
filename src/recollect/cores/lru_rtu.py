"""LRU and RTU: complex memories that rotate and decay by learned factors, one complex number a unit.

The Linear Recurrent Unit of Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences"
(2023):

    lambda = exp(-exp(nu) + i exp(theta))                             N complex numbers, |lambda| < 1
    h_t = lambda h_{t-1} + exp(gamma) B x_t                           elementwise but for B, N x D, complex
    y_t = Re(C h_t) + D x_t

lambda starts uniform by area on a ring: |lambda|^2 uniform between r_min^2 and r_max^2, the phase uniform up
to ``max_phase``. gamma starts at log sqrt(1 - |lambda|^2), which gives h the scale of x.

Recurrent Trace Units of Elelimy et al., "Real-Time Recurrent Learning using Trace Units in Reinforcement
Learning" (2024), the linear kind, are the same recurrence in real numbers, with a fixed gain and a relu:

    r = exp(-exp(nu)),   phi = exp(theta),   g = sqrt(1 - r^2)
    p_t = r (cos phi p_{t-1} - sin phi q_{t-1}) + g W_p x_t
    q_t = r (sin phi p_{t-1} + cos phi q_{t-1}) + g W_q x_t
    f_t = (relu p_t, relu q_t)

(The paper's other kind has the nonlinearity inside the recurrence, which would need a loop over steps.)

Differences from the papers: both end in the gate and norm of ``cores.shared.readout`` instead of a block of
their own. (For the LRU its F and V are C and D, because Re(C h) is F (Re h, Im h).) The RTU is trained by
back-propagation through time, without the traces of real-time recurrent learning.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from recollect.config.cores import LRUConfig
from recollect.cores.contract import Core
from recollect.cores.shared.readout import Readout
from recollect.cores.shared.rotation import log_gain, modulus, turn, turns


class LRU(Core):
    """State h [B, units, 2]: real and imaginary parts."""

    starts_at_zero = True
    learns_gain = True
    """Whether the input gain is the parameter exp(gamma); otherwise it is sqrt(1 - r^2)."""
    initial_h: Tensor

    def __init__(self, input_size: int, config: LRUConfig):
        super().__init__(input_size, config.hidden)
        self.config = config
        N = config.units
        nu, theta = ring(N, config.r_min, config.r_max, config.max_phase)
        self.nu, self.theta = nn.Parameter(nu), nn.Parameter(theta)
        self.gamma = nn.Parameter(log_gain(nu)) if self.learns_gain else None
        # Rows in pairs. Complex weights of variance 1 / D have real and imaginary parts of half of it.
        fan_in = 2 * input_size if self.learns_gain else input_size
        self.weight = nn.Parameter(torch.randn(2 * N, input_size) / math.sqrt(fan_in))
        self.readout = Readout(2 * N, input_size, config.hidden)
        self.register_buffer("initial_h", torch.zeros(1, N, 2), persistent=False)

    def initial_state(self, batch: int) -> Tensor:
        """Zeros [batch, units, 2], as an expanded view."""
        return self.initial_h.expand(batch, -1, -1)

    def _features(self, h: Tensor) -> Tensor:
        """Input of the readout: h [..., units, 2] -> the same shape."""
        return h

    def _input(self, x: Tensor) -> Tensor:
        """The term that x [..., D] adds to h, [..., units, 2]."""
        gain = (log_gain(self.nu) if self.gamma is None else self.gamma).exp()
        return linear(x, gain.repeat_interleave(2).unsqueeze(-1) * self.weight).unflatten(-1, (-1, 2))

    def _step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h = turn(self._input(x), state, modulus(self.nu), self.theta.exp())
        return self.readout(self._features(h).flatten(-2), x), h

    def _unroll(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        h = turns(self._input(x), state, first, modulus(self.nu), self.theta.exp())
        return self.readout(self._features(h).flatten(-2), x), h[-1]


class RTU(LRU):
    """State (p, q) in pairs, [B, units, 2]."""

    learns_gain = False

    def _features(self, h: Tensor) -> Tensor:
        return torch.relu(h)


def ring(units: int, r_min: float, r_max: float, max_phase: float) -> tuple[Tensor, Tensor]:
    """Draw nu and theta [units] with exp(-exp(nu) + i exp(theta)) uniform by area on a ring."""
    squared = torch.empty(units).uniform_(r_min**2, r_max**2).clamp_(min=1e-6)
    phase = torch.empty(units).uniform_(0, max_phase).clamp_(min=1e-6)
    return (-0.5 * squared.log()).log(), phase.log()
