"""A tree of sums, to draw entries in proportion to their weights.

Each node has ``BRANCHES`` children, the root up to ``ROOT_BRANCHES``, and holds the sum of their weights. The
sum is computed from the children whenever one of them changes, so rounding errors do not accumulate. A
million entries need three levels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.base import devices
from recollect.errors import RecollectError

BRANCHES, ROOT_BRANCHES = 16, 4096


class SumTree:
    """Weights of ``size`` entries."""

    def __init__(self, size: int, device: torch.device | str):
        self.size = size
        self.levels: list[Tensor] = []
        """Weights of the entries, then the sums of each level up to the root, float64. Every level below the
        root's children has a multiple of ``BRANCHES`` nodes; the last of them may be unused."""
        count = size
        while count > ROOT_BRANCHES:
            parents = -(-count // BRANCHES)
            self.levels.append(torch.zeros(parents * BRANCHES, dtype=torch.float64, device=device))
            count = parents
        for nodes in (count, 1):
            self.levels.append(torch.zeros(nodes, dtype=torch.float64, device=device))

    @property
    def total(self) -> Tensor:
        """[] the sum of all weights."""
        return self.levels[-1][0]

    @property
    def weights(self) -> Tensor:
        """[size]"""
        return self.levels[0][: self.size]

    def sums_agree(self) -> bool:
        """Whether every sum is that of its children, up to rounding. A host read."""
        *below, top, root = self.levels
        sums = [level.view(-1, BRANCHES).sum(1) for level in below]
        used = [level[: len(part)] for level, part in zip(self.levels[1:], sums)]
        pairs = zip([*used, root], [*sums, top.sum().view(1)])
        return all(torch.allclose(ours, truth, rtol=1e-9, atol=0) for ours, truth in pairs)

    def set(self, index: Tensor, weight: Tensor) -> None:
        """Set the weights [N] of entries [N]. Of an entry that is given twice, the largest counts."""
        weights = self.levels[0]
        weights.index_fill_(0, index, 0)
        weights.scatter_reduce_(0, index, weight.to(weights.dtype), "amax")
        *below, top, root = self.levels
        for children, parents in zip(below, self.levels[1:]):
            index = index // BRANCHES
            if not devices.synchronises(index):
                index = index.unique_consecutive()
            parents[index] = children.view(-1, BRANCHES)[index].sum(1)
        root.copy_(top.sum())

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """[count] entries, drawn with replacement, each with probability weight / total.

        An entry of weight 0 is not drawn, unless all weights are 0.
        """
        if count < 1:
            raise RecollectError(f"cannot draw {count} entries from a sum tree: count must be at least 1")
        *below, top, _ = self.levels
        device, dtype = top.device, top.dtype
        uniform = torch.rand(len(below) + 1, count, 1, dtype=dtype, device=device, generator=generator)
        # The first child whose cumulative weight exceeds the target; a child of weight 0 adds nothing.
        cumulative = top.cumsum(0)
        node = torch.searchsorted(cumulative, uniform[0] * cumulative[-1], right=True).squeeze(1)
        node = node % len(top)  # len(top) if all weights are 0
        for level, chance in zip(reversed(below), uniform[1:]):
            cumulative = level.view(-1, BRANCHES).index_select(0, node).cumsum(1)
            child = (cumulative <= chance * cumulative[:, -1:]).sum(1)
            node = child.bitwise_and_(BRANCHES - 1).add_(node, alpha=BRANCHES)  # child 0, if all are 0
        return node
