"""The GRU of Cho et al. (2014), in PyTorch's conventions: the reset gate acts after the product."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recollect.cores.shared.gated import GatedCore, Layer, Leaves
from recollect.cores.shared.initial_weights import chrono_bias
from recollect.kernels.cpu.gru import gru


class GRU(GatedCore):
    """State h [B, layers, H]."""

    leaves = ("h",)
    rnn_class = nn.GRU

    def _init_bias(self, bias: Tensor) -> None:
        if self.config.chrono is not None:
            # z is the share of h that is kept: its bias acts like that of a forget gate.
            _, z, _ = bias.split(self.config.hidden)
            z.copy_(chrono_bias(self.config.hidden, self.config.chrono))

    def _cell(self, x: Tensor, *given: Tensor) -> Leaves:
        h = torch.gru_cell(x, *given)
        return h, h

    def _unroll_eager(self, x: Tensor, state: Leaves, first: Tensor) -> tuple[Tensor, Leaves]:
        return self._unroll_packed(x, state, first, torch.gru, gru)

    def _fused(self, x: Tensor) -> Layer | None:
        from recollect.kernels.triton.gru import fused_gru

        return fused_gru.gru if fused_gru.suits(x, self.config.hidden) else None
