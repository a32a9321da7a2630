"""The GRU of Cho et al. (2014), in PyTorch's conventions: the reset gate acts after the product.

``layer_norm`` normalises what goes into every layer and what comes out of the last, outside the
recurrence. It is not the layer norm of Ba et al. (2016) around the gates, which would change what the
weights of an ``nn.GRU`` mean, and which no fused kernel computes; ``recollect.cores.lstm`` says more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from recollect.config.cores.gru import GRUConfig
from recollect.cores.contract import Core
from recollect.cores.initial_weights import chrono_bias, init_gates
from recollect.kernels import cudnn
from recollect.kernels.cpu.gru import gru
from recollect.kernels.segments import Segments, cut, start
from recollect.kernels.triton import available


class GRU(Core):
    """State h [B, layers, H]; the output is h of the last layer, with ``layer_norm`` normalised.

    ``rnn`` holds the weights and is never called: weights of an ``nn.GRU`` load into it.
    """

    def __init__(self, input_size: int, config: GRUConfig):
        super().__init__(input_size, config.hidden)
        self.config = config
        self.starts_at_zero = not config.learned_initial_state
        self.rnn = nn.GRU(input_size, config.hidden, config.layers)
        shape = (1, config.layers, config.hidden)
        if config.learned_initial_state:
            self.initial_h = nn.Parameter(torch.zeros(shape))
        else:
            self.register_buffer("initial_h", torch.zeros(shape), persistent=False)
        sizes = (input_size, *(config.hidden,) * config.layers) if config.layer_norm else ()
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in sizes)  # before each layer, and at the end
        self._init_weights()

    @torch.no_grad()
    def _init_weights(self) -> None:
        init_gates(self.rnn)
        if self.config.chrono is None:
            return
        H = self.config.hidden
        for layer in range(self.config.layers):
            # z is the share of h that stays, so its bias plays the part of a forget gate's.
            _, z, _ = getattr(self.rnn, f"bias_ih_l{layer}").split(H)
            z.copy_(chrono_bias(H, self.config.chrono))

    def initial_state(self, batch: int) -> Tensor:
        """Zeros or the learned state [batch, layers, H], as an expanded view."""
        return self.initial_h.expand(batch, -1, -1)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Those of the equations."""
        return ("h",)

    def _step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        if self.config.layers == 1 and not self.config.layer_norm:
            w: Any = self.rnn  # not all_weights, which costs 5 us a step
            weights = (w.weight_ih_l0, w.weight_hh_l0, w.bias_ih_l0, w.bias_hh_l0)
            y = torch.gru_cell(x, state.squeeze(1), *weights)
            return y, y.unsqueeze(1)
        return self._layers(x, state, _cell)

    def steps_by_unroll(self, x: Tensor) -> bool:
        """Where there is one kernel for acting and learning."""
        return _fused(x, self.config.hidden) is not None

    def _unroll(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        layer = _fused(x, self.config.hidden)
        if layer is not None:
            return self._layers(x, state, partial(layer, first=first), self.config.learned_initial_state)
        segments = cut(first)
        h = start(state, self.initial_h, segments)  # [S, layers, H]
        if cudnn.suits(x) and not self.config.layer_norm:
            weights = [w for layer in self.rnn.all_weights for w in layer]
            y, h = cudnn.run_packed(torch.gru, x, (h,), weights, segments)
            return y, h
        layer = _cudnn_layer if cudnn.suits(x) else gru
        return self._layers(x, h, partial(layer, segments=segments))

    def _layers(
        self,
        x: Tensor,
        h: Tensor,
        layer: Callable[..., tuple[Tensor, Tensor]],
        takes_initial: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """One layer after the other over x [..., D], with h [rows, layers, H] to begin with.

        ``takes_initial``: whether ``layer`` also wants the state that a reset leads to, [1, H].
        """
        hs = []
        for k, (weights, h_layer) in enumerate(zip(self.rnn.all_weights, h.unbind(1))):
            initial = {"initial": self.initial_h[:, k]} if takes_initial else {}
            x, h_layer = layer(self._normalised(x, k), h_layer, *weights, **initial)
            hs.append(h_layer)
        after = hs[0].unsqueeze(1) if len(hs) == 1 else torch.stack(hs, 1)
        return self._normalised(x, -1), after

    def _normalised(self, x: Tensor, k: int) -> Tensor:
        """What goes into layer ``k``, or with -1 what comes out of the last."""
        return self.norms[k](x) if self.config.layer_norm else x


def _fused(x: Tensor, hidden: int) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """The kernel in Triton if x [..., D] and so many units suit it, which is only imported then."""
    if (
        not available.suits(x) or torch.compiler.is_compiling()
    ):  # a step is compiled whole, from torch's own cell
        return None
    from recollect.kernels.triton.gru import fused_gru

    return fused_gru.gru if fused_gru.suits(x, hidden) else None


def _cell(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of one layer: x [B, D], h [B, H] -> y, h."""
    h = torch.gru_cell(x, h, w_ih, w_hh, b_ih, b_hh)
    return h, h


def _cudnn_layer(x: Tensor, h: Tensor, *weights: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    """One layer by itself on cuDNN, as ``kernels.gru.gru`` does it."""
    y, h = cudnn.run_packed(torch.gru, x, (h.unsqueeze(1),), weights, segments)
    return y, h.squeeze(1)
