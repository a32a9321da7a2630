"""The LSTM of Hochreiter and Schmidhuber (1997), with forget gates, in PyTorch's conventions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from recollect.base import row_threads
from recollect.cores.checks import check_chrono, check_finite, check_size, chrono_bias
from recollect.cores.gated import GatedCore, Layer, Leaves
from recollect.kernels.cpu import lstm_onednn
from recollect.kernels.cpu.lstm import lstm


@dataclass(frozen=True, slots=True)
class LSTMConfig:
    """Settings of the LSTM core."""

    hidden: int = 128
    """Size of h and of c in every layer, and of the output."""
    layers: int = 1
    """Layers on top of each other; each feeds its h to the next."""
    learned_initial_state: bool = False
    """Whether the state at the start of an episode is learned; otherwise it is zero."""
    forget_bias: float = 1.0
    """Initial bias of the forget gates: 1 remembers over a few steps from the start of training."""
    chrono: int | None = None
    """The longest time to remember, in steps, for chrono initialisation, which replaces forget_bias."""
    layer_norm: bool = False
    """Whether the input of every layer and the output are normalised; the recurrence stays as it is."""

    def __post_init__(self) -> None:
        check_size(self, hidden=self.hidden, layers=self.layers)
        check_chrono(self, self.chrono)
        check_finite(self, forget_bias=self.forget_bias)

    def reaching(self, steps: int) -> LSTMConfig:
        """With gates that start open for ``steps`` steps."""
        return replace(self, chrono=max(2, steps))

    def build(self, input_size: int) -> LSTM:
        """The core for inputs of ``input_size`` features."""
        return LSTM(input_size, self)


class LSTM(GatedCore):
    """State (h, c), each [B, layers, H]."""

    unrolls_in_groups = False  # oneDNN's kernel takes all rows at once, the other one splits them itself
    leaves = ("h", "c")

    def __init__(self, input_size: int, config: LSTMConfig):
        super().__init__(input_size, config, nn.LSTM)

    def _init_bias(self, bias: Tensor) -> None:
        config = self.config
        i, f, _, _ = bias.split(config.hidden)
        f.fill_(config.forget_bias)
        if config.chrono is not None:
            f.copy_(chrono_bias(config.hidden, config.chrono))
            i.copy_(-f)

    def initial_state(self, batch: int) -> Leaves:
        """Zeros or the learned state, each [batch, layers, H], as expanded views."""
        return tuple(leaf.expand(batch, -1, -1) for leaf in self._initial())

    def _step(self, x: Tensor, state: Leaves) -> tuple[Tensor, Leaves]:
        h, c = state
        if self.config.layers == 1 and not self.config.layer_norm:
            y, c = torch.lstm_cell(x, (h.squeeze(1), c.squeeze(1)), *self._weights())
            return y, (y.unsqueeze(1), c.unsqueeze(1))
        return self._layers(x, state, _cell)

    def _unroll(self, x: Tensor, state: Leaves, first: Tensor) -> tuple[Tensor, Leaves]:
        layer, is_learned = self._fusable(x), self.config.learned_initial_state
        if layer is not None:
            return self._layers(x, state, partial(layer, first=first), is_learned)
        if not is_learned and lstm_onednn.suits(x, first):
            state = self.reset(state, first[0])
            if lstm_onednn.finite(x, *state):
                return self._layers(x, state, partial(lstm_onednn.lstm, first=first))

        def group(x: Tensor, first: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            y, end = self._unroll_packed(x, first, state, torch.lstm, lstm)
            return y, *end

        y, *end = row_threads.side_by_side(group, (x, first), state, self.parameters)
        return y, tuple(end)

    def _fused(self, x: Tensor) -> Layer | None:
        from recollect.kernels.triton.lstm import fused_lstm

        return fused_lstm.lstm if fused_lstm.suits(x, self.config.hidden) else None


def _cell(x: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One step of one layer: x [B, D], h and c [B, H] -> y, h, c."""
    h, c = torch.lstm_cell(x, (h, c), *weights)
    return h, h, c
