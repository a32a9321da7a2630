"""The slow truth of returns: the definition as a double sum, in float64, one row at a time."""

from __future__ import annotations

import math

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


def vtrace(
    *,
    log_ratio,
    reward,
    value,
    terminated,
    truncated,
    final_value,
    bootstrap,
    gamma,
    gae_lambda=1.0,
    rho_clip=1.0,
    c_clip=1.0,
    valid=None,
) -> tuple[Tensor, Tensor]:
    """The paper's sum, vs[s] = V[s] + sum over t of gamma^(t - s) * c[s] * .. * c[t - 1] * delta[t].

    Up to the first end at or after s. The advantage mixes the next target with the next value by lambda.
    """
    T, B = reward.shape
    ratio = [[math.exp(float(log_ratio[t, b])) for b in range(B)] for t in range(T)]
    targets, advantage = value.double().clone(), torch.zeros(T, B, dtype=torch.float64)

    def following(t: int, b: int) -> float:
        if terminated[t, b]:
            return 0.0
        if truncated[t, b]:
            return float(final_value[t, b])
        return float(value[t + 1, b]) if t + 1 < T else float(bootstrap[b])

    def error(t: int, b: int) -> float:
        return float(reward[t, b]) + gamma * following(t, b) - float(value[t, b])

    steps = [(t, b) for t in range(T) for b in range(B) if valid is None or valid[t, b]]
    for s, b in steps:
        weight = 1.0
        for t in range(s, T):
            targets[s, b] += weight * min(rho_clip, ratio[t][b]) * error(t, b)
            if terminated[t, b] or truncated[t, b]:
                break
            weight *= gamma * gae_lambda * min(c_clip, ratio[t][b])
    for t, b in steps:
        after = following(t, b)
        if t + 1 < T and not (terminated[t, b] or truncated[t, b]):
            after = gae_lambda * float(targets[t + 1, b]) + (1 - gae_lambda) * after
        gain = float(reward[t, b]) + gamma * after - float(value[t, b])
        advantage[t, b] = min(rho_clip, ratio[t][b]) * gain
    return advantage, targets


def n_step(*, reward, value, terminated, is_step, gamma, n) -> Tensor:
    """Sum of the rewards up to n steps ahead, an end, or a slot that is no step; then the value there."""
    length, columns = reward.shape[0] - n, reward.shape[1]
    target = torch.zeros_like(value[:length])
    for m in range(columns):
        for j in range(length):
            if not is_step[j, m]:
                continue
            k = 0
            while k < n and is_step[j + k, m]:
                target[j, m] += gamma**k * reward[j + k, m]
                k += 1
                if terminated[j + k - 1, m]:
                    break
            else:
                target[j, m] += gamma**k * value[j + k, m]
    return target
