"""minGRU of Feng et al., "Were RNNs All We Needed?" (2024): a GRU whose gate does not depend on its state.

    z_t = sigmoid(W_z x_t + b_z),   c_t = W_c x_t + b_c,   h_t = (1 - z_t) h_{t-1} + z_t c_t

Differences from the paper:

- The plain recurrence, not the one in logarithms, which needs c > 0 and loses precision: c is linear and may
  have either sign.
- Gates start with time constants from 1 to ``chrono`` steps, evenly spaced on a logarithmic scale.
- Gates see no state, and averages hardly encode the order of events. The paper stacks layers, with a
  convolution over four steps before each in its language models. Here there is one layer, and gates and
  readout see the output of the convolution. Without it, repeat-previous (easy) had a return of 0.0 after
  150k steps.
- The output passes through ``recollect.cores.shared.readout``, the only nonlinearity behind the memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recollect.config.cores import MinGRUConfig
from recollect.cores.shared.averaging import AveragingCore, spread_bias


class MinGRU(AveragingCore):
    """State: h [B, H] and, with a convolution, its last inputs [B, convolution - 1, D]."""

    gate: nn.Linear

    def __init__(self, input_size: int, config: MinGRUConfig):
        super().__init__(input_size, config, ("gate",))
        with torch.no_grad():
            self.gate.bias.copy_(-spread_bias(config.hidden, config.chrono))

    def _share(self, v: Tensor) -> Tensor:
        return torch.sigmoid(self.gate(v))
