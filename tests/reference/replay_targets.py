"""The slow truth of targets and losses on replay: one step at a time, in plain numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from recollect.base import tree


def h(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x


def h_inverse(x: float) -> float:
    """By bisection: h grows."""
    low, high = -1e7, 1e7
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if h(middle) < x else (low, middle)
    return (low + high) / 2


def first_of(sample: Any, m: int) -> int:
    """The position of the window's first slot that exists."""
    return int(sample.exists[:, m].int().argmax())


@torch.no_grad()
def outputs(policy: Any, sample: Any, m: int) -> list[Tensor]:
    """The core's output [1, D] at every position of a window, step by step; zeros where there is none.

    It starts at the first slot that exists, from the stored state there; an episode's start resets it.
    """
    begin, found = first_of(sample, m), []
    state = policy.initial_state(1) if sample.state is None else tree.index(sample.state, slice(m, m + 1))
    for p in range(len(sample.is_step)):
        if p < begin or not sample.exists[p, m]:
            found.append(torch.zeros(1, policy.core.output_size, dtype=torch.float64))
            continue
        seen = tree.map(lambda leaf, p=p: leaf[p : p + 1, m : m + 1], sample.obs)
        y, state = policy.unroll_core(seen, state, sample.first[p : p + 1, m : m + 1])
        found.append(y[0])
    return found


def target(
    sample: Any, m: int, at: int, value: Any, *, gamma: float, n: int, scale: float = 1.0
) -> Tensor | float:
    """The n-step return of the step at a position; ``value(p)``: of the slot at position p."""
    total: Any = 0.0
    for i in range(n):
        p = at + i
        if not sample.is_step[p, m]:  # the final observation of a truncated episode
            return total + gamma**i * value(p)
        total = total + gamma**i * scale * float(sample.reward[p, m])
        if sample.terminated[p, m]:
            return total
    return total + gamma**n * value(at + n)


def kinds(sample: Any, burn_in: int, length: int, n: int) -> dict[str, int]:
    """How many learned steps have a target of each kind."""
    found = {"whole": 0, "terminated": 0, "truncated": 0, "short prefix": 0, "padding": 0}
    for m in range(sample.is_step.shape[1]):
        found["short prefix"] += first_of(sample, m) > 0
        for at in range(burn_in, burn_in + length):
            ahead = range(at, at + n)
            if not sample.is_step[at, m]:
                found["padding"] += 1
            elif sample.terminated[at : at + n, m].any():
                found["terminated"] += 1
            elif not all(sample.is_step[p, m] for p in ahead) or (
                sample.exists[at + n, m] and not sample.is_step[at + n, m]
            ):
                found["truncated"] += 1
            else:
                found["whole"] += 1
    return found
