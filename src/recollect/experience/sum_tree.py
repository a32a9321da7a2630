"""A tree of sums, to draw entries in proportion to their weights.

Each node has ``BRANCHES`` children, the root up to ``ROOT_BRANCHES``. A node holds the cumulative sums of
their weights, so a draw only compares. They are computed from the children whenever one of them changes, so
rounding errors do not accumulate. A million entries need three levels.
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
        shapes, count = [], size
        while count > ROOT_BRANCHES:
            count = -(-count // BRANCHES)
            shapes.append((count, BRANCHES))
        # The nodes of a level are the children of the next: whole nodes of BRANCHES, the last may be unused.
        shapes = [(-(-nodes // BRANCHES) * BRANCHES, BRANCHES) for nodes, _ in shapes[:-1]] + shapes[-1:]
        entries = shapes[0][0] * BRANCHES if shapes else size
        levels = [part for shape in shapes for part in (shape, shape[:1])]
        self.levels: list[Tensor] = [
            torch.zeros(shape, dtype=torch.float64, device=device)
            for shape in ((entries,), *levels, (count,))
        ]
        """Weights of the entries; of each level the cumulative sums [nodes, BRANCHES] and, side by side for
        the level above, their totals [nodes]; the cumulative sums of the root, [children]."""

    @property
    def nodes(self) -> list[tuple[Tensor, Tensor]]:
        """The cumulative sums and totals of each level between entries and root."""
        return list(zip(self.levels[1:-1:2], self.levels[2:-1:2]))

    @property
    def total(self) -> Tensor:
        """[] the sum of all weights."""
        return self.levels[-1][-1]

    @property
    def weights(self) -> Tensor:
        """[size]"""
        return self.levels[0][: self.size]

    def sums_agree(self) -> bool:
        """Whether all sums are those of the children, up to rounding. A host read."""
        children, root = self.levels[0], self.levels[-1]
        for sums, totals in self.nodes:
            truth = children.view(-1, BRANCHES).cumsum(1)
            if not torch.allclose(sums[: len(truth)], truth, rtol=1e-9, atol=0):
                return False
            if not torch.equal(totals, sums[:, -1]):
                return False
            children = totals
        return torch.allclose(root, children.cumsum(0), rtol=1e-9, atol=0)

    def set(self, index: Tensor, weight: Tensor) -> None:
        """Set the weights [N] of entries [N]. Of an entry that is given twice, the largest counts."""
        children, root = self.levels[0], self.levels[-1]
        children.index_fill_(0, index, 0)
        children.scatter_reduce_(0, index, weight.to(children.dtype), "amax")
        for sums, totals in self.nodes:
            index = index // BRANCHES
            if not devices.synchronises(index):
                index = index.unique_consecutive()
            cumulative = children.view(-1, BRANCHES).index_select(0, index).cumsum(1)
            sums.index_copy_(0, index, cumulative)
            totals.index_copy_(0, index, cumulative[:, -1])
            children = totals
        torch.cumsum(children, 0, out=root)

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """[count] entries, drawn with replacement, each with probability weight / total.

        An entry of weight 0 is not drawn, unless all weights are 0.
        """
        if count < 1:
            raise RecollectError(f"cannot draw {count} entries from a sum tree: count must be at least 1")
        root, below = self.levels[-1], self.levels[-3::-2]
        uniform = torch.rand(
            len(below) + 1, count, 1, dtype=root.dtype, device=root.device, generator=generator
        )
        chances = 1 - uniform  # in (0, 1], so that no target is 0 unless all weights are
        # The first child whose cumulative weight reaches the target; a child of weight 0 adds nothing.
        node = torch.searchsorted(root, chances[0] * root[-1]).view(-1)
        for sums, chance in zip(below, chances[1:]):
            cumulative = sums.index_select(0, node)
            child = (cumulative < chance * cumulative[:, -1:]).sum(1)
            node = child.add_(node, alpha=BRANCHES)
        return node
