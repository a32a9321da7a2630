"""What the tests of advantages share: rewards, values and ends of T steps, in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Trace = dict[str, Any]
"""The arguments of ``gae``."""


def trace(T: int, B: int, seed: int = 0, ends: float = 0.3, **given: Any) -> Trace:
    """A random trace with terminations, truncations and both; ``given`` parts replace it."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * 3

    def flags() -> Tensor:
        return torch.rand(T, B, generator=generator) < ends

    parts = {
        "reward": normal(T, B),
        "value": normal(T, B),
        "final_value": normal(T, B),
        "bootstrap": normal(B),
    }
    return {**parts, "terminated": flags(), "truncated": flags(), "gamma": 0.97, "gae_lambda": 0.9, **given}


def column(*numbers: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """[T, 1]"""
    return torch.tensor(numbers, dtype=dtype).unsqueeze(1)


def never(T: int, B: int = 1) -> Tensor:
    """[T, B]: no flag is set."""
    return torch.zeros(T, B, dtype=torch.bool)


def two_lives() -> Trace:
    """Four steps of one row, a death after the second."""
    return {
        "reward": column(1, 2, 3, 4),
        "value": column(10, 20, 30, 40),
        "terminated": column(0, 1, 0, 0).bool(),
        "truncated": never(4),
        "final_value": torch.full((4, 1), torch.nan, dtype=torch.float64),
        "bootstrap": torch.tensor([50.0], dtype=torch.float64),
        "gamma": 0.5,
    }


def no_surprise(cut: tuple[int, ...]) -> Trace:
    """Ten steps of reward 1 and the exact V = r / (1 - gamma), truncated after the steps ``cut``."""
    truncated = never(10, 2)
    truncated[list(cut)] = True
    value = torch.full((10, 2), 100.0, dtype=torch.float64)
    return {
        "reward": torch.ones_like(value),
        "value": value,
        "terminated": never(10, 2),
        "truncated": truncated,
        "final_value": torch.where(truncated, value, torch.nan),
        "bootstrap": value[0],
        "gamma": 0.99,
    }


def with_invalid_steps(given: Trace, seed: int) -> tuple[Trace, Trace]:
    """A trace, some of whose steps after ends are now invalid, and the same with NaN in all that is invalid.

    A row stays invalid until its next episode; here the one after begins at once.
    """
    T, B = given["reward"].shape
    ended = given["terminated"] | given["truncated"]
    valid = torch.ones(T, B, dtype=torch.bool)
    valid[1:] = ~ended[:-1] | (torch.rand(T - 1, B, generator=torch.Generator().manual_seed(seed)) < 0.5)
    flags = {
        name: given[name] & valid for name in ("terminated", "truncated")
    }  # an invalid step ends nothing
    clean = given | flags | {"valid": valid}
    names = [name for name in ("reward", "value", "final_value", "log_ratio") if name in given]
    poison = {name: given[name].masked_fill(~valid, torch.nan) for name in names}
    poison["bootstrap"] = given["bootstrap"].masked_fill(~valid[-1] | ended[-1], torch.nan)
    return clean, clean | poison
