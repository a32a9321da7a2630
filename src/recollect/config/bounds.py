"""How much the numbers in a folder may ask for. A folder may come from anybody, or be damaged.

A network is never larger than the weights that are there for it; everything else has a limit that no run
of ours comes near.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from recollect.errors import ConfigError

if TYPE_CHECKING:
    from recollect.config.train import TrainConfig

MOST_ROWS = MOST_STEPS = 2**24
"""Env slots; steps of a rollout, and episodes to look back at."""
MOST_PROCESSES = 4096
"""Actors, env workers and learners together, and CPU threads."""
MOST_UNITS = 2**20
"""Any whole number in the config of a network."""
MOST_TENSORS = 10_000
"""Weights of a network, each of any size."""
MOST_LETTERS = 1000
"""Of the name of an env."""
MOST_NUMBERS = 2**26
"""Of one observation."""


def check_sizes(config: TrainConfig) -> None:
    """Refuse numbers of a folder's config that no run of ours has."""
    processes = config.actors * (1 + config.env_workers) + config.learners
    for name, value, most in (
        ("num_envs", config.num_envs, MOST_ROWS),
        ("rollout", config.algo.rollout, MOST_STEPS),
        ("target_episodes", config.target_episodes, MOST_STEPS),
        ("actors, env_workers and learners together", processes, MOST_PROCESSES),
        ("threads", config.threads or 0, MOST_PROCESSES),
    ):
        if value > most:
            raise ConfigError(f"{name} = {value}: at most {most} is taken from a folder")


def check_numbers(config: Any) -> None:
    """Refuse a whole number in a network's config that none of ours has."""
    parts = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    for part in parts:
        check_numbers(part)
    if isinstance(config, int) and config > MOST_UNITS:
        raise ConfigError(f"{config}: at most {MOST_UNITS} is taken from a folder")


def check_shape(shape: Any) -> None:
    """Refuse a space with more numbers than an observation has."""
    sizes = [shape] if isinstance(shape, int) else shape
    if min(sizes, default=0) < 0 or math.prod(sizes) > MOST_NUMBERS:
        raise ConfigError(f"a space of shape {shape}: at most {MOST_NUMBERS} numbers are taken from a folder")


@contextmanager
def without_memory(numbers: int) -> Iterator[None]:
    """Modules made in here have shapes and no memory; one with many more weights than ``numbers`` is refused.

    Some are registered twice on the way, so that the exact count is for the caller.
    """
    left, tensors = 4 * numbers + 10_000, MOST_TENSORS

    def count(module: torch.nn.Module, name: str, tensor: torch.Tensor | None) -> None:
        nonlocal left, tensors
        left, tensors = left - (0 if tensor is None else tensor.numel()), tensors - 1
        if min(left, tensors) < 0:
            raise ConfigError("the network is larger than the weights that are there")

    hook = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            yield
    finally:
        hook.remove()
