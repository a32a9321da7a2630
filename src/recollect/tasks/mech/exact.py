"""Square roots that are rounded alike on all devices.

On the CPU, torch's square root of float32 is off by the last bit for one number in six.
"""

from __future__ import annotations

import torch
from torch import Tensor


def root(square: Tensor) -> Tensor:
    """The square root as IEEE 754 rounds it."""
    if square.device.type == "cpu":
        return square.double().sqrt_().to(torch.float32)
    return square.sqrt()


def length(x: Tensor, y: Tensor, z: Tensor | None = None) -> Tensor:
    """The length of a vector."""
    flat = x * x + y * y
    return root(flat if z is None else flat + z * z)
