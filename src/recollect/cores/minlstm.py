"""minLSTM of Feng et al., "Were RNNs All We Needed?" (2024): an LSTM whose gates do not see its state.

    f_t = sigmoid(W_f x_t + b_f),   i_t = sigmoid(W_i x_t + b_i),   c_t = W_c x_t + b_c
    h_t = f_t / (f_t + i_t) h_{t-1} + i_t / (f_t + i_t) c_t

Two gates for the one of minGRU: keeping and taking each have their say, and what counts is their ratio.
All else is as in ``recollect.cores.mingru``, for the same reasons.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from recollect.config.cores.minlstm import MinLSTMConfig
from recollect.cores.averaging import GATE_GAIN, Average, AverageState, spread_bias
from recollect.cores.contract import Core


class MinLSTM(Core):
    """State: h [B, H], and the last inputs [B, convolution - 1, D]."""

    def __init__(self, input_size: int, config: MinLSTMConfig):
        super().__init__(input_size, config.hidden)
        self.config = config
        self.starts_at_zero = not config.learned_initial_state
        self.keep = nn.Linear(input_size, config.hidden)  # f
        self.take = nn.Linear(input_size, config.hidden)  # i
        self.average = Average(input_size, config.hidden, config.convolution, config.learned_initial_state)
        for layer in (self.keep, self.take):
            nn.init.xavier_uniform_(layer.weight, GATE_GAIN)
        with torch.no_grad():
            # sigmoid(b) + sigmoid(-b) = 1: with these two the share of the new is sigmoid(-b).
            self.keep.bias.copy_(spread_bias(config.hidden, config.chrono))
            self.take.bias.copy_(-self.keep.bias)

    def initial_state(self, batch: int) -> AverageState:
        """Zeros, or the learned h, as expanded views."""
        return self.average.initial_state(batch)

    def _share(self, x: Tensor) -> Tensor:
        # i / (f + i), which would be 0 / 0 with both gates shut tight.
        return torch.sigmoid(logsigmoid(self.take(x)) - logsigmoid(self.keep(x)))

    def _step(self, x: Tensor, state: AverageState) -> tuple[Tensor, AverageState]:
        return self.average.step(x, state, self._share)

    def _unroll(self, x: Tensor, state: AverageState, first: Tensor) -> tuple[Tensor, AverageState]:
        return self.average.unroll(x, state, first, self._share)
