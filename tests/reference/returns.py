"""The slow truth of returns: the definition as a double sum, in float64, one row at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    *, reward, value, terminated, truncated, final_value, bootstrap, gamma, gae_lambda, valid=None
) -> tuple[Tensor, Tensor]:
    """A[t] = sum over k of (gamma * lambda)^k * delta[t + k], up to the first end at or after t."""
    T, B = reward.shape
    advantage = torch.zeros(T, B, dtype=torch.float64)
    for b in range(B):
        for t in range(T):
            if valid is not None and not valid[t, b]:
                continue
            weight = 1.0
            for k in range(t, T):
                if terminated[k, b]:
                    future = 0.0
                elif truncated[k, b]:
                    future = float(final_value[k, b])
                elif k + 1 < T:
                    future = float(value[k + 1, b])
                else:
                    future = float(bootstrap[b])
                advantage[t, b] += weight * (float(reward[k, b]) + gamma * future - float(value[k, b]))
                if terminated[k, b] or truncated[k, b]:
                    break
                weight *= gamma * gae_lambda
    return advantage, advantage + value.double()
