"""Complex memories that rotate and decay: h_t = r e^{i phi} h_{t-1} + u_t, one complex number a unit.

Shared by the LRU, the RTU and Fast and Forgetful Memory. States and inputs hold complex numbers as pairs of
reals [..., 2]; a step uses real operations only, which every exporter supports.

The modulus is r = exp(-exp(nu)), below 1 for every nu. Modulus and phase are learned as logarithms: an
optimiser step then changes them by a fraction, and long memories survive it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from recollect.cores.contract import Core
from recollect.cores.shared.readout import Readout
from recollect.kernels.linear_scan import scan


class RingCore(Core):
    """The body of the LRU and the RTU. State h [B, units, 2]: real and imaginary parts.

    Args:
        input_size: D.
        config: ``LRUConfig`` or ``RTUConfig``.
        fan_in: the initial input weights have variance 1 / fan_in.
        learns_gain: whether the input gain is the parameter exp(gamma); otherwise it is sqrt(1 - r^2).
    """

    starts_at_zero = True
    initial_h: Tensor

    def __init__(self, input_size: int, config: Any, fan_in: int, learns_gain: bool):
        super().__init__(input_size, config.hidden)
        self.config = config
        N = config.units
        nu, theta = ring(N, config.r_min, config.r_max, config.max_phase)
        self.nu, self.theta = nn.Parameter(nu), nn.Parameter(theta)
        self.gamma = nn.Parameter(log_gain(nu)) if learns_gain else None
        self.weight = nn.Parameter(torch.randn(2 * N, input_size) / math.sqrt(fan_in))  # rows in pairs
        self.readout = Readout(2 * N, input_size, config.hidden)
        self.register_buffer("initial_h", torch.zeros(1, N, 2), persistent=False)

    def initial_state(self, batch: int) -> Tensor:
        """Zeros [batch, units, 2], as an expanded view."""
        return self.initial_h.expand(batch, -1, -1)

    def _features(self, h: Tensor) -> Tensor:
        """Input of the readout: h [..., units, 2] -> the same shape."""
        return h

    def _input(self, x: Tensor) -> Tensor:
        """The term that x [..., D] adds to h, [..., units, 2]."""
        gain = (log_gain(self.nu) if self.gamma is None else self.gamma).exp()
        return linear(x, gain.repeat_interleave(2).unsqueeze(-1) * self.weight).unflatten(-1, (-1, 2))

    def _step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h = turn(self._input(x), state, modulus(self.nu), self.theta.exp())
        return self.readout(self._features(h).flatten(-2), x), h

    def _unroll(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        h = turns(self._input(x), state, first, modulus(self.nu), self.theta.exp())
        return self.readout(self._features(h).flatten(-2), x), h[-1]


def turn(u: Tensor, h: Tensor, modulus: Tensor, phase: Tensor) -> Tensor:
    """One step: u and h [B, ..., 2], modulus and phase [...] -> h [B, ..., 2]."""
    # (c + is)(p + iq) = c (p, q) + s (-q, p)
    along = (modulus * phase.cos()).unsqueeze(-1)
    across = modulus * phase.sin()
    crossed = torch.stack((-across, across), -1)
    return torch.addcmul(torch.addcmul(u, along, h), crossed, h.flip(-1))


def turns(u: Tensor, h: Tensor, first: Tensor, modulus: Tensor, phase: Tensor) -> Tensor:
    """All steps: u [T, B, ..., 2], h [B, ..., 2] at step 0, first [T, B] -> h [T, B, ..., 2]."""
    factor = torch.polar(modulus, phase)
    all_h = scan(factor, torch.view_as_complex(u), torch.view_as_complex(h.contiguous()), first)
    return torch.view_as_real(all_h)


def ring(units: int, r_min: float, r_max: float, max_phase: float) -> tuple[Tensor, Tensor]:
    """Draw nu and theta [units] with exp(-exp(nu) + i exp(theta)) uniform by area on a ring."""
    squared = torch.empty(units).uniform_(r_min**2, r_max**2).clamp_(min=1e-6)
    phase = torch.empty(units).uniform_(0, max_phase).clamp_(min=1e-6)
    return (-0.5 * squared.log()).log(), phase.log()


def modulus(nu: Tensor) -> Tensor:
    """exp(-exp(nu)): the fraction of a unit that a step keeps, below 1."""
    return (-nu.exp()).exp()


def log_gain(nu: Tensor) -> Tensor:
    """log sqrt(1 - r^2): the input gain for which a unit has the scale of its input."""
    return 0.5 * (-torch.expm1(-2 * nu.exp())).log()
