"""The LSTM of Hochreiter and Schmidhuber (1997), with forget gates, in PyTorch's conventions."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from recollect.base import row_threads
from recollect.cores.shared.gated import GatedCore, Layer, Leaves
from recollect.cores.shared.initial_weights import chrono_bias
from recollect.kernels.cpu import lstm_onednn
from recollect.kernels.cpu.lstm import lstm


class LSTM(GatedCore):
    """State (h, c), each [B, layers, H]."""

    unrolls_in_groups = False  # oneDNN's kernel takes all rows at once, the other one splits them itself
    leaves = ("h", "c")
    rnn_class = nn.LSTM

    def _init_bias(self, bias: Tensor) -> None:
        config = self.config
        i, f, _, _ = bias.split(config.hidden)
        f.fill_(config.forget_bias)
        if config.chrono is not None:
            f.copy_(chrono_bias(config.hidden, config.chrono))
            i.copy_(-f)

    def _cell(self, x: Tensor, *given: Tensor) -> Leaves:
        if not torch.compiler.is_compiling() and lstm_onednn.suits_step(x):
            return lstm_onednn.step(x, *given)
        h, c, *weights = given
        h, c = torch.lstm_cell(x, (h, c), *weights)
        return h, h, c

    def _unroll_eager(self, x: Tensor, state: Leaves, first: Tensor) -> tuple[Tensor, Leaves]:
        if not self.config.learned_initial_state and lstm_onednn.suits(x, first):
            state = self.reset(state, first[0])
            if lstm_onednn.finite(x, *state):
                return self._layers(x, state, partial(lstm_onednn.lstm, first=first))

        def group(x: Tensor, first: Tensor, *state: Tensor) -> Leaves:
            y, end = self._unroll_packed(x, state, first, torch.lstm, lstm)
            return y, *end

        y, *end = row_threads.side_by_side(group, (x, first), state, self.parameters)
        return y, tuple(end)

    def _fused(self, x: Tensor) -> Layer | None:
        from recollect.kernels.triton.lstm import fused_lstm

        return fused_lstm.lstm if fused_lstm.suits(x, self.config.hidden) else None
