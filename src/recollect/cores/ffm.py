"""Fast and Forgetful Memory of Morad et al., "Reinforcement Learning with Fast and Forgetful Memory"
(2023).

    u_t = (W_1 x_t) sigmoid(W_2 x_t)                        m traces, gated
    S_t[j, k] = exp(-alpha_j + i omega_k) S_{t-1}[j, k] + u_t[j]       every trace in each of c contexts
    y_t = readout(S_t, x_t)                                 the gate and layer norm of ``readout``

A trace fades at its own speed; its contexts turn at theirs, by which the time of what was seen can be told.

Why this one beside the LRU: its authors, who also made POPGym, report it ahead of the GRU, which had led
their comparison of thirteen memories there, without another change to the agent; its state is small (256
numbers by default); and it runs on the same scan as the others here. Of the alternatives, S5 is at heart the
recurrence of the LRU, which is here, in another parametrisation; and Stable Hadamard Memory (Le et al. 2024),
which its authors report ahead of this one on POPGym, carries a full matrix for every row and draws a part of
its update at random in every step, which acting and learning would have to share.

Chosen here: alpha and omega are kept as logarithms, so that Adam changes them by shares, not by
amounts that a long memory would not survive; time constants and periods are spread evenly on a logarithmic
scale; and a trace takes in sqrt(1 - exp(-2 alpha)) u_t, as in the LRU, so that at the start of training
long traces do not drown short ones in the layer norm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from recollect.config.cores.ffm import FFMConfig
from recollect.cores.contract import Core
from recollect.cores.readout import Readout
from recollect.cores.rotation import log_gain, modulus, turn, turns


class FFM(Core):
    """State S [B, trace, context, 2], the real and the imaginary parts."""

    initial_s: Tensor

    def __init__(self, input_size: int, config: FFMConfig):
        super().__init__(input_size, config.hidden)
        self.config = config
        self.starts_at_zero = True
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
        """What x [..., D] adds to S, [..., trace, context, 2]: the same in all contexts, and real."""
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
