"""Memories that turn and fade: h_t = r e^{i phi} h_{t-1} + u_t, one complex number a unit.

What the LRU, the RTU and Fast and Forgetful Memory have in common. Complex numbers are pairs of reals
[..., 2] in states and inputs; a step is made of real operations, so that every exporter takes it.

The modulus is r = exp(-exp(nu)), below 1 whatever nu; a change of nu or of the logarithm of the phase is a
change by a share, so that an optimiser's steps do not throw long memories away.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.kernels.linear_scan import scan


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
    """nu and theta [units] of exp(-exp(nu) + i exp(theta)), uniform by area on a ring."""
    squared = torch.empty(units).uniform_(r_min**2, r_max**2).clamp_(min=1e-6)
    phase = torch.empty(units).uniform_(0, max_phase).clamp_(min=1e-6)
    return (-0.5 * squared.log()).log(), phase.log()


def modulus(nu: Tensor) -> Tensor:
    """exp(-exp(nu)): what a step leaves of a unit, below 1 whatever nu."""
    return (-nu.exp()).exp()


def log_gain(nu: Tensor) -> Tensor:
    """log sqrt(1 - r^2), the input's share for which a unit has the scale of its input."""
    return 0.5 * (-torch.expm1(-2 * nu.exp())).log()
