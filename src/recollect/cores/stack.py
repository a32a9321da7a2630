"""A sequence of cores with residual connections, each with its own memory.

    h = W x                                  (only where the sizes differ)
    h = h + P_i core_i(norm_i(h))            for every core i; P_i only where the sizes differ
    y = norm(h)

This is the pre-norm residual layout of He et al. (2016) and of transformers. ``mamba_gru`` in
``recollect.cores.PRESETS`` is a stack.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from recollect.base.types import State
from recollect.config.core_choice import StackConfig
from recollect.cores.build_from_spec import make_core
from recollect.cores.contract import Core


class Stack(Core):
    """The state is a tuple of the cores' states."""

    def __init__(self, input_size: int, config: StackConfig):
        super().__init__(input_size, config.hidden)
        self.config = config
        H = config.hidden
        made = [make_core(part, H, f"core.cores[{i}]") for i, part in enumerate(config.parts())]
        self.project = _projection(input_size, H)
        self.cores: Any = nn.ModuleList(made)
        self.norms = nn.ModuleList(nn.LayerNorm(H) if config.layer_norm else nn.Identity() for _ in made)
        self.outs = nn.ModuleList(_projection(core.output_size, H) for core in made)
        self.norm = nn.LayerNorm(H) if config.layer_norm else nn.Identity()
        self.rounding = max(core.rounding for core in made)
        self.starts_at_zero = all(core.starts_at_zero or not core.has_memory for core in made)

    def initial_state(self, batch: int) -> tuple[State, ...]:
        """The initial state of every core."""
        return tuple(core.initial_state(batch) for core in self.cores)

    def _step(self, x: Tensor, state: tuple[State, ...]) -> tuple[Tensor, tuple[State, ...]]:
        return self._unroll(x, state, None)

    def _unroll(
        self, x: Tensor, state: tuple[State, ...], first: Tensor | None
    ) -> tuple[Tensor, tuple[State, ...]]:
        """One step if ``first`` is None, otherwise all steps."""
        h, after = self.project(x), []
        for core, norm, out, before in zip(self.cores, self.norms, self.outs, state):
            u = norm(h)
            y, end = core._step(u, before) if first is None else core.unroll(u, before, first)
            h = h + out(y) if self.config.residual else out(y)
            after.append(end)
        return self.norm(h), tuple(after)


def _projection(size: int, width: int) -> nn.Module:
    """A layer from ``size`` to ``width`` features; the identity if they are equal."""
    return nn.Identity() if size == width else nn.Linear(size, width)
