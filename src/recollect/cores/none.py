"""The core without memory, for feed-forward agents."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from recollect.cores.contract import Core


@dataclass(frozen=True, slots=True)
class NoneConfig:
    """Settings of the core without memory: none."""

    def build(self, input_size: int) -> NoMemory:
        """The core for inputs of ``input_size`` features."""
        return NoMemory(input_size, input_size)


class NoMemory(Core):
    """y = x, and the state is ``()``."""

    def initial_state(self, batch: int) -> tuple[()]:
        """The empty state."""
        return ()

    def _step(self, x: Tensor, state: tuple[()]) -> tuple[Tensor, tuple[()]]:
        return x, ()

    def _unroll(self, x: Tensor, state: tuple[()], first: Tensor) -> tuple[Tensor, tuple[()]]:
        return x, ()
