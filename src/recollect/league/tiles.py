"""Many networks in one batch whose shapes do not depend on which rows each of them has.

Rows are sorted by member into tiles of equal size, so that a tile is of one member only. With M members, R
rows fit into ceil(R / C) + M - 1 tiles of C rows, however they are divided. One network computes tile after
tile, each with the weights of its member, which are copied into it on the device. So nothing is read on the
host, and a CUDA graph can contain it; any encoder, core and head will do.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from recollect.base import tree
from recollect.base.types import State, Tree
from recollect.policy.policy import Policy

ALIGNED = 64
"""Tensors begin at multiples of this many numbers: kernels are faster on aligned addresses."""
NO_PLACE = -2
"""The place of a free seat, which equals no member's."""


class Tiles:
    """The networks of at most ``capacity`` members, for ``rows`` rows; tensors stay at their addresses."""

    def __init__(self, template: Policy, capacity: int, rows: int):
        """``template``: a network of the members' shape, on their device; it stays as it is."""
        device = template.device
        self.capacity, self.rows = capacity, rows
        self.size = -(-rows // capacity)
        """C, rows of a tile."""
        self.count = -(-rows // self.size) + capacity - 1
        self.places = torch.full((capacity,), NO_PLACE, device=device)
        """[M] the place in the pool of each member."""
        self._policy = copy.deepcopy(template).eval().requires_grad_(False)
        self._spans: dict[str, tuple[torch.dtype, slice]] = {}
        """Where the tensors of a member are, among all of their dtype."""
        ends: dict[torch.dtype, int] = {}
        for name, tensor in self._policy.state_dict().items():
            start = ends.get(tensor.dtype, 0)
            self._spans[name] = tensor.dtype, slice(start, start + tensor.numel())
            ends[tensor.dtype] = start + -(-tensor.numel() // ALIGNED) * ALIGNED
        self._weights = {
            kind: torch.zeros(capacity, size, dtype=kind, device=device) for kind, size in ends.items()
        }
        """[M, numbers] of all members, by dtype."""
        self._present = {kind: torch.zeros(1, size, dtype=kind, device=device) for kind, size in ends.items()}
        """[1, numbers] of the tile that is computed: the tensors of ``_policy`` are views of them."""
        for name, tensor in self._policy.state_dict(keep_vars=True).items():
            kind, span = self._spans[name]
            tensor.data = self._present[kind][0, span].view(tensor.shape)
        self._row, self._tile = torch.arange(rows, device=device), torch.arange(self.count, device=device)

    def load(self, members: Mapping[int, Policy]) -> None:
        """Take over the weights of ``members``, by their places in the pool."""
        self.places.fill_(NO_PLACE)
        for i, (place, policy) in enumerate(members.items()):
            self.places[i] = place
            for name, tensor in policy.state_dict().items():
                kind, span = self._spans[name]
                self._weights[kind][i, span] = tensor.flatten()

    @torch.no_grad()
    def act(
        self, member: Tensor, obs: Tree, memory: State, first: Tensor, generator: torch.Generator
    ) -> tuple[Tree, State, Tensor]:
        """The actions of all rows, the memories after them, and the place of the member that chose each.

        Args:
            member: [R] the place of each row's member. Rows whose member is not loaded are left out: their
                memory stays, and their actions are arbitrary.
            obs: [R, ...].
            memory: [R, ...].
            first: [R].
            generator: of the actions.
        """
        place, of_tile, is_loaded = self._divide(member)
        total = self.count * self.size
        source = torch.zeros(total + 1, dtype=torch.int64, device=member.device)
        source.index_copy_(0, place.masked_fill(~is_loaded, total), self._row)
        # The rest of a tile repeats row 0, and is left out below.
        obs, laid_out, first = tree.index((obs, memory, first), source[:-1])
        actions, states = [], []
        for tile in range(self.count):
            for kind, weights in self._weights.items():
                torch.index_select(weights, 0, of_tile[tile : tile + 1], out=self._present[kind])
            span = slice(tile * self.size, (tile + 1) * self.size)
            own, before, starts = tree.index((obs, laid_out, first), span)
            acted, after = self._policy.act(own, before, starts, generator)
            actions.append(self._policy.to_env(acted.action))
            states.append(after)
        by = self.places[of_tile[place.div(self.size, rounding_mode="floor")]]
        after = tree.select(is_loaded, tree.index(tree.cat(states), place), memory)
        return tree.index(tree.cat(actions), place), after, by.masked_fill(~is_loaded, NO_PLACE)

    def _divide(self, member: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The place [R] of each row among all tiles, the number [tiles] of each tile's member, and [R]
        whether the row's member is loaded; if not, the place is 0.

        Loaded members without rows make no difference: a resumed run has fewer of them.
        """
        own = member == self.places.unsqueeze(1)  # [M, R]
        rank = own.cumsum(1)
        needed = (rank[:, -1] + (self.size - 1)).div(self.size, rounding_mode="floor")
        ends = needed.cumsum(0)
        start = (ends - needed) * self.size
        place = (start.unsqueeze(1) + rank - 1).masked_fill(~own, 0).sum(0)
        of_tile = (self._tile.unsqueeze(1) >= ends).sum(1).clamp(max=self.capacity - 1)
        return place, of_tile, own.any(0)
