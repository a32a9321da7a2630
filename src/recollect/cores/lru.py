"""The Linear Recurrent Unit of Orvieto et al., "Resurrecting Recurrent Neural Networks for Long
Sequences" (2023).

    lambda = exp(-exp(nu) + i exp(theta))                             N complex numbers, |lambda| < 1
    h_t = lambda h_{t-1} + exp(gamma) B x_t                           elementwise but for B, N x D, complex
    y_t = Re(C h_t) + D x_t

lambda starts uniform by area on a ring: |lambda|^2 uniform between r_min^2 and r_max^2, the phase uniform up
to ``max_phase``. gamma starts at log sqrt(1 - |lambda|^2), which gives h the scale of x.

Difference from the paper: its block has a norm before the unit and a gated linear unit with a skip connection
behind it. This core ends in the gate and norm of ``cores.shared.readout``, whose F and V are C and D
(Re(C h) is F (Re h, Im h)).
"""

from __future__ import annotations

from recollect.config.cores import LRUConfig
from recollect.cores.shared.rotation import RingCore


class LRU(RingCore):
    """State h [B, units, 2]: real and imaginary parts."""

    def __init__(self, input_size: int, config: LRUConfig):
        # Complex weights of variance 1 / D: real and imaginary parts of half of it.
        super().__init__(input_size, config, fan_in=2 * input_size, learns_gain=True)
