"""Episode segments: rollouts split at episode starts, the alternative to chunks.

A segment holds the steps of one episode of one row within a rollout, up to the last valid one. A segment
that continues an episode from before the rollout starts from the stored state of step 0, every other one at
``first``. So no other state needs to be stored.

Segments differ in length, and padding all of them to the longest could cost many times their steps. So a
batch of segments is *packed*: several follow each other in a column as long as the longest one. Each starts
with its ``first``, where the core resets. By the law of cores the result equals that of each segment alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import torch
from torch import Tensor

from recollect.base import devices, tree
from recollect.base.types import State, Tree
from recollect.experience.chunks import Chunks
from recollect.experience.rollout import Rollout


@dataclass(frozen=True, slots=True)
class EpisodeSegments:
    """N episode segments, and the T x B steps of the rollout that they are taken from."""

    obs: Tree
    """[T * B, ...]: step t of row b stands at t * B + b, here and below."""
    first: Tensor
    """[T * B] bool"""
    action: Tree
    """[T * B, ...]"""
    valid: Tensor
    """[T * B] bool"""
    data: dict[str, Tensor]
    """[T * B] each: the record of acting, advantages, returns."""
    state: State
    """[B, ...] the raw input state of step 0."""
    rows: int
    """B."""
    begin: Tensor
    """[N] int64, on the CPU like all fields below: the first step of each segment, as t * B + b."""
    sizes: Tensor
    """[N] int64: number of steps."""
    counts: Tensor
    """[N] int64: number of valid steps: all, unless an env has fillers inside episodes."""
    is_carried: Tensor
    """[N] bool: whether it continues an episode from before the rollout."""

    @property
    def count(self) -> int:
        """N."""
        return len(self.begin)

    def whole(self) -> Chunks:
        """All segments in one batch."""
        return self.take(torch.arange(self.count))

    def valid_steps(self, which: Tensor) -> Tensor:
        """Number of valid steps in the segments ``which`` [M]."""
        return self.counts[which.cpu()].sum().to(self.valid.device)

    def total(self, which: Tensor, name: str) -> Tensor:
        """The sum of ``data[name]`` over the steps of the segments ``which`` [M]."""
        _, _, source = self._steps(which.cpu())
        return self.data[name].index_select(0, source.to(self.valid.device)).sum()

    def take(self, which: Tensor) -> Chunks:
        """The segments ``which`` [M] int64, packed into columns."""
        which = which.cpu()
        sizes = self.sizes[which]
        column, offset = pack(sizes.tolist(), self.is_carried[which].tolist())
        length, count = int(sizes.max()), int(column.max()) + 1
        owner, step, place = self._steps(which)
        cell = (offset[owner] + step) * count + column[owner]  # [S]: its place in [L, C]
        source = torch.zeros(length * count, dtype=torch.int64)
        source[cell] = place
        is_padding = torch.ones(length * count, dtype=torch.bool)
        is_padding[cell] = False
        device = self.valid.device
        return self._gather(source.to(device), is_padding.to(device), length, self._heads(which, column))

    def _steps(self, which: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For all steps [S] of the segments ``which``: the segment, the index in it, and t * B + b."""
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

        obs, first, action, valid, data = columns((self.obs, self.first, self.action, self.valid, self.data))
        return Chunks(obs, first, action, valid, data, state)

    def _heads(self, which: Tensor, column: Tensor) -> State:
        """The states [C, ...] that the columns start from; zeros where the first step is a ``first``."""
        carried = self.is_carried[which]
        row = torch.zeros(int(column.max()) + 1, dtype=torch.int64)
        is_fresh = torch.ones(len(row), dtype=torch.bool)
        row[column[carried]] = self.begin[which][carried]  # step 0 of row b stands at b
        is_fresh[column[carried]] = False
        row, is_fresh = row.to(self.valid.device), is_fresh.to(self.valid.device)
        return tree.zero_where(is_fresh, tree.map(lambda leaf: leaf.index_select(0, row), self.state))


def make_segments(rollout: Rollout, data: dict[str, Tensor]) -> EpisodeSegments:
    """Split a rollout at its episode starts, with the [T, B] tensors ``data`` as in ``make_chunks``.

    Invalid steps become zeros. Fillers and the steps of dead agents follow the last step of their episode, so
    they are in no segment.
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
    return EpisodeSegments(
        obs=flat(rollout.obs),
        first=rollout.first[:T].flatten(),
        action=flat(rollout.action),
        valid=rollout.valid.flatten(),
        data=flat(rollout.record | data),
        state=state if is_clean else tree.zero_where(invalid[0], state),
        rows=B,
        begin=begin,
        sizes=sizes,
        counts=counts,
        is_carried=~first.flatten()[begin],
    )


def _spans(first: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First step as t * B + b, steps, valid steps, [N] each, of segments with valid steps; given [T, B]."""
    T, B = first.shape
    opens = first.clone()
    opens[0] = True
    row, time = opens.T.nonzero(as_tuple=True)  # ordered by row, then by time
    number = opens.T.flatten().cumsum(0) - 1  # [B * T]: the segment of each step
    after = torch.where(valid, torch.arange(1, T + 1).unsqueeze(1), 0)  # t + 1 where valid
    end = torch.zeros_like(time).scatter_reduce(0, number, after.T.flatten(), "amax")
    counts = torch.zeros_like(time).scatter_add(0, number, valid.T.flatten().long())
    is_real = counts > 0
    return (time * B + row)[is_real], (end - time)[is_real], counts[is_real]


def pack(sizes: Sequence[int], carried: Sequence[bool]) -> tuple[Tensor, Tensor]:
    """The column of each segment and its first step there, for columns as long as the longest segment.

    A carried segment starts a column, because its state is the column's first. All others, longest first,
    are put into the column with most room, or into a new one if none has enough.
    """
    length = max(sizes)
    column, offset = [0] * len(sizes), [0] * len(sizes)
    rooms: list[tuple[int, int]] = []  # (minus the room left, column): the roomiest first
    count = 0
    for segment in sorted(range(len(sizes)), key=lambda i: (not carried[i], -sizes[i])):
        if carried[segment] or not rooms or -rooms[0][0] < sizes[segment]:
            left, column[segment] = length, count
            count += 1
        else:
            left, column[segment] = -rooms[0][0], heappop(rooms)[1]
        offset[segment] = length - left
        heappush(rooms, (sizes[segment] - left, column[segment]))
    return torch.tensor(column), torch.tensor(offset)
