"""An encoder that fails or waits in whatever process is not the one it was made in."""

from __future__ import annotations

import os
from pathlib import Path

import gymnasium as gym
import torch
from torch import Tensor, nn

from tests.support.doomed import wait_for


class Doomed(nn.Module):
    """A linear encoder; elsewhere it fails when it is used for the n-th time.

    ``by``: the signal that its process gets; None: it raises. ``marker``: the file that says so just before.
    """

    def __init__(self, space: gym.Space, uses: int, by: int | None, marker: Path):
        super().__init__()
        assert space.shape is not None
        self.output_size = 8
        self.linear = nn.Linear(space.shape[0], self.output_size)
        self.home, self.left, self.by, self.marker = os.getpid(), uses, by, marker

    def forward(self, obs: Tensor) -> Tensor:
        """[N, D] -> [N, 8]."""
        if os.getpid() != self.home:
            self.left -= 1
            if self.left == 0:
                self.marker.touch()
                if self.by is not None:
                    os.kill(os.getpid(), self.by)
                raise ValueError("a fault of the network, in the other learner only")
        return torch.tanh(self.linear(obs))


class Waiting(Doomed):
    """Elsewhere it makes the file ``started`` when it is used, and waits for the file ``goes_on``."""

    def __init__(self, space: gym.Space, started: Path, goes_on: Path):
        super().__init__(space, 0, None, started)
        self.goes_on = goes_on

    def forward(self, obs: Tensor) -> Tensor:
        """[N, D] -> [N, 8]."""
        if os.getpid() != self.home:
            self.marker.touch()
            wait_for(self.goes_on.exists)
        return super().forward(obs)
