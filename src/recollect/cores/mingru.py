"""minGRU of Feng et al., "Were RNNs All We Needed?" (2024): a GRU whose gate does not see its state.

    z_t = sigmoid(W_z x_t + b_z),   c_t = W_c x_t + b_c,   h_t = (1 - z_t) h_{t-1} + z_t c_t

Chosen here:

- The plain form, not the one in logarithms, which needs c > 0 (their g) and loses precision. So c is
  linear and of either sign.
- The gates start with time constants from 1 to ``chrono`` steps, evenly spread on a logarithmic scale.
- A gate sees the input only, so that within one layer it cannot ask what came before; averages tell the
  order of events badly. The paper stacks layers, and puts a convolution over four steps before each in its
  language models; here there is one layer, and the convolution is what gates and readout see in place of x.
  Without it, repeat-previous (easy) was at a return of 0.0 after 150k steps.
- The output is that of ``recollect.cores.readout``: one layer has no other nonlinearity of its memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recollect.config.cores.mingru import MinGRUConfig
from recollect.cores.averaging import GATE_GAIN, Average, AverageState, spread_bias
from recollect.cores.contract import Core


class MinGRU(Core):
    """State: h [B, H], and the last inputs [B, convolution - 1, D]."""

    def __init__(self, input_size: int, config: MinGRUConfig):
        super().__init__(input_size, config.hidden)
        self.config = config
        self.starts_at_zero = not config.learned_initial_state
        self.gate = nn.Linear(input_size, config.hidden)
        self.average = Average(input_size, config.hidden, config.convolution, config.learned_initial_state)
        nn.init.xavier_uniform_(self.gate.weight, GATE_GAIN)
        with torch.no_grad():
            self.gate.bias.copy_(-spread_bias(config.hidden, config.chrono))

    def initial_state(self, batch: int) -> AverageState:
        """Zeros, or the learned h, as expanded views."""
        return self.average.initial_state(batch)

    def _share(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.gate(x))

    def _step(self, x: Tensor, state: AverageState) -> tuple[Tensor, AverageState]:
        return self.average.step(x, state, self._share)

    def _unroll(self, x: Tensor, state: AverageState, first: Tensor) -> tuple[Tensor, AverageState]:
        return self.average.unroll(x, state, first, self._share)
