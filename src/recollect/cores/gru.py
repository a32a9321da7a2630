"""The GRU of Cho et al. (2014), in PyTorch's conventions: the reset gate acts after the product."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from recollect.cores.base import Core
from recollect.cores.checks import check_chrono, check_size, chrono_bias, init_gates
from recollect.cores.kernels import cudnn
from recollect.cores.kernels.gru import gru
from recollect.cores.kernels.segments import cut, start


@dataclass(frozen=True, slots=True)
class GRUConfig:
    """Settings of the GRU core."""

    hidden: int = 128
    """Size of h in every layer, and of the output."""
    layers: int = 1
    """Layers on top of each other; each feeds its h to the next."""
    learned_initial_state: bool = False
    """Whether the state at the start of an episode is learned; otherwise it is zero."""
    chrono: int | None = None
    """The longest time to remember, in steps, for chrono initialisation of the update gates."""

    def __post_init__(self) -> None:
        check_size(self, hidden=self.hidden, layers=self.layers)
        check_chrono(self, self.chrono)

    def reaching(self, steps: int) -> GRUConfig:
        """With gates that start open for ``steps`` steps."""
        return replace(self, chrono=max(2, steps))

    def build(self, input_size: int) -> GRU:
        """The core for inputs of ``input_size`` features."""
        return GRU(input_size, self)


class GRU(Core):
    """State h [B, layers, H]; the output is h of the last layer.

    ``rnn`` holds the weights and is never called: weights of an ``nn.GRU`` load into it.
    """

    def __init__(self, input_size: int, config: GRUConfig):
        super().__init__(input_size, config.hidden)
        check_size(self, input_size=input_size)
        self.config = config
        self.starts_at_zero = not config.learned_initial_state
        self.rnn = nn.GRU(input_size, config.hidden, config.layers)
        shape = (1, config.layers, config.hidden)
        if config.learned_initial_state:
            self.initial_h = nn.Parameter(torch.zeros(shape))
        else:
            self.register_buffer("initial_h", torch.zeros(shape), persistent=False)
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

    def _step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        if self.config.layers == 1:
            w: Any = self.rnn  # not all_weights, which costs 5 us a step
            weights = (w.weight_ih_l0, w.weight_hh_l0, w.bias_ih_l0, w.bias_hh_l0)
            y = torch.gru_cell(x, state.squeeze(1), *weights)
            return y, y.unsqueeze(1)
        hs = []
        for weights, h_layer in zip(self.rnn.all_weights, state.unbind(1)):
            x = torch.gru_cell(x, h_layer, *weights)
            hs.append(x)
        return x, torch.stack(hs, 1)

    def _unroll(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        segments = cut(first)
        h = start(state, self.initial_h, segments)  # [S, layers, H]
        if cudnn.suits(x):
            weights = [w for layer in self.rnn.all_weights for w in layer]
            y, h = cudnn.run_packed(torch.gru, x, (h,), weights, segments)
            return y, h
        if self.config.layers == 1:
            y, h = gru(x, h.squeeze(1), *self.rnn.all_weights[0], segments=segments)
            return y, h.unsqueeze(1)
        hs = []
        for weights, h_layer in zip(self.rnn.all_weights, h.unbind(1)):
            x, h_layer = gru(x, h_layer, *weights, segments=segments)
            hs.append(h_layer)
        return x, torch.stack(hs, 1)
