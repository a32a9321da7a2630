"""Rows dealt out to learners: the part of a rollout that each gets, and minibatches over the parts of all.

Every rank draws the same minibatches over the sequences of all ranks, with the same generator, and takes
those of its own rows. So a minibatch of many learners is the minibatch that one learner would have had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from recollect.errors import ConfigError
from recollect.experience.chunks import Chunks
from recollect.experience.episode_segments import Pieces
from recollect.experience.rollout import Rollout
from recollect.learning.ranks import Group


def even_rows(rows: int, learners: int) -> tuple[int, ...]:
    """How many of ``rows`` rows each learner gets: the same, or within one."""
    if rows < learners:
        raise ConfigError(
            f"learners = {learners}, but a rollout has only {rows} rows, and every learner needs one: lower "
            "learners, or raise num_envs"
        )
    return tuple(rows // learners + (rank < rows % learners) for rank in range(learners))


def shards(rollout: Rollout, rows: tuple[int, ...]) -> list[Rollout]:
    """The rollout cut into so many rows each, in order; views of it."""
    ends = list(accumulate(rows))
    return [rollout.select_rows(end - count, end) for count, end in zip(rows, ends)]


class SharedSequences:
    """The sequences of all ranks, numbered as one learner would, of which this rank holds its own."""

    def __init__(self, own: Chunks | Pieces, ranks: Group, spare: Callable[[], Chunks]):
        """``spare``: some chunk, for a rank that holds no sequence at all."""
        self.own, self.ranks, self._spare = own, ranks, spare
        mine = torch.arange(own.count)
        self.sizes: Tensor | None = None
        """What minibatches are to be balanced by, if by anything."""
        if isinstance(own, Chunks):  # chunk c of row b is number c * B + b
            rows = ranks.rows[ranks.rank]
            (counts,) = ranks.gather(own.valid.sum(0).cpu().view(-1, rows))  # [C * B] -> [C, B]
            place = torch.full_like(counts, -1)
            ranks.own(place).copy_(mine.view(-1, rows))
            counts, place = counts.flatten(), place.flatten()
        else:  # pieces come row by row
            found, begin = ranks.gather_any(torch.stack([own.counts, own.sizes]))
            counts, self.sizes = found
            place = torch.full_like(counts, -1)
            place[begin : begin + own.count] = mine
        device = own.valid.device
        self._counts, self._place = counts.to(device), place.to(device)
        # counts [N]: the valid steps of every sequence; place [N]: its number here, or -1

    @property
    def count(self) -> int:
        """N, over all ranks."""
        return len(self._counts)

    def whole(self) -> Chunks:
        """All own sequences in one batch."""
        return self.own.whole() if self.own.count else _blank(self._spare())

    def valid_steps(self, which: Tensor) -> Tensor:
        """How many valid steps the sequences ``which`` [M] have, on whatever rank."""
        return self._counts[which.to(self._counts.device)].sum()

    def total(self, which: Tensor, name: str) -> Tensor:
        """The sum of ``data[name]`` over the steps of the sequences ``which`` [M], on whatever rank."""
        return self.ranks.sum(self.own.total(self._mine(which), name))

    def take(self, which: Tensor) -> Chunks:
        """Those of the sequences ``which`` [M] that are here.

        If none is, some sequence without one valid step: it adds nothing to any sum, and this rank does all
        that the others do.
        """
        mine = self._mine(which)
        if len(mine):
            return self.own.take(mine)
        return _blank(self.own.take(torch.zeros_like(which[:1])) if self.own.count else self._spare())

    def _mine(self, which: Tensor) -> Tensor:
        places = self._place[which.to(self._place.device)]
        return places[places >= 0]


def _blank(batch: Chunks) -> Chunks:
    """One column of a batch, all of it padding."""
    batch = batch.take(torch.zeros(1, dtype=torch.int64, device=batch.valid.device))
    data = {name: torch.zeros_like(value) for name, value in batch.data.items()}
    return replace(batch, valid=torch.zeros_like(batch.valid), data=data)
