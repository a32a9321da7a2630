"""``fast``: tokens drawn on a grid of cells, and two convolutions over it.

The grid is [F, 11, 11], a plane for each feature. A token of value v adds (1 + v / largest) / 2 to its cell,
a number in [0.5, 1], which distinguishes a token of value 0 from no token. Tokens of the same feature in one
cell add up. The sums are computed in whole numbers, which float32 adds exactly: the grid has the same bits in
any order of tokens, also with the atomics of a GPU.
"""

from __future__ import annotations

import gymnasium as gym
import torch
from torch import Tensor, nn

from recollect.policy.layers import Conv, Dense, mlp
from recollect.policy.tokens.token_format import SIDE, TokenSpace

CELLS = SIDE * SIDE


class Fast(nn.Module):
    """Tokens [N, M, 3] -> grid -> 5 x 5 with stride 3 -> 3 x 3 -> two layers -> [N, 128]."""

    output_size = 128

    def __init__(self, space: gym.Space):
        super().__init__()
        self.tokens = TokenSpace.of(space)
        self.near = Conv(self.tokens.features, 64, kernel=5, stride=3, padding=0, activation="silu")
        # The second convolution, 3 x 3 over the remaining 3 x 3 cells: as one matrix, in half the time.
        self.far = Dense(64 * 3 * 3, 64, "silu")
        self.mlp = mlp(64, (128, self.output_size), "tanh")
        # Grids are sparse: the usual weights, made for dense inputs, would give tiny outputs. These give
        # numbers of order 1 for about 16 tokens in a window.
        nn.init.normal_(self.near.weight, std=0.25)

    def forward(self, obs: Tensor) -> Tensor:
        """Obs, uint8 [N, M, 3] -> [N, 128]."""
        return self.mlp(self.far(self.near(self.grid(obs)).flatten(1)))  # [N, 64, 3, 3] -> [N, 576]

    def grid(self, obs: Tensor) -> Tensor:
        """The grid [N, F, 11, 11] of obs [N, M, 3]: rows of cells by y, cells in a row by x."""
        x, y, feature, value, present = self.tokens.read(obs)
        planes, largest, rows = self.tokens.features, self.tokens.largest, obs.shape[0]
        cell = feature.mul_(CELLS).add_(y, alpha=SIDE).add_(x)  # [N, M], below F * 121
        added = value.add_(largest).mul_(present)  # an absent token adds 0 to cell 0
        flat = torch.zeros(rows, planes * CELLS, dtype=self.near.weight.dtype, device=obs.device)
        flat.scatter_add_(1, cell, added.to(flat.dtype))
        return flat.mul_(0.5 / largest).view(rows, planes, SIDE, SIDE)
