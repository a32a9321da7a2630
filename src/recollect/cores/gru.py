"""The GRU of Cho et al. (2014), in PyTorch's conventions: the reset gate acts after the product."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from recollect.config.cores import GRUConfig
from recollect.cores.shared.gated import GatedCore, Layer
from recollect.cores.shared.initial_weights import chrono_bias
from recollect.kernels.cpu.gru import gru


class GRU(GatedCore):
    """State h [B, layers, H]."""

    leaves = ("h",)
    initial_h: Tensor

    def __init__(self, input_size: int, config: GRUConfig):
        super().__init__(input_size, config, nn.GRU)

    def _init_bias(self, bias: Tensor) -> None:
        if self.config.chrono is not None:
            # z is the share of h that is kept: its bias acts like that of a forget gate.
            _, z, _ = bias.split(self.config.hidden)
            z.copy_(chrono_bias(self.config.hidden, self.config.chrono))

    def initial_state(self, batch: int) -> Tensor:
        """Zeros or the learned state [batch, layers, H], as an expanded view."""
        return self.initial_h.expand(batch, -1, -1)

    def _step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        if self.config.layers == 1 and not self.config.layer_norm:
            y = torch.gru_cell(x, state.squeeze(1), *self._weights())
            return y, y.unsqueeze(1)
        y, (h,) = self._layers(x, (state,), _cell)
        return y, h

    def _unroll(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        layer = self._fusable(x)
        if layer is not None:
            is_learned = self.config.learned_initial_state
            y, (h,) = self._layers(x, (state,), partial(layer, first=first), is_learned)
        else:
            y, (h,) = self._unroll_packed(x, first, (state,), torch.gru, gru)
        return y, h

    def _fused(self, x: Tensor) -> Layer | None:
        from recollect.kernels.triton.gru import fused_gru

        return fused_gru.gru if fused_gru.suits(x, self.config.hidden) else None


def _cell(x: Tensor, h: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    """One step of one layer: x [B, D], h [B, H] -> y, h."""
    h = torch.gru_cell(x, h, *weights)
    return h, h
