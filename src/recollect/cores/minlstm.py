"""minLSTM of Feng et al., "Were RNNs All We Needed?" (2024): an LSTM whose gates do not depend on its state.

    f_t = sigmoid(W_f x_t + b_f),   i_t = sigmoid(W_i x_t + b_i),   c_t = W_c x_t + b_c
    h_t = f_t / (f_t + i_t) h_{t-1} + i_t / (f_t + i_t) c_t

The ratio of two gates replaces the one gate of minGRU; everything else is as in ``recollect.cores.mingru``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from recollect.config.cores import MinLSTMConfig
from recollect.cores.shared.averaging import AveragingCore, spread_bias


class MinLSTM(AveragingCore):
    """State: h [B, H] and, with a convolution, its last inputs [B, convolution - 1, D]."""

    keep: nn.Linear  # f
    take: nn.Linear  # i

    def __init__(self, input_size: int, config: MinLSTMConfig):
        super().__init__(input_size, config, ("keep", "take"))
        with torch.no_grad():
            # sigmoid(b) + sigmoid(-b) = 1: with these biases the share starts at sigmoid(-b).
            self.keep.bias.copy_(spread_bias(config.hidden, config.chrono))
            self.take.bias.copy_(-self.keep.bias)

    def _share(self, v: Tensor) -> Tensor:
        # i / (f + i) in logarithms: with both gates closed the quotient would be 0 / 0.
        return torch.sigmoid(logsigmoid(self.take(v)) - logsigmoid(self.keep(v)))
