"""The sLSTM of Beck et al., "xLSTM: Extended Long Short-Term Memory" (NeurIPS 2024).

An LSTM whose input gate is an exponential, so that one input can outweigh all earlier ones, and whose cell is
divided by the sum of its weights. Recurrent weights mix units only within a head.

    i, z, o, f = W x + R h + b          (the paper's i~, z~, o~, f~)
    c' = sigmoid(f) c + exp(i) tanh(z)
    n' = sigmoid(f) n + exp(i)
    h' = sigmoid(o) c' / n'

exp(i) overflows. The paper stores c exp(-m) and n exp(-m), with m = max(log sigmoid(f) + m, i) as a third
part of the state, and must treat 0 / 0 and the gradient of that maximum. Here the state is scaled so that
n = 1 always, which gives the same h without those cases:

    a  = log sigmoid(f) + m             (c, n, m)  ->  (c / n, 1, m + log n)
    m' = log(exp(a) + exp(i))
    c' = c + sigmoid(i - a) (tanh(z) - c)
    h' = sigmoid(o) c'

So c is a weighted mean of all tanh(z) so far and m the logarithm of the sum of their weights.

Differences from the paper: an episode starts with n = 1 and c = 0 rather than n = 0, as if a zero of weight 1
had been seen. The output is h after a layer norm over each head, as in the paper's block, because a mean over
many steps is small. There is no convolution before the gates and no projection around the cell.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from recollect.base import devices
from recollect.config.cores import SLSTMConfig
from recollect.cores.contract import Core
from recollect.cores.shared.initial_weights import chrono_bias
from recollect.kernels.cpu.slstm import slstm, slstm_by_steps, step
from recollect.kernels.segments import split_at_resets

SLSTMState = tuple[Tensor, Tensor, Tensor]
EPSILON = 1e-3
"""Added to the variance in the norm of the output, so that rounding errors are not amplified."""


class SLSTM(Core):
    """State (h, c, m), each [B, H]; the output is h, normalised over each head."""

    starts_at_zero = True
    initial: Tensor

    def __init__(self, input_size: int, config: SLSTMConfig):
        super().__init__(input_size, config.hidden)
        self.config = config
        H, heads = config.hidden, config.heads
        unit = H // heads
        # Weight rows and biases are ordered by head, gate (i, z, o, f), unit; likewise the last dimension of
        # the recurrent weight, whose first dimension is the head.
        self.weight = nn.Parameter(torch.empty(4 * H, input_size))
        self.recurrent = nn.Parameter(torch.empty(heads, unit, 4 * unit))
        self.bias = nn.Parameter(torch.zeros(4 * H))
        if config.norm:
            self.scale = nn.Parameter(torch.ones(H))
            self.shift = nn.Parameter(torch.zeros(H))
        self.register_buffer("initial", torch.zeros(1, H), persistent=False)
        self._init_weights()

    @torch.no_grad()
    def _init_weights(self) -> None:
        H, heads, config = self.config.hidden, self.config.heads, self.config
        by_gate = self.weight.view(heads, 4, -1, self.input_size).transpose(0, 1)  # [gate, head, unit, D]
        for gate in by_gate:
            gate.copy_(nn.init.xavier_uniform_(torch.empty(H, self.input_size)).view(gate.shape))
        for head in self.recurrent:
            for gate in head.chunk(4, 1):
                nn.init.orthogonal_(gate)
        chrono = config.chrono
        forget = torch.full((H,), config.forget_bias) if chrono is None else chrono_bias(H, chrono)
        self.bias.view(heads, 4, -1)[:, 3] = forget.view(heads, -1)

    def initial_state(self, batch: int) -> SLSTMState:
        """Zeros, each [batch, H], as expanded views."""
        zeros = self.initial.expand(batch, -1)
        return zeros, zeros, zeros

    def _step(self, x: Tensor, state: SLSTMState) -> tuple[Tensor, SLSTMState]:
        h, c, m = step(functional.linear(x, self.weight, self.bias), *state, self.recurrent)
        return self._normalised(h), (h, c, m)

    def _unroll(self, x: Tensor, state: SLSTMState, first: Tensor) -> tuple[Tensor, SLSTMState]:
        weights = self.weight, self.recurrent, self.bias
        if devices.synchronises(first):
            y, h, c, m = slstm_by_steps(x, *state, *weights, self.initial, first)
        else:
            segments = split_at_resets(first)
            h, c, m = (segments.start(leaf, self.initial) for leaf in state)  # [S, H] each
            y, h, c, m = slstm(x, h, c, m, *weights, segments)
        return self._normalised(y), (h, c, m)

    def _normalised(self, h: Tensor) -> Tensor:
        """h [..., H] with mean 0 and variance 1 over each head, scaled and shifted."""
        if not self.config.norm:
            return h
        by_head = h.unflatten(-1, (self.config.heads, -1))
        even = functional.layer_norm(by_head, by_head.shape[-1:], eps=EPSILON).flatten(-2)
        return torch.addcmul(self.shift, even, self.scale)
