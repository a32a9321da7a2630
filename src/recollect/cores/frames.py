"""Frame stacks: the last n inputs side by side, the oldest first.

    y[t] = (x[t - n + 1], ..., x[t - 1], x[t])        with zeros for inputs before the episode's start

after Mnih et al., "Human-level control through deep reinforcement learning" (2015). The state is the last
n - 1 inputs. No number is computed, so acting and replay give the same bits.

The inputs are what the encoder returns: observations as they are without hidden layers, which is the default
with this core (``PolicyConfig.encoder``); of an image, the features of its conv stack.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recollect.base import devices
from recollect.config.cores import FramesConfig
from recollect.cores.contract import Core

FramesState = Any
"""The last inputs [B, n - 1, D], oldest first; () if n is 1."""


class Frames(Core):
    """See the module's docstring."""

    starts_at_zero = True
    unrolls_in_groups = False  # it only copies
    zero: Tensor

    def __init__(self, input_size: int, config: FramesConfig):
        super().__init__(input_size, config.frames * input_size)
        self.config = config
        self.reach = config.frames - 1
        # Of the dtype of the weights, although there are none.
        self.register_buffer("zero", torch.zeros(1, self.reach, input_size), persistent=False)

    def initial_state(self, batch: int) -> FramesState:
        """Zeros."""
        return self.zero.expand(batch, -1, -1) if self.reach else ()

    def _step(self, x: Tensor, state: FramesState) -> tuple[Tensor, FramesState]:
        if not self.reach:
            return x, ()
        frames = torch.cat((state, x.unsqueeze(1)), 1)  # [B, n, D]
        return frames.flatten(1), frames[:, 1:]

    def _unroll(self, x: Tensor, state: FramesState, first: Tensor) -> tuple[Tensor, FramesState]:
        if not self.reach:
            return x, ()
        T, n = x.shape[0], self.config.frames
        inputs = torch.cat((state.transpose(0, 1), x))  # [n - 1 + T, B, D]
        frames = inputs.unfold(0, n, 1).transpose(2, 3)  # [T, B, D, n] -> [T, B, n, D]
        time = torch.arange(T, device=x.device).unsqueeze(1)
        # The first step of every step's episode [T, B, 1]; the step of every frame [T, 1, n].
        start = torch.where(first, time, -n).cummax(0).values.unsqueeze(2)
        of_frame = time.unsqueeze(2) + torch.arange(1 - n, 1, device=x.device)
        is_earlier = of_frame < start  # [T, B, n]
        if devices.synchronises(first) or torch.compiler.is_compiling():
            frames = frames.masked_fill(is_earlier.unsqueeze(3), 0)
        else:  # only the frames of earlier episodes are touched, which are few
            frames = frames.contiguous()
            frames.flatten(0, 2).index_fill_(0, is_earlier.flatten().nonzero().squeeze(1), 0)
        return frames.flatten(2), frames[-1, :, 1:]
