"""Recollect's encoder for grids of symbols (src/recollect/policy/encoders.py), for the other libraries.

Needs only torch, so that it runs in every library's own virtual environment. tests/project/test_compare.py
compares it with Recollect's. The initial weights of its layers are left to each library.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SYMBOL_SIZE = 8
"""Entries of the vector of a symbol."""


class Symbols(nn.Module):
    """Ids [N, 7, 7, C] or [N, C, 7, 7], which may be floats -> [N, output_size].

    A learned vector for each value of each channel, added up; two 3 x 3 layers of stride 2; one layer.
    """

    channel: Tensor

    def __init__(self, shape: tuple[int, ...], width: int):
        super().__init__()
        self.channels_last = shape[2] == min(shape)
        channels, *sides = shape if not self.channels_last else (shape[2], *shape[:2])
        assert sides == [7, 7], f"made for a view of 7 x 7, not {sides}"
        self.table = nn.Parameter(torch.randn(256 * channels, SYMBOL_SIZE) / math.sqrt(channels))
        self.register_buffer("channel", 256 * torch.arange(channels), persistent=False)
        self.layers = nn.Sequential(
            nn.Conv2d(SYMBOL_SIZE, 16, 3, 2, 1),  # 7 x 7 -> 4 x 4
            nn.Tanh(),
            nn.Conv2d(16, 32, 3, 2, 1),  # 4 x 4 -> 2 x 2
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(32 * 2 * 2, width),
            nn.Tanh(),
        )
        self.output_size = width

    def forward(self, ids: Tensor) -> Tensor:
        if not self.channels_last:
            ids = ids.permute(0, 2, 3, 1)  # [N, C, H, W] -> [N, H, W, C]
        cells = ids.long() + self.channel
        x = F.embedding_bag(cells.flatten(0, 2), self.table, mode="sum")  # [N * H * W, SYMBOL_SIZE]
        return self.layers(x.view(*cells.shape[:3], -1).permute(0, 3, 1, 2))
