"""A tree of sums, to draw entries in proportion to their weights.

Each node has ``BRANCHES`` children and holds the sum of their weights. The sum is computed from the children
whenever one of them changes, so rounding errors do not accumulate. A million entries need three levels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.base import devices
from recollect.errors import RecollectError

BRANCHES = 128


class SumTree:
    """Weights of ``size`` entries."""

    def __init__(self, size: int, device: torch.device | str):
        self.size = size
        self.levels: list[Tensor] = []
        """Weights of the entries, then the sums of each level up to the root; float64, each padded with
        zeros to a multiple of ``BRANCHES`` except the root."""
        count = size
        while count > 1 or not self.levels:
            padded = -(-count // BRANCHES) * BRANCHES
            self.levels.append(torch.zeros(padded, dtype=torch.float64, device=device))
            count = padded // BRANCHES
        self.levels.append(torch.zeros(1, dtype=torch.float64, device=device))

    @property
    def total(self) -> Tensor:
        """[] the sum of all weights."""
        return self.levels[-1][0]

    @property
    def weights(self) -> Tensor:
        """[size]"""
        return self.levels[0][: self.size]

    def set(self, index: Tensor, weight: Tensor) -> None:
        """Set the weights [N] of entries [N]. Of an entry that is given twice, the largest counts."""
        weights = self.levels[0]
        weights.index_fill_(0, index, 0)
        weights.scatter_reduce_(0, index, weight.to(weights.dtype), "amax")
        for children, parents in zip(self.levels, self.levels[1:]):
            index = index // BRANCHES
            if not devices.synchronises(index):
                index = index.unique_consecutive()
            parents[index] = children.view(-1, BRANCHES)[index].sum(1)

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """[count] entries, drawn with replacement, each with probability weight / total.

        An entry of weight 0 is not drawn, unless all weights are 0.
        """
        if count < 1:
            raise RecollectError(f"cannot draw {count} entries from a sum tree: count must be at least 1")
        depth, root = len(self.levels) - 1, self.levels[-1]
        uniform = torch.rand(depth, count, 1, dtype=torch.float64, device=root.device, generator=generator)
        node = torch.zeros(count, dtype=torch.int64, device=root.device)
        for level, chance in zip(reversed(self.levels[:-1]), uniform):
            children = level.view(-1, BRANCHES)
            cumulative = (children if len(children) == 1 else children[node]).cumsum(1)
            target = chance * cumulative[:, -1:]
            # The first child whose cumulative weight exceeds the target; a child of weight 0 adds nothing.
            if len(children) == 1:
                child = torch.searchsorted(cumulative[0], target, right=True)
            else:
                child = torch.searchsorted(cumulative, target, right=True)
            node = node * BRANCHES + child.squeeze(1) % BRANCHES  # BRANCHES if all weights are 0
        return node
