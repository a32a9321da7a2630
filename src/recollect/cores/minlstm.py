"""minLSTM of Feng et al., "Were RNNs All We Needed?" (2024): an LSTM whose gates do not depend on its state.

    f_t = sigmoid(W_f x_t + b_f),   i_t = sigmoid(W_i x_t + b_i),   c_t = W_c x_t + b_c
    h_t = f_t / (f_t + i_t) h_{t-1} + i_t / (f_t + i_t) c_t

The ratio of two gates replaces the one gate of minGRU; everything else is as in ``recollect.cores.mingru``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from recollect.cores.averaging import AveragingCore, spread_bias
from recollect.cores.checks import check_chrono, check_size


@dataclass(frozen=True, slots=True)
class MinLSTMConfig:
    """Settings of the minLSTM core."""

    hidden: int = 128
    """Size of h and of the output."""
    learned_initial_state: bool = False
    """Whether the state at the start of an episode is learned; otherwise it is zero."""
    chrono: int = 32
    """The longest time to remember, in steps: gates start spread between forgetting at once and this."""
    convolution: int = 4
    """Steps that a convolution in front spans, by which gates see the latest inputs too; 1 for none."""

    def __post_init__(self) -> None:
        check_size(self, hidden=self.hidden, convolution=self.convolution)
        check_chrono(self, self.chrono, optional=False)

    def reaching(self, steps: int) -> MinLSTMConfig:
        """With gates that start open for up to twice ``steps`` steps."""
        return replace(self, chrono=2 * max(1, steps))

    def build(self, input_size: int) -> MinLSTM:
        """The core for inputs of ``input_size`` features."""
        return MinLSTM(input_size, self)


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
