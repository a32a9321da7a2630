"""An encoder that fails in whatever process is not the one it was made in."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import gymnasium as gym
import torch
from torch import Tensor, nn


class Doomed(nn.Module):
    """A linear encoder; elsewhere it raises, or kills its process, when it is used for the n-th time.

    ``marker``: the file that says so just before.
    """

    def __init__(self, space: gym.Space, uses: int, is_killed: bool, marker: Path):
        super().__init__()
        assert space.shape is not None
        self.output_size = 8
        self.linear = nn.Linear(space.shape[0], self.output_size)
        self.home, self.left, self.is_killed, self.marker = os.getpid(), uses, is_killed, marker

    def forward(self, obs: Tensor) -> Tensor:
        """[N, D] -> [N, 8]."""
        if os.getpid() != self.home:
            self.left -= 1
            if self.left == 0:
                self.marker.touch()
                if self.is_killed:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError("a fault of the network, in the other learner only")
        return torch.tanh(self.linear(obs))
