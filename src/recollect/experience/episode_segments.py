"""Rollouts cut at episode starts: the other way to make sequences of them, beside chunks.

A piece is what a rollout holds of one episode of one row, from its first step there to the last one that
is experience. One that goes on from before the rollout starts from the stored state of step 0, every
other at ``first``, so that no other state need be stored.

Pieces differ in length. Padding each to the longest could cost many times the steps that there are. So a
batch of pieces is *packed*: as many as fit stand one after another in a column as long as the longest of
them, each opened by its ``first``, at which the core forgets what stood before it. By the law of cores
that is the same as each alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import torch
from torch import Tensor

from recollect.base import devices, tree
from recollect.base.types import State, Tree
from recollect.experience.rollout import Chunks, Rollout


@dataclass(frozen=True, slots=True)
class Pieces:
    """N pieces of the episodes of a rollout, and the T x B steps that they are taken from."""

    obs: Tree
    """[T * B, ...]: step t of row b stands at t * B + b, here and below."""
    first: Tensor
    """[T * B] bool"""
    action: Tree
    """[T * B, ...]"""
    valid: Tensor
    """[T * B] bool"""
    data: dict[str, Tensor]
    """[T * B] each: what acting recorded, advantages, returns."""
    state: State
    """[B, ...] the raw input state of step 0."""
    rows: int
    """B."""
    begin: Tensor
    """[N] int64, on the CPU like all that follows: where each piece begins, as t * B + b."""
    sizes: Tensor
    """[N] int64: how many steps it has."""
    counts: Tensor
    """[N] int64: how many of them are valid: all, unless an env has fillers in the midst of episodes."""
    is_carried: Tensor
    """[N] bool: whether it goes on from before the rollout."""

    @property
    def count(self) -> int:
        """N."""
        return len(self.begin)

    def whole(self) -> Chunks:
        """All pieces in one batch."""
        return self.take(torch.arange(self.count))

    def valid_steps(self, which: Tensor) -> Tensor:
        """How many valid steps the pieces ``which`` [M] have."""
        return self.counts[which.cpu()].sum().to(self.valid.device)

    def total(self, which: Tensor, name: str) -> Tensor:
        """The sum of ``data[name]`` over the steps of the pieces ``which`` [M]."""
        _, _, source = self._steps(which.cpu())
        return self.data[name].index_select(0, source.to(self.valid.device)).sum()

    def take(self, which: Tensor) -> Chunks:
        """The pieces ``which`` [M] int64, packed into columns."""
        which = which.cpu()
        sizes = self.sizes[which]
        column, offset = pack(sizes.tolist(), self.is_carried[which].tolist())
        length, count = int(sizes.max()), int(column.max()) + 1
        owner, step, place = self._steps(which)
        cell = (offset[owner] + step) * count + column[owner]  # [S]: where it goes in [L, C]
        source = torch.zeros(length * count, dtype=torch.int64)
        source[cell] = place
        is_padding = torch.ones(length * count, dtype=torch.bool)
        is_padding[cell] = False
        device = self.valid.device
        return self._gather(source.to(device), is_padding.to(device), length, self._heads(which, column))

    def _steps(self, which: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of all steps [S] of the pieces ``which``: whose of them, the how manieth there, and t * B + b."""
        sizes = self.sizes[which]
        owner = torch.arange(len(which)).repeat_interleave(sizes)
        step = torch.arange(len(owner)) - (sizes.cumsum(0) - sizes)[owner]
        return owner, step, self.begin[which][owner] + step * self.rows

    def _gather(self, source: Tensor, is_padding: Tensor, length: int, state: State) -> Chunks:
        """Columns of the steps ``source`` [L * C], zeros where ``is_padding`` [L * C]."""
        is_full = not devices.synchronises(is_padding) and not is_padding.any()

        def columns(value: Tree) -> Tree:
            taken = tree.map(lambda leaf: leaf.index_select(0, source), value)
            taken = taken if is_full else tree.zero_where(is_padding, taken)
            return tree.map(lambda leaf: leaf.unflatten(0, (length, -1)), taken)  # [L * C, ..] -> [L, C, ..]

        return Chunks(
            columns(self.obs),
            columns(self.first),
            columns(self.action),
            columns(self.valid),
            {name: columns(value) for name, value in self.data.items()},
            state,
        )

    def _heads(self, which: Tensor, column: Tensor) -> State:
        """The states [C, ...] that the columns start from; zeros where the first step is a ``first``."""
        carried = self.is_carried[which]
        row = torch.zeros(int(column.max()) + 1, dtype=torch.int64)
        is_fresh = torch.ones(len(row), dtype=torch.bool)
        row[column[carried]] = self.begin[which][carried]  # step 0 of row b stands at b
        is_fresh[column[carried]] = False
        row, is_fresh = row.to(self.valid.device), is_fresh.to(self.valid.device)
        return tree.zero_where(is_fresh, tree.map(lambda leaf: leaf.index_select(0, row), self.state))


def make_pieces(rollout: Rollout, data: dict[str, Tensor]) -> Pieces:
    """Cut a rollout at its episode starts.

    What invalid steps hold becomes zeros, as in ``make_chunks``. Fillers and the steps of dead agents
    come after the last step of their episode, so that they are in no piece at all.

    Args:
        rollout: T steps of B rows.
        data: [T, B] tensors to cut along beside what acting recorded (and in place of it).
    """
    T, B = rollout.steps, rollout.rows
    invalid = ~rollout.valid
    is_clean = not devices.synchronises(invalid) and not invalid.any()

    def flat(value: Tree) -> Tree:
        value = tree.map(lambda leaf: leaf[:T], value)
        value = value if is_clean else tree.zero_where(invalid, value)
        return tree.map(lambda leaf: leaf.flatten(0, 1), value)  # [T, B, ..] -> [T * B, ..]

    state = rollout.state_at(0)
    first = rollout.first[:T].cpu()
    begin, sizes, counts = _spans(first, rollout.valid.cpu())
    return Pieces(
        obs=flat(rollout.obs),
        first=rollout.first[:T].flatten(),
        action=flat(rollout.action),
        valid=rollout.valid.flatten(),
        data={name: flat(value) for name, value in (rollout.record | data).items()},
        state=state if is_clean else tree.zero_where(invalid[0], state),
        rows=B,
        begin=begin,
        sizes=sizes,
        counts=counts,
        is_carried=~first.flatten()[begin],
    )


def _spans(first: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Begin, as t * B + b, steps, and valid steps, [N] each, of the pieces that have any; given [T, B]."""
    T, B = first.shape
    opens = first.clone()
    opens[0] = True
    row, time = opens.T.nonzero(as_tuple=True)  # row by row, and in order of time within each
    number = opens.T.flatten().cumsum(0) - 1  # [B * T]: the piece that a step belongs to
    after = torch.where(valid, torch.arange(1, T + 1).unsqueeze(1), 0)  # t + 1 where it counts
    end = torch.zeros_like(time).scatter_reduce(0, number, after.T.flatten(), "amax")
    counts = torch.zeros_like(time).scatter_add(0, number, valid.T.flatten().long())
    is_real = counts > 0
    return (time * B + row)[is_real], (end - time)[is_real], counts[is_real]


def pack(sizes: Sequence[int], carried: Sequence[bool]) -> tuple[Tensor, Tensor]:
    """The column and the first step there of each piece, in columns as long as the longest one.

    A carried piece heads a column, as its state is that of the column's start. All others, longest
    first, go where most room is left, or open a new column where there is too little.
    """
    length = max(sizes)
    column, offset = [0] * len(sizes), [0] * len(sizes)
    rooms: list[tuple[int, int]] = []  # (minus what is left, column): the roomiest comes first
    count = 0
    for piece in sorted(range(len(sizes)), key=lambda i: (not carried[i], -sizes[i])):
        if carried[piece] or not rooms or -rooms[0][0] < sizes[piece]:
            left, column[piece] = length, count
            count += 1
        else:
            left, column[piece] = -rooms[0][0], heappop(rooms)[1]
        offset[piece] = length - left
        heappush(rooms, (sizes[piece] - left, column[piece]))
    return torch.tensor(column), torch.tensor(offset)
