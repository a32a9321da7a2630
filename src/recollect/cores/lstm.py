"""The LSTM of Hochreiter and Schmidhuber (1997), with forget gates, in PyTorch's conventions.

``layer_norm`` normalises what goes into every layer and what comes out of the last. It is not the layer
norm of Ba et al. (2016), which stands inside the cell, around the gates and c: that one changes the
recurrence at every step, so that weights of ``nn.LSTM`` would mean something else and neither oneDNN,
cuDNN nor our own kernel could run it. What it is good for is the scale of inputs and outputs; the
recurrence itself has sigmoids and tanh to keep it in bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from recollect.base import row_threads
from recollect.config.cores.lstm import LSTMConfig
from recollect.cores.contract import Core
from recollect.cores.initial_weights import chrono_bias, init_gates
from recollect.kernels import cudnn
from recollect.kernels.cpu import lstm_onednn
from recollect.kernels.cpu.lstm import lstm
from recollect.kernels.segments import Segments, cut, start
from recollect.kernels.triton import available

LSTMState = tuple[Tensor, Tensor]
"""(h, c), each [B, layers, hidden]."""


class LSTM(Core):
    """State (h, c), each [B, layers, H]; the output is h of the last layer, with ``layer_norm`` normalised.

    ``rnn`` holds the weights and is never called: weights of an ``nn.LSTM`` load into it.
    """

    unrolls_in_groups = False  # oneDNN's kernel takes all rows at once, the other one splits them itself

    def __init__(self, input_size: int, config: LSTMConfig):
        super().__init__(input_size, config.hidden)
        self.config = config
        self.starts_at_zero = not config.learned_initial_state
        self.rnn = nn.LSTM(input_size, config.hidden, config.layers)
        shape = (1, config.layers, config.hidden)
        if config.learned_initial_state:
            self.initial_h = nn.Parameter(torch.zeros(shape))
            self.initial_c = nn.Parameter(torch.zeros(shape))
        else:
            self.register_buffer("initial_h", torch.zeros(shape), persistent=False)
            self.register_buffer("initial_c", torch.zeros(shape), persistent=False)
        sizes = (input_size, *(config.hidden,) * config.layers) if config.layer_norm else ()
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in sizes)  # before each layer, and at the end
        self._init_weights()

    @torch.no_grad()
    def _init_weights(self) -> None:
        init_gates(self.rnn)
        H, config = self.config.hidden, self.config
        for layer in range(config.layers):
            i, f, _, _ = getattr(self.rnn, f"bias_ih_l{layer}").split(H)
            f.fill_(config.forget_bias)
            if config.chrono is not None:
                f.copy_(chrono_bias(H, config.chrono))
                i.copy_(-f)

    def initial_state(self, batch: int) -> LSTMState:
        """Zeros or the learned state, each [batch, layers, H], as expanded views."""
        return self.initial_h.expand(batch, -1, -1), self.initial_c.expand(batch, -1, -1)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Those of the equations."""
        return ("h", "c")

    def _step(self, x: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        h, c = state
        if self.config.layers == 1 and not self.config.layer_norm:
            w: Any = self.rnn  # not all_weights, which costs 5 us a step
            weights = (w.weight_ih_l0, w.weight_hh_l0, w.bias_ih_l0, w.bias_hh_l0)
            y, c = torch.lstm_cell(x, (h.squeeze(1), c.squeeze(1)), *weights)
            return y, (y.unsqueeze(1), c.unsqueeze(1))
        return self._layers(x, h, c, _cell)

    def steps_by_unroll(self, x: Tensor) -> bool:
        """Where there is one kernel for acting and learning."""
        return _fused(x, self.config.hidden) is not None

    def _unroll(self, x: Tensor, state: LSTMState, first: Tensor) -> tuple[Tensor, LSTMState]:
        layer = _fused(x, self.config.hidden)
        if layer is not None:
            return self._layers(x, *state, partial(layer, first=first), self.config.learned_initial_state)
        if not self.config.learned_initial_state and lstm_onednn.suits(x, first):
            h, c = self.reset(state, first[0])
            if lstm_onednn.finite(x, h, c):
                return self._layers(x, h, c, partial(lstm_onednn.lstm, first=first))
        y, h, c = row_threads.side_by_side(self._unroll_packed, (x, first), state, self.parameters)
        return y, (h, c)

    def _unroll_packed(self, x: Tensor, first: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [T, B, D], first [T, B], h and c [B, layers, H] -> y [T, B, H], h, c."""
        segments = cut(first)
        h = start(h, self.initial_h, segments)  # [S, layers, H]
        c = start(c, self.initial_c, segments)
        if cudnn.suits(x) and not self.config.layer_norm:
            weights = [w for layer in self.rnn.all_weights for w in layer]
            y, h, c = cudnn.run_packed(torch.lstm, x, (h, c), weights, segments)
            return y, h, c
        layer = _cudnn_layer if cudnn.suits(x) else lstm
        y, (h, c) = self._layers(x, h, c, partial(layer, segments=segments))
        return y, h, c

    def _layers(
        self,
        x: Tensor,
        h: Tensor,
        c: Tensor,
        layer: Callable[..., tuple[Tensor, Tensor, Tensor]],
        takes_initial: bool = False,
    ) -> tuple[Tensor, LSTMState]:
        """One layer after the other over x [..., D], with h, c [rows, layers, H] to begin with.

        ``takes_initial``: whether ``layer`` also wants the state that a reset leads to, (h, c) [1, H] each.
        """
        hs, cs = [], []
        for k, (weights, h_layer, c_layer) in enumerate(zip(self.rnn.all_weights, h.unbind(1), c.unbind(1))):
            initial = {"initial": (self.initial_h[:, k], self.initial_c[:, k])} if takes_initial else {}
            x, h_layer, c_layer = layer(self._normalised(x, k), h_layer, c_layer, *weights, **initial)
            hs.append(h_layer)
            cs.append(c_layer)
        return self._normalised(x, -1), (_stack(hs), _stack(cs))

    def _normalised(self, x: Tensor, k: int) -> Tensor:
        """What goes into layer ``k``, or with -1 what comes out of the last."""
        return self.norms[k](x) if self.config.layer_norm else x


def _fused(x: Tensor, hidden: int) -> Callable[..., tuple[Tensor, Tensor, Tensor]] | None:
    """The kernel in Triton if x [..., D] and so many units suit it, which is only imported then."""
    if (
        not available.suits(x) or torch.compiler.is_compiling()
    ):  # a step is compiled whole, from torch's own cell
        return None
    from recollect.kernels.triton.lstm import fused_lstm

    return fused_lstm.lstm if fused_lstm.suits(x, hidden) else None


def _cell(
    x: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of one layer: x [B, D], h and c [B, H] -> y, h, c."""
    h, c = torch.lstm_cell(x, (h, c), w_ih, w_hh, b_ih, b_hh)
    return h, h, c


def _cudnn_layer(
    x: Tensor, h: Tensor, c: Tensor, *weights: Tensor, segments: Segments
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer by itself on cuDNN, as ``kernels.lstm.lstm`` does it."""
    y, h, c = cudnn.run_packed(torch.lstm, x, (h.unsqueeze(1), c.unsqueeze(1)), weights, segments)
    return y, h.squeeze(1), c.squeeze(1)


def _stack(layers: list[Tensor]) -> Tensor:
    """[B, H] of every layer -> [B, layers, H]; of one layer without a copy."""
    return layers[0].unsqueeze(1) if len(layers) == 1 else torch.stack(layers, 1)
