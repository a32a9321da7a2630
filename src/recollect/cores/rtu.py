"""Recurrent Trace Units of Elelimy et al., "Real-Time Recurrent Learning using Trace Units in
Reinforcement Learning" (2024), the linear kind.

    r = exp(-exp(nu)),   phi = exp(theta),   g = sqrt(1 - r^2)
    p_t = r (cos phi p_{t-1} - sin phi q_{t-1}) + g W_p x_t
    q_t = r (sin phi p_{t-1} + cos phi q_{t-1}) + g W_q x_t
    f_t = (relu p_t, relu q_t)

A diagonal complex recurrence in real numbers. The LRU is the same recurrence with a learned g and a complex
product in place of the relu. (The paper's other kind has the nonlinearity inside the recurrence, which would
need a loop over steps.)

Differences from the paper: f feeds ``cores.shared.readout``, because actor and critic here are one linear
layer each. Gradients come from back-propagation through time, without the traces of real-time recurrent
learning.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.config.cores import RTUConfig
from recollect.cores.shared.rotation import RingCore


class RTU(RingCore):
    """State (p, q) in pairs, [B, units, 2]."""

    def __init__(self, input_size: int, config: RTUConfig):
        super().__init__(input_size, config, fan_in=input_size, learns_gain=False)

    def _features(self, h: Tensor) -> Tensor:
        return torch.relu(h)
