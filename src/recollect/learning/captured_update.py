"""An update without host reads, for a GPU.

On a GPU a host read synchronises: the host waits for all earlier work, and the GPU then idles until the
next work arrives. So no number is read before the end of an update. Conditions that end an update early (a
gradient that is not finite, a KL above ``target_kl``, a minibatch that deviates from the record) set a flag
on the device, and Adam's kernel skips every optimiser step from then on. The weights are those of an eager
update; the host learns of the end when it reads the metrics, once per update.

Each optimiser step, from the loss to Adam, is one CUDA graph (``recollect.base.cuda_graphs``) on a minibatch
that is copied into the same tensors every time.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recollect.base import tree
from recollect.base.cuda_graphs import Captured
from recollect.experience.chunks import Chunks, minibatches
from recollect.experience.rollout import Rollout
from recollect.learning import diagnostics
from recollect.learning.algorithm import Stats
from recollect.learning.deviation_check import Record
from recollect.learning.sequences import Sequences

if TYPE_CHECKING:
    from recollect.learning.learner import Learner

BEFORE, ENDED, DEVIATED = "halted/before", "halted/here", "halted/deviated"
"""Whether the update had ended before a minibatch, whether it ended at it before its gradient was judged, and
whether because the minibatch deviates from the record."""

_FINITE, _STALE = "finite", "stale/"
"""Names of numbers that are read together with the metrics."""


@dataclass(slots=True)
class _Minibatch:
    """The tensors that minibatches of one size are copied into, and the optimiser step on them."""

    batch: Chunks
    step: Captured[Tensor]
    names: tuple[str, ...] = ()
    """Of the numbers that a step returns."""


class CapturedUpdate:
    """``EagerUpdate`` without a host read. Kept for all updates of a learner, with its graphs."""

    def __init__(self, learner: Learner):
        self._learner, device = learner, learner.device
        self._halted = torch.zeros((), device=device)
        """1 once the update has ended, else 0."""
        self._entropy_coef = torch.zeros((), device=device)
        self._limits = torch.zeros(len(learner.compared), device=device)
        """Largest deviations of the compared fields that the next minibatch may have."""
        self._units = torch.ones(len(learner.compared), device=device)
        """The units of the deviations."""
        self._minibatches: dict[int, _Minibatch] = {}
        self._rows: list[Tensor] = []
        self._given: Rollout | None = None
        self._record: Record | None = None
        self._taken: list[tuple[Chunks | None, Tensor]] = []
        """The chunks of every minibatch of this epoch (None in earlier epochs), and their numbers."""
        self._drawn = learner.generator.get_state()
        """The state of the learner's generator at the start of the update."""
        self._is_finite = torch.ones((), dtype=torch.bool, device=device)

    def validate(self, rollout: Rollout) -> Rollout:
        """The rollout, without a valid step if a number in it is not finite, so that no statistics change."""
        self._given, self._is_finite = rollout, diagnostics.rollout_is_finite(rollout)
        return replace(rollout, valid=rollout.valid & self._is_finite)

    def begin(self, metrics: Stats, entropy_coef: float, record: Record | None) -> None:
        """See ``EagerUpdate``."""
        self._rows, self._taken, self._record = [], [], record
        self._drawn = self._learner.generator.get_state()
        self._halted.copy_(~self._is_finite | (metrics["valid"] == 0))
        self._entropy_coef.fill_(entropy_coef)
        check = self._learner.deviation_check
        limits = itertools.repeat(torch.inf) if record is None else check.limits(record.update)
        for place, limit in zip(self._limits, limits):
            place.fill_(limit)
        for place, (name, field) in zip(self._units, self._learner.compared.items()):
            if field.unit is not None:
                place.fill_(field.unit)
                continue
            sizes = [metrics[size].abs().double() for size in diagnostics.size_names(name) if size in metrics]
            place.copy_(torch.stack(sizes).max().clamp(min=1))

    def epoch(self, sequences: Sequences) -> bool:
        """One pass over all sequences. Always true: only the device knows whether the update has ended."""
        assert isinstance(sequences, Chunks), "only chunks have one shape"
        learner = self._learner
        for which in minibatches(sequences.count, learner.config.minibatches, learner.generator):
            if self._taken and self._taken[-1][0] is not sequences:  # free the chunks of the epoch before
                self._taken = [(None, taken) for _, taken in self._taken]
            self._taken.append((sequences, which))
            row = self._put(sequences.take(which)).step()
            self._rows.append(row.clone())  # the next step overwrites it
            self._limits.fill_(torch.inf)
        return True

    def finish(self, metrics: Stats, stale: list[Tensor]) -> dict[str, float] | None:
        """All metrics as numbers. Synchronises once, and raises whatever ended the update by an error.

        None if no step was made, because of a deviation that rounding explains: all epochs must be repeated,
        with the learner's generator as it was before.
        """
        try:
            return self._read(metrics, stale)
        finally:
            self._given, self._record, self._taken = None, None, []

    def _read(self, metrics: Stats, stale: list[Tensor]) -> dict[str, float] | None:
        known = metrics | {f"{_STALE}{i}": value for i, value in enumerate(stale)}
        numbers, steps = self._fetched(known | {_FINITE: self._is_finite})
        stale = [torch.tensor(numbers.pop(name)) for name in known if name.startswith(_STALE)]
        if not numbers.pop(_FINITE) and self._given is not None:
            diagnostics.check_finite_rollout(self._given)
        diagnostics.check_valid(numbers)
        deviated = [bool(stats.pop(DEVIATED)) for stats in steps]
        if self._record is not None and any(deviated[:1]):
            which = self._taken[0][1]
            self._learner.deviation_check.settle(numbers | diagnostics.read(steps[0]), self._record, which)
            self._learner.generator.set_state(self._drawn)
            return None
        if not steps[-1].get("grad_norm", torch.zeros(())) < torch.inf:
            self._repeat(len(steps) - 1)
        made = diagnostics.summarise(
            steps, stale, self._learner.config.max_grad_norm, is_recorded=self._record is not None
        )
        return numbers | diagnostics.read(made)

    def _repeat(self, minibatch: int) -> None:
        """Recompute the gradient that ended the update, so that an error can name its parameter."""
        sequences, which = self._taken[minibatch]
        self._learner.optimizer.zero_grad()
        if sequences is not None:
            self._learner.backward(sequences.take(which), None, self._entropy_coef)
        self._minibatches = {}  # graphs hold gradient tensors of their own

    def _fetched(self, metrics: Stats) -> tuple[dict[str, float], list[Stats]]:
        """The metrics as numbers, and the statistics of each minibatch until the end, on the host."""
        names = next(iter(self._minibatches.values())).names
        numbers = diagnostics.stacked(metrics)
        everything = torch.cat([numbers, *(row.double() for row in self._rows)]).cpu()
        own, rows = everything[: len(numbers)].tolist(), everything[len(numbers) :].view(-1, len(names))
        steps: list[Stats] = []
        for row in rows:
            stats = dict(zip(names, row))
            if stats.pop(BEFORE):
                break
            if stats.pop(ENDED):  # before its gradient was judged
                del stats["grad_norm"]
            steps.append(stats)
        return dict(zip(metrics, own)), steps

    def _put(self, batch: Chunks) -> _Minibatch:
        """Copy a minibatch into the tensors of its optimiser step."""
        size = batch.count
        made = self._minibatches.get(size)
        if made is not None and _is_alike(made.batch, batch):
            tree.copy_(_tensors(made.batch), _tensors(batch))
            return made
        if made is not None:
            self._minibatches = {}  # all: other shapes come with other settings
        step, learner = partial(self._measured_step, size), self._learner
        made = _Minibatch(batch, learner.graphs.captured(step, "learning", learner.policy))
        self._minibatches[size] = made
        return made

    def _measured_step(self, size: int) -> Tensor:
        """An optimiser step on the minibatch of that size; its statistics as one tensor [N]."""
        made = self._minibatches[size]
        stats = self._step(made.batch)
        made.names = tuple(stats)
        return torch.stack([value.detach().float().reshape(()) for value in stats.values()])

    def _step(self, batch: Chunks) -> Stats:
        """One optimiser step, which changes nothing once the update has ended; the minibatch's statistics."""
        learner, config = self._learner, self._learner.config
        learner.optimizer.zero_grad()
        stats = learner.backward(batch, None, self._entropy_coef)
        before = self._halted.clone()
        is_right = torch.ones_like(before, dtype=torch.bool)
        if learner.compared:
            found = torch.stack([stats[f"{diagnostics.DEVIATION}{name}"] for name in learner.compared])
            found = found / self._units
            is_right = ((found <= self._limits) | self._limits.isinf()).all()  # false for NaN, if limited
        ends = before.bool() | ~is_right
        if config.target_kl is not None:
            ends = ends | (stats["kl"] > config.target_kl)
        norm = learner.optimizer.norm()
        stats |= {"grad_norm": norm}
        self._halted.copy_(ends | ~torch.isfinite(norm))
        learner.optimizer.clipped_step(norm, config.max_grad_norm, skip=self._halted)
        return stats | learner.clip_weights() | {BEFORE: before, ENDED: ends, DEVIATED: ~is_right}


def _tensors(batch: Chunks) -> tree.Tree:
    """All tensors of a minibatch as one tree."""
    prefix = batch.prefix
    parts = (batch.obs, batch.first, batch.action, batch.valid, batch.data, batch.state)
    return parts if prefix is None else (*parts, (prefix.obs, prefix.first, prefix.state, prefix.exists))


def _is_alike(a: Chunks, b: Chunks) -> bool:
    """Whether two minibatches have tensors of the same shapes and dtypes."""
    return (a.prefix is None) == (b.prefix is None) and tree.spec(_tensors(a), 0) == tree.spec(_tensors(b), 0)
