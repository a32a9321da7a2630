"""The slow truth about action values: one row, one choice after another."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor


def _dense(layer, x: Tensor) -> Tensor:
    return torch.stack([(row * x).sum() for row in layer.weight]) + layer.bias


def _stream(stream, x: Tensor) -> Tensor:
    *hidden, last = stream.layers
    for layer in hidden:
        x = _dense(layer, x).clamp(min=0)
    return _dense(last, x)


def _duel(head, x: Tensor, mask: Tensor | None) -> Tensor:
    """Values [sum(nvec)] of the stream input x [features] of one row."""
    advantage = list(_stream(head.advantage, x))
    q, begin = [], 0
    for n in head.nvec:
        place = range(begin, begin + n)
        allowed = [i for i in place if mask is None or mask[i]] or list(place)
        for i in place:
            value = advantage[i]
            if head.config.dueling:
                mean = sum(advantage[k] for k in allowed) / len(allowed)
                value = value - mean + _stream(head.value, x)[0] / len(head.nvec)
            q.append(value if i in allowed else torch.full_like(value, -math.inf))
        begin += n
    return torch.stack(q)


def quantile_values(head, y: Tensor, fraction: Tensor, mask: Tensor | None) -> Tensor:
    """Z_tau(a) [sum(nvec)] of one row, for one fraction."""
    cosines = torch.stack([torch.cos(math.pi * i * fraction) for i in range(head.config.embedding)])
    psi = y if head.base is None else _dense(head.base, y).clamp(min=0)
    return _duel(head, psi * _dense(head.embed, cosines).clamp(min=0), mask)


def values(head, y: Tensor, mask: Tensor | None) -> Tensor:
    """Q(a) [sum(nvec)] of one row: y [features], mask [sum(nvec)]."""
    if not hasattr(head, "embed"):
        return _duel(head, y, mask)
    N = head.config.quantiles
    fractions = [torch.tensor((i + 0.5) / N, dtype=y.dtype) for i in range(N)]
    return sum(quantile_values(head, y, fraction, mask) for fraction in fractions) / N


def joint_values(head, q: Tensor) -> dict[tuple[int, ...], float]:
    """The value of every joint action, for q [sum(nvec)]."""
    found = {}
    for choices in itertools.product(*(range(n) for n in head.nvec)):
        begins = itertools.accumulate((0, *head.nvec[:-1]))
        found[choices] = sum(q[begin + choice].item() for begin, choice in zip(begins, choices))
    return found
