"""The sequences that minibatches are drawn from: chunks or episode segments, of one rank or all.

Every rank draws the same minibatches over the sequences of all ranks, with the same generator, and takes
those of its own rows. So several learners together have the minibatches that one learner would have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from recollect.base import tree
from recollect.config.algo_shared import LearnerConfig
from recollect.experience.chunks import Chunks, make_chunks
from recollect.experience.episode_segments import EpisodeSegments, make_segments
from recollect.experience.rollout import Rollout
from recollect.learning.algorithm import Data
from recollect.learning.ranks import ALONE, Group, Ranks
from recollect.policy.policy import Policy


class SharedSequences:
    """The sequences of all ranks, numbered as in a single learner. This rank holds those of its own rows."""

    def __init__(self, own: Chunks | EpisodeSegments, ranks: Group, spare: Callable[[], Chunks]):
        """``spare``: makes any chunk, for a rank without a sequence."""
        self.own, self.ranks, self._spare = own, ranks, spare
        mine = torch.arange(own.count)
        self.sizes: Tensor | None = None
        """[N] steps by which minibatches are balanced; None for chunks, which are equally long."""
        if isinstance(own, Chunks):  # chunk c of row b is number c * B + b
            rows = ranks.rows[ranks.rank]
            (counts,) = ranks.gather(own.valid.sum(0).cpu().view(-1, rows))  # [C * B] -> [C, B]
            place = torch.full_like(counts, -1)
            ranks.own(place).copy_(mine.view(-1, rows))
            counts, place = counts.flatten(), place.flatten()
        else:  # segments are ordered by row
            found, begin = ranks.gather_any(torch.stack([own.counts, own.sizes]))
            counts, self.sizes = found
            place = torch.full_like(counts, -1)
            place[begin : begin + own.count] = mine
        device = own.valid.device
        self._counts, self._place = counts.to(device), place.to(device)
        # counts [N]: valid steps of every sequence; place [N]: its index on this rank, or -1

    @property
    def count(self) -> int:
        """N, over all ranks."""
        return len(self._counts)

    def whole(self) -> Chunks:
        """All own sequences in one batch."""
        return self.own.whole() if self.own.count else _blank(self._spare())

    def valid_steps(self, which: Tensor) -> Tensor:
        """Number of valid steps in the sequences ``which`` [M], of all ranks."""
        return self._counts[which.to(self._counts.device)].sum()

    def total(self, which: Tensor, name: str) -> Tensor:
        """The sum of ``data[name]`` over the steps of the sequences ``which`` [M], of all ranks."""
        return self.ranks.sum(self.own.total(self._mine(which), name))

    def take(self, which: Tensor) -> Chunks:
        """The own sequences among ``which`` [M].

        Without any, a sequence without valid steps: it adds 0 to every sum, and this rank makes the same
        calls as the others.
        """
        mine = self._mine(which)
        if len(mine):
            return self.own.take(mine)
        return _blank(self.own.take(torch.zeros_like(which[:1])) if self.own.count else self._spare())

    def _mine(self, which: Tensor) -> Tensor:
        places = self._place[which.to(self._place.device)]
        return places[places >= 0]


Sequences = Chunks | EpisodeSegments | SharedSequences


def make_sequences(rollout: Rollout, data: Data, config: LearnerConfig, ranks: Ranks = ALONE) -> Sequences:
    """The sequences of a rollout and its targets, by ``config.batching``; those of all ``ranks``."""
    if config.batching == "episodes":
        own = make_segments(rollout, data)
    else:
        own = make_chunks(rollout, config.chunk_length, data, config.burn_in_steps)
    if not isinstance(ranks, Group):
        return own
    return SharedSequences(own, ranks, lambda: make_chunks(rollout, rollout.steps, data))


def burn_in(policy: Policy, batch: Chunks) -> Chunks:
    """The batch with the states that its chunks have after their burn-in steps; as it is without any."""
    prefix = batch.prefix
    if prefix is None:
        return batch
    with torch.no_grad():
        *_, burnt = policy.unroll(prefix.obs, prefix.state, prefix.first)
    return replace(batch, state=tree.select(prefix.exists, burnt, batch.state))


def _blank(batch: Chunks) -> Chunks:
    """One column of a batch, without a valid step."""
    batch = batch.take(torch.zeros(1, dtype=torch.int64, device=batch.valid.device))
    data = {name: torch.zeros_like(value) for name, value in batch.data.items()}
    return replace(batch, valid=torch.zeros_like(batch.valid), data=data)
