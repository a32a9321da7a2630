"""The core without memory, for feed-forward agents."""

from __future__ import annotations

from torch import Tensor

from recollect.config.cores import NoneConfig
from recollect.cores.contract import Core


class NoMemory(Core):
    """y = x, and the state is ``()``."""

    reach = 0
    is_step_traceable = True

    def __init__(self, input_size: int, config: NoneConfig):
        super().__init__(input_size, input_size)
        self.config = config

    def initial_state(self, batch: int) -> tuple[()]:
        """The empty state."""
        return ()

    def _step(self, x: Tensor, state: tuple[()]) -> tuple[Tensor, tuple[()]]:
        return x, ()

    def _unroll(self, x: Tensor, state: tuple[()], first: Tensor) -> tuple[Tensor, tuple[()]]:
        return x, ()
