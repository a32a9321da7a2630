"""Build a network without memory, to compare its shapes with saved weights before it is allocated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from recollect.errors import ConfigError

MOST_TENSORS = 10_000
"""Largest number of weight tensors of a network from a file."""


@contextmanager
def without_memory(numbers: int) -> Iterator[None]:
    """Build modules on the meta device, with shapes and without memory.

    Raises for a module with many more weights than ``numbers``. Some weights are registered twice, so the
    caller compares the exact count.
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
