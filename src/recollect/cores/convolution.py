"""A short causal convolution: every feature as a weighted sum of its last few values.

    v_t = w_0 x_t + w_1 x_{t-1} + ... + w_{K-1} x_{t-K+1}         elementwise; zeros before an episode

Memories whose gates see the input alone take their sense of order from it: what is new can depend on what
was there right before.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Convolution(nn.Module):
    """Its state is the last K - 1 inputs [B, K - 1, D], the latest one first."""

    def __init__(self, input_size: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, input_size))
        nn.init.uniform_(self.weight, -1 / math.sqrt(width), 1 / math.sqrt(width))

    def step(self, x: Tensor, recent: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, D], recent [B, K - 1, D] -> v [B, D], recent."""
        window = torch.cat((x.unsqueeze(1), recent), 1)
        return (window * self.weight).sum(1), window[:, :-1]

    def unroll(self, x: Tensor, recent: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, B, D], recent [B, K - 1, D] at step 0, first [T, B] -> v [T, B, D], recent."""
        K, T = self.weight.shape[0], x.shape[0]
        padded = torch.cat((recent.transpose(0, 1).flip(0), x))  # [K - 1 + T, B, D]
        steps = torch.arange(T, device=x.device).unsqueeze(1)
        begun = torch.where(first, steps, -K).cummax(0).values  # [T, B] the step that opened the episode
        age = (steps - begun).unsqueeze(-1)
        weights = self.weight.unbind()
        v = weights[0] * x
        for k in range(1, K):
            seen = padded[K - 1 - k : K - 1 - k + T].masked_fill(age < k, 0)
            v = torch.addcmul(v, seen, weights[k])
        last = padded[T:].flip(0).transpose(0, 1)  # [B, K - 1, D]
        lags = torch.arange(K - 1, device=x.device)
        return v, last.masked_fill((age[-1] < lags).unsqueeze(-1), 0)
