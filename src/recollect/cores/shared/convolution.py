"""A short causal convolution: every feature as a weighted sum of its last few values.

    v_t = w_0 x_t + w_1 x_{t-1} + ... + w_{K-1} x_{t-K+1}         elementwise; zeros before an episode

Cores whose gates see only the input use it to encode the order of recent inputs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from recollect.kernels.cpu.causal_conv import causal_conv


class Convolution(nn.Module):
    """State: the last K - 1 inputs [B, K - 1, D], latest first."""

    def __init__(self, input_size: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, input_size))
        # For white noise x, v has the variance of x.
        nn.init.uniform_(self.weight, -math.sqrt(3 / width), math.sqrt(3 / width))

    def step(self, x: Tensor, recent: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, D], recent [B, K - 1, D] -> v [B, D], recent."""
        window = torch.cat((x.unsqueeze(1), recent), 1)
        return (window * self.weight).sum(1), window[:, :-1]

    def unroll(self, x: Tensor, recent: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, B, D], recent [B, K - 1, D] at step 0, first [T, B] -> v [T, B, D], recent."""
        v, window = causal_conv(x, recent.flip(1), self.weight.flip(0), first)
        return v, window.flip(1)
