"""Complex memories that rotate and decay: h_t = r e^{i phi} h_{t-1} + u_t, one complex number a unit.

Shared by the LRU, the RTU and Fast and Forgetful Memory. States and inputs hold complex numbers as pairs of
reals [..., 2]; a step uses real operations only, which every exporter supports.

The modulus is r = exp(-exp(nu)), below 1 for every nu. Modulus and phase are learned as logarithms: an
optimiser step then changes them by a fraction, and long memories survive it.
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


def modulus(nu: Tensor) -> Tensor:
    """exp(-exp(nu)): the fraction of a unit that a step keeps, below 1."""
    return (-nu.exp()).exp()


def log_gain(nu: Tensor) -> Tensor:
    """log sqrt(1 - r^2): the input gain for which a unit has the scale of its input."""
    return 0.5 * (-torch.expm1(-2 * nu.exp())).log()
