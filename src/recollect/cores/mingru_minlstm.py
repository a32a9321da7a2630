"""minGRU and minLSTM of Feng et al., "Were RNNs All We Needed?" (2024): gates do not depend on the state.

    v_t = convolution(x)_t,   c_t = W_c v_t + b_c,   h_t = (1 - s_t) h_{t-1} + s_t c_t
    y_t = readout(h_t, v_t)

Every unit is a running average of candidates c, computed as a scan (``recollect.kernels.linear_scan``). The
share s_t of the new candidate is

    minGRU    sigmoid(W_z v_t + b_z)
    minLSTM   i_t / (f_t + i_t)  with  f_t = sigmoid(W_f v_t + b_f),  i_t = sigmoid(W_i v_t + b_i)

Differences from the paper:

- The plain recurrence, not the one in logarithms, which needs c > 0 and loses precision: c is linear and may
  have either sign.
- Gates start with time constants from 1 to ``chrono`` steps, evenly spaced on a logarithmic scale.
- Gates see no state, and averages hardly encode the order of events. The paper stacks layers, with a
  convolution over four steps before each in its language models. Here there is one layer, and gates and
  readout see the output of the convolution. Without it, repeat-previous (easy) had a return of 0.0 after
  150k steps.
- The output passes through ``recollect.cores.shared.readout``, the only nonlinearity behind the memory.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from recollect.config.cores import MinGRUConfig
from recollect.cores.contract import Core
from recollect.cores.shared.readout import Readout
from recollect.kernels.cpu.causal_conv import causal_conv
from recollect.kernels.linear_scan import scan

AverageState = tuple[Tensor, ...]
"""h [B, H] and, with a convolution, its last inputs [B, convolution - 1, D]."""

GATE_GAIN = 3.0
"""Gain of the initial gate weights. Large gains make gates selective. Measured on delayed-cue at a horizon of
100 after 90k steps: minGRU found the cue with no seed out of three at gain 1, with two at gain 3."""


class AveragingCore(Core):
    """State: ``AverageState``. A subclass names its gates and computes the share from them."""

    is_step_traceable = True
    gates: ClassVar[tuple[str, ...]]
    """Attribute names of the linear layers D -> H that ``_share`` uses."""

    def __init__(self, input_size: int, config: MinGRUConfig):
        super().__init__(input_size, config.hidden)
        self.config = config
        self.starts_at_zero = not config.learned_initial_state
        for name in self.gates:
            self.add_module(name, nn.Linear(input_size, config.hidden))
        self.average = Average(input_size, config)
        for name in self.gates:
            nn.init.xavier_uniform_(getattr(self, name).weight, GATE_GAIN)
        with torch.no_grad():
            self._init_biases(spread_bias(config.hidden, config.chrono))

    @abstractmethod
    def _init_biases(self, keep: Tensor) -> None:
        """Set the biases so that a unit first keeps sigmoid(``keep`` [H]) of its value in a step."""

    @abstractmethod
    def _share(self, v: Tensor) -> Tensor:
        """Share of the new candidate: v [..., D] -> [..., H] in (0, 1)."""

    def initial_state(self, batch: int) -> AverageState:
        """Zeros, or the learned h, as expanded views."""
        part, h = self.average, self.average.initial_h.expand(batch, -1)
        return (h,) if part.convolution is None else (h, part.initial_recent.expand(batch, -1, -1))

    def _step(self, x: Tensor, state: AverageState) -> tuple[Tensor, AverageState]:
        part, (h, *rest) = self.average, state
        if part.convolution is not None:
            x, *rest = part.convolution.step(x, rest[0])
        h = torch.lerp(h, part.new(x), self._share(x))
        return part.readout(h, x), (h, *rest)

    def _unroll(self, x: Tensor, state: AverageState, first: Tensor) -> tuple[Tensor, AverageState]:
        part, (h, *rest) = self.average, state
        if part.convolution is not None:
            x, *rest = part.convolution.unroll(x, rest[0], first)
        s = self._share(x)
        initial = part.initial_h if self.config.learned_initial_state else None
        h = scan(1 - s, s * part.new(x), h, first, initial)
        return part.readout(h, x), (h[-1], *rest)


class MinGRU(AveragingCore):
    """State: h [B, H] and, with a convolution, its last inputs [B, convolution - 1, D]."""

    gates = ("gate",)
    gate: nn.Linear

    def _init_biases(self, keep: Tensor) -> None:
        self.gate.bias.copy_(-keep)

    def _share(self, v: Tensor) -> Tensor:
        return torch.sigmoid(self.gate(v))


class MinLSTM(AveragingCore):
    """State: h [B, H] and, with a convolution, its last inputs [B, convolution - 1, D]."""

    gates = ("keep", "take")
    keep: nn.Linear  # f
    take: nn.Linear  # i

    def _init_biases(self, keep: Tensor) -> None:
        # sigmoid(b) + sigmoid(-b) = 1: with these biases the share starts at sigmoid(-b).
        self.keep.bias.copy_(keep)
        self.take.bias.copy_(-keep)

    def _share(self, v: Tensor) -> Tensor:
        # i / (f + i) in logarithms: with both gates closed the quotient would be 0 / 0.
        return torch.sigmoid(logsigmoid(self.take(v)) - logsigmoid(self.keep(v)))


class Average(nn.Module):
    """Parts of an ``AveragingCore`` besides its gates: convolution, candidates, readout, initial state."""

    initial_h: Tensor
    initial_recent: Tensor

    def __init__(self, input_size: int, config: MinGRUConfig):
        super().__init__()
        hidden, width = config.hidden, config.convolution
        self.convolution = Convolution(input_size, width) if width > 1 else None
        self.new = nn.Linear(input_size, hidden)
        nn.init.xavier_uniform_(self.new.weight)
        nn.init.zeros_(self.new.bias)
        self.readout = Readout(hidden, input_size, hidden)
        if config.learned_initial_state:
            self.initial_h = nn.Parameter(torch.zeros(1, hidden))
        else:
            self.register_buffer("initial_h", torch.zeros(1, hidden), persistent=False)
        self.register_buffer("initial_recent", torch.zeros(1, width - 1, input_size), persistent=False)


class Convolution(nn.Module):
    """A short causal convolution, which encodes the order of recent inputs, each feature by itself:

        v_t = w_0 x_t + w_1 x_{t-1} + ... + w_{K-1} x_{t-K+1}         zeros before an episode

    State: the last K - 1 inputs [B, K - 1, D], latest first.
    """

    def __init__(self, input_size: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, input_size))
        # For white noise x, v has the variance of x.
        nn.init.uniform_(self.weight, -math.sqrt(3 / width), math.sqrt(3 / width))

    def step(self, x: Tensor, recent: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, D], recent [B, K - 1, D] -> v [B, D], recent."""
        window = torch.cat((x.unsqueeze(1), recent), 1)
        return (window * self.weight).sum(1), window[:, :-1]

    def unroll(self, x: Tensor, recent: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, B, D], recent [B, K - 1, D] at step 0, first [T, B] -> v [T, B, D], recent."""
        v, window = causal_conv(x, recent.flip(1), self.weight.flip(0), first)
        return v, window.flip(1)


def spread_bias(hidden: int, longest: int) -> Tensor:
    """[hidden] gate biases b with time constants of 1 to ``longest`` steps, for gates that keep sigmoid(b).

    A unit keeps its value for about 1 + e^b steps. The times are evenly spaced in their logarithm; evenly
    spaced in steps (Tallec and Ollivier), one unit in a hundred would have a time constant of a few steps.
    """
    times = torch.linspace(0, math.log(longest), hidden) if hidden > 1 else torch.tensor([math.log(longest)])
    return torch.expm1(times).clamp_(min=0.1).log_()
