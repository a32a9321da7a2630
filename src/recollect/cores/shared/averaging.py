"""The body of minGRU and minLSTM: every unit of the memory is a running average of candidates.

    v_t = convolution(x)_t,   c_t = W_c v_t + b_c,   h_t = (1 - s_t) h_{t-1} + s_t c_t
    y_t = readout(h_t, v_t)

The share s_t of the new candidate depends on v_t alone. So only the average runs over time, as a scan
(``recollect.kernels.linear_scan``), and h stays within the range of its candidates.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from recollect.cores.contract import Core
from recollect.cores.shared.convolution import Convolution
from recollect.cores.shared.readout import Readout
from recollect.kernels.linear_scan import scan

AverageState = tuple[Tensor, ...]
"""h [B, H] and, with a convolution, its last inputs [B, K - 1, D]."""

GATE_GAIN = 3.0
"""Gain of the initial gate weights. Large gains make gates selective. Measured on delayed-cue at a horizon of
100 after 90k steps: minGRU found the cue with no seed out of three at gain 1, with two at gain 3."""


class AveragingCore(Core):
    """State: ``AverageState``. A subclass names its gates and computes the share from them.

    Args:
        input_size: D.
        config: ``MinGRUConfig`` or ``MinLSTMConfig``.
        gates: attribute names of the linear layers D -> H that ``_share`` uses.
    """

    def __init__(self, input_size: int, config: Any, gates: tuple[str, ...]):
        super().__init__(input_size, config.hidden)
        self.config = config
        self.starts_at_zero = not config.learned_initial_state
        for name in gates:
            self.add_module(name, nn.Linear(input_size, config.hidden))
        self.average = Average(input_size, config.hidden, config.convolution, config.learned_initial_state)
        for name in gates:
            nn.init.xavier_uniform_(getattr(self, name).weight, GATE_GAIN)

    @abstractmethod
    def _share(self, v: Tensor) -> Tensor:
        """Share of the new candidate: v [..., D] -> [..., H] in (0, 1)."""

    def initial_state(self, batch: int) -> AverageState:
        """Zeros, or the learned h, as expanded views."""
        return self.average.initial_state(batch)

    def _step(self, x: Tensor, state: AverageState) -> tuple[Tensor, AverageState]:
        return self.average.step(x, state, self._share)

    def _unroll(self, x: Tensor, state: AverageState, first: Tensor) -> tuple[Tensor, AverageState]:
        return self.average.unroll(x, state, first, self._share)


class Average(nn.Module):
    """Candidates, average and readout; the share is passed in as a function of v [..., D] -> [..., H]."""

    initial_h: Tensor
    initial_recent: Tensor

    def __init__(self, input_size: int, hidden: int, width: int, learned_initial_state: bool):
        super().__init__()
        self.convolution = Convolution(input_size, width) if width > 1 else None
        self.new = nn.Linear(input_size, hidden)
        nn.init.xavier_uniform_(self.new.weight)
        nn.init.zeros_(self.new.bias)
        self.readout = Readout(hidden, input_size, hidden)
        self.learned = learned_initial_state
        if learned_initial_state:
            self.initial_h = nn.Parameter(torch.zeros(1, hidden))
        else:
            self.register_buffer("initial_h", torch.zeros(1, hidden), persistent=False)
        self.register_buffer("initial_recent", torch.zeros(1, width - 1, input_size), persistent=False)

    def initial_state(self, batch: int) -> AverageState:
        """Zeros, or the learned h, as expanded views."""
        h = self.initial_h.expand(batch, -1)
        return (h,) if self.convolution is None else (h, self.initial_recent.expand(batch, -1, -1))

    def step(
        self, x: Tensor, state: AverageState, share: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, AverageState]:
        """x [B, D] -> y [B, H], state."""
        h, *rest = state
        if self.convolution is not None:
            x, *rest = self.convolution.step(x, rest[0])
        h = torch.lerp(h, self.new(x), share(x))
        return self.readout(h, x), (h, *rest)

    def unroll(
        self, x: Tensor, state: AverageState, first: Tensor, share: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, AverageState]:
        """x [T, B, D], the raw state at step 0, first [T, B] -> y [T, B, H], state."""
        h, *rest = state
        if self.convolution is not None:
            x, *rest = self.convolution.unroll(x, rest[0], first)
        s = share(x)
        h = scan(1 - s, s * self.new(x), h, first, self.initial_h if self.learned else None)
        return self.readout(h, x), (h[-1], *rest)


def spread_bias(hidden: int, longest: int) -> Tensor:
    """[hidden] gate biases b with time constants of 1 to ``longest`` steps, for gates that keep sigmoid(b).

    A unit keeps its value for about 1 + e^b steps. The times are evenly spaced in their logarithm; evenly
    spaced in steps (Tallec and Ollivier), one unit in a hundred would have a time constant of a few steps.
    """
    times = torch.linspace(0, math.log(longest), hidden) if hidden > 1 else torch.tensor([math.log(longest)])
    return torch.expm1(times).clamp_(min=0.1).log_()
