"""Fast and Forgetful Memory of Morad et al., "Reinforcement Learning with Fast and Forgetful Memory"
(2023).

    u_t = (W_1 x_t) sigmoid(W_2 x_t)                        m traces, gated
    S_t[j, k] = exp(-alpha_j + i omega_k) S_{t-1}[j, k] + u_t[j]       every trace in each of c contexts
    y_t = readout(S_t, x_t)                                 the gate and layer norm of ``readout``

Each trace has its own decay, each context its own frequency; together they encode when an input was seen. The
state is small, 256 numbers by default, and its authors report it ahead of the GRU on POPGym.

Differences from the paper: alpha and omega are learned as logarithms, so that Adam changes them by a fraction
and long memories survive; time constants and periods start evenly spaced on a logarithmic scale; and a trace
adds sqrt(1 - exp(-2 alpha)) u_t, as in the LRU, so that initially long traces do not dominate the layer norm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from recollect.config.cores import FFMConfig
from recollect.cores.contract import Core
from recollect.cores.shared.readout import Readout
from recollect.cores.shared.rotation import log_gain, modulus, turn, turns


class FFM(Core):
    """State S [B, trace, context, 2]: real and imaginary parts."""

    starts_at_zero = True
    initial_s: Tensor

    def __init__(self, input_size: int, config: FFMConfig):
        super().__init__(input_size, config.hidden)
        self.config = config
        m, c, longest = config.trace, config.context, math.log(config.chrono)
        self.log_alpha = nn.Parameter(-torch.linspace(0, longest, m))
        # Periods from 4 steps to twice the longest time.
        self.log_omega = nn.Parameter(
            math.log(2 * math.pi) - torch.linspace(math.log(4), longest + math.log(2), c)
        )
        self.new, self.gate = nn.Linear(input_size, m), nn.Linear(input_size, m)  # W_1, W_2
        for layer in (self.new, self.gate):
            nn.init.orthogonal_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.readout = Readout(2 * m * c, input_size, config.hidden)
        self.register_buffer("initial_s", torch.zeros(1, m, c, 2), persistent=False)

    def initial_state(self, batch: int) -> Tensor:
        """Zeros [batch, trace, context, 2], as an expanded view."""
        return self.initial_s.expand(batch, -1, -1, -1)

    def _input(self, x: Tensor) -> Tensor:
        """The term that x [..., D] adds to S, [..., trace, context, 2]: real, and equal in all contexts."""
        u = self.new(x) * torch.sigmoid(self.gate(x)) * log_gain(self.log_alpha).exp()
        pairs = torch.stack((u, torch.zeros_like(u)), -1)  # [..., trace, 2]
        return pairs.unsqueeze(-2).expand(*u.shape, self.config.context, 2)

    def _factors(self) -> tuple[Tensor, Tensor]:
        """Modulus and phase of the factors, [trace, context] each."""
        shape = (self.config.trace, self.config.context)
        return modulus(self.log_alpha).unsqueeze(-1).expand(shape), self.log_omega.exp().expand(shape)

    def _step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        s = turn(self._input(x), state, *self._factors())
        return self.readout(s.flatten(-3), x), s

    def _unroll(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        s = turns(self._input(x), state, first, *self._factors())
        return self.readout(s.flatten(-3), x), s[-1]
