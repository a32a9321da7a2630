"""The optimiser steps of an update that nobody watches until it is over: for a GPU.

To look at a number there means to wait until everything before it is done, and then to leave the GPU idle
until the next work arrives. So nothing is looked at. What would end an update early (a gradient that is not
finite, a KL above ``target_kl``, a rollout that is not reproduced) is noted on the device instead, and from
then on every optimiser step is skipped there, inside of Adam's own kernel. The weights end up the same; the
host finds out when it reads the metrics, once an update.

Each step, from the loss to Adam, is one CUDA graph (``graphs``) over a minibatch that is copied to the same
place every time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from recollect.base import tree
from recollect.base.graphs import Captured
from recollect.experience.chunks import Chunks, minibatches
from recollect.experience.rollout import Rollout
from recollect.learning import diagnostics
from recollect.learning.eager import WatchedSteps
from recollect.learning.reproduction import Recorded

if TYPE_CHECKING:
    from recollect.learning.learner import Learner, Sequences, Stats

BEFORE, ENDED, DEVIATED = "halted/before", "halted/here", "halted/deviated"
"""Whether the update had ended before a minibatch, whether it ended in it before the gradient counted, and
whether because the minibatch deviates from what was recorded."""

_FINITE, _STALE = "finite", "stale/"
"""Names of what is read together with the metrics and is none."""


@dataclass(slots=True)
class _Minibatch:
    """Where minibatches of one size are put, and what learns from them."""

    batch: Chunks
    step: Captured[Tensor]
    names: tuple[str, ...] = ()
    """Of the numbers that a step returns."""


class UnreadSteps(WatchedSteps):
    """Looks at nothing before the update is over."""

    def __init__(self, learner: Learner[Any]):
        super().__init__(learner)
        device = learner.device
        self._halted = torch.zeros((), device=device)
        """1 once nothing more is to be learned from the rollout, else 0."""
        self._coefficient = torch.zeros((), device=device)
        """Of the entropy."""
        self._limits = torch.zeros(2, device=device)
        """How far log-probs and values of the next minibatch may be from the recorded ones."""
        self._scale = torch.ones((), device=device)
        """The size of the values, in which their deviation is measured."""
        self._minibatches: dict[int, _Minibatch] = {}
        self._rows: list[Tensor] = []
        self._given: Rollout | None = None
        self._taken: list[tuple[Chunks | None, Tensor]] = []
        """The chunks of every minibatch, while its epoch's are kept, and which of them it has."""
        self._drawn = learner.generator.get_state()
        """The state of the learner's generator when the update began."""
        self._is_finite = torch.ones((), dtype=torch.bool, device=device)

    def admit(self, rollout: Rollout) -> Rollout:
        """The rollout; one that is not finite as if no step of it were valid, so that no statistic moves."""
        self._given, self._is_finite = rollout, diagnostics.rollout_is_finite(rollout)
        return replace(rollout, valid=rollout.valid & self._is_finite)

    def check(self, deviation: Stats, metrics: Stats, recorded: Recorded) -> None:
        """Refuse a rollout that is not finite, or that the learner does not reproduce. Synchronises."""
        self._refuse(bool(self._is_finite))
        super().check(deviation, metrics, recorded)

    def begin(self, metrics: Stats, entropy_coef: float, recorded: Recorded | None) -> None:
        """A new update; see ``WatchedSteps``."""
        super().begin(metrics, entropy_coef, recorded)
        self._rows, self._taken = [], []
        self._drawn = self._learner.generator.get_state()
        self._halted.copy_(~self._is_finite | (metrics["valid"] == 0))
        self._coefficient.fill_(entropy_coef)
        self._limits.fill_(torch.inf)
        if recorded is not None:
            for i, limit in enumerate(self._learner.reproduction.limits):
                self._limits[i].fill_(limit)
        sizes = [metrics[name].abs().double() for name in diagnostics.SIZES if name in metrics]
        self._scale.copy_(torch.stack(sizes).max().clamp(min=1))

    def epoch(self, sequences: Sequences) -> bool:
        """One pass over all sequences. Always true: nobody knows yet how it ended."""
        assert isinstance(sequences, Chunks), "only chunks have one shape"
        learner = self._learner
        for which in minibatches(sequences.count, learner.config.minibatches, learner.generator):
            if self._taken and self._taken[-1][0] is not sequences:  # those of an epoch before: let them go
                self._taken = [(None, taken) for _, taken in self._taken]
            self._taken.append((sequences, which))
            row = self._put(sequences.take(which)).step()
            self._rows.append(row.clone())  # the next step writes to the same place
            self._limits.fill_(torch.inf)
        return True

    def read(self, metrics: Stats, stale: list[Tensor]) -> dict[str, float] | None:
        """All metrics as numbers, until the update ended. Synchronises once; raises what is wrong by then.

        None after a deviation that rounding explains, with the learner's generator as it was before.
        """
        try:
            return self._read(metrics, stale)
        finally:
            self._given, self._recorded, self._taken = None, None, []

    def _read(self, metrics: Stats, stale: list[Tensor]) -> dict[str, float] | None:
        known = metrics | {f"{_STALE}{i}": value for i, value in enumerate(stale)}
        numbers, steps = self._fetched(known | {_FINITE: self._is_finite})
        stale = [torch.tensor(numbers.pop(name)) for name in known if name.startswith(_STALE)]
        self._refuse(bool(numbers.pop(_FINITE)))
        diagnostics.check_valid(numbers)
        deviated = [bool(stats.pop(DEVIATED)) for stats in steps]
        if self._recorded is not None and any(deviated[:1]):
            which = self._taken[0][1]
            self._learner.reproduction.settle(numbers | diagnostics.read(steps[0]), self._recorded, which)
            self._learner.generator.set_state(self._drawn)
            return None
        if not steps[-1].get("grad_norm", torch.zeros(())) < torch.inf:
            self._repeat(len(steps) - 1)
        return numbers | diagnostics.read(self._summary(steps, stale))

    def _repeat(self, minibatch: int) -> None:
        """Compute once more the gradient that ended the update, by the weights that it left, to be named."""
        sequences, which = self._taken[minibatch]
        self._learner.optimizer.zero_grad(set_to_none=True)
        if sequences is not None:
            self._learner.backward(sequences.take(which), None, self._coefficient)
        self.forget()  # what was recorded has gradients of its own

    def _refuse(self, is_finite: bool) -> None:
        if not is_finite and self._given is not None:
            diagnostics.check_finite_rollout(self._given)

    def _fetched(self, metrics: Stats) -> tuple[dict[str, float], list[Stats]]:
        """The metrics as numbers, and what is known of each minibatch until the update ended, on the host."""
        names = next(iter(self._minibatches.values())).names
        numbers = diagnostics.stacked(metrics)
        everything = torch.cat([numbers, *(row.double() for row in self._rows)]).cpu()
        own, rows = everything[: len(numbers)].tolist(), everything[len(numbers) :].view(-1, len(names))
        steps: list[Stats] = []
        for row in rows:
            stats = dict(zip(names, row))
            if stats.pop(BEFORE):
                break
            if stats.pop(ENDED):  # it ended before the gradient was looked at
                del stats["grad_norm"]
            steps.append(stats)
        return dict(zip(metrics, own)), steps

    def forget(self) -> None:
        """Whatever was recorded is void: the optimiser's tensors are others now."""
        self._minibatches = {}

    def _put(self, batch: Chunks) -> _Minibatch:
        """Copy a minibatch to where its step finds it."""
        size = batch.count
        made = self._minibatches.get(size)
        if made is not None and not _is_alike(made.batch, batch):
            self.forget()  # all: other shapes come with other settings
            made = None
        if made is not None:
            tree.copy_(_tensors(made.batch), _tensors(batch))
            return made
        step = self._learner.graphs.captured(self._stepper(size), "learning", self._learner.policy)
        self._minibatches[size] = _Minibatch(batch, step)
        return self._minibatches[size]

    def _stepper(self, size: int) -> Callable[[], Tensor]:
        """A step on the minibatch of that size."""

        def step() -> Tensor:
            made = self._minibatches[size]
            stats = self._step(made.batch)
            made.names = tuple(stats)
            return torch.stack([value.detach().float().reshape(()) for value in stats.values()])

        return step

    def _step(self, batch: Chunks) -> Stats:
        """One optimiser step, unless the update has ended or ends here; what is known of the minibatch."""
        learner, config = self._learner, self._learner.config
        learner.optimizer.zero_grad(set_to_none=True)
        stats = learner.backward(batch, None, self._coefficient)
        before = self._halted.clone()
        log_prob, value = (stats[f"{diagnostics.DEVIATION}{name}"] for name in ("log_prob", "value"))
        found = torch.stack([log_prob, value / self._scale])
        is_right = (
            (found <= self._limits) | self._limits.isinf()
        ).all()  # NaN is not, where there are limits
        ends = before.bool() | ~is_right
        if config.target_kl is not None:
            ends = ends | (stats["kl"] > config.target_kl)
        norm = learner.optimizer.norm()
        stats |= {"grad_norm": norm}
        self._halted.copy_(ends | ~torch.isfinite(norm))
        learner.optimizer.clipped_step(norm, config.max_grad_norm, skip=self._halted)
        if config.weight_clip is not None and learner.origin is not None:
            stats["weights/clipped"] = learner.origin.clip_(config.weight_clip)
        return stats | {BEFORE: before, ENDED: ends, DEVIATED: ~is_right}


def _tensors(batch: Chunks) -> tree.Tree:
    """All of a minibatch as one tree."""
    prefix = batch.prefix
    parts = (batch.obs, batch.first, batch.action, batch.valid, batch.data, batch.state)
    return parts if prefix is None else (*parts, (prefix.obs, prefix.first, prefix.state, prefix.exists))


def _is_alike(a: Chunks, b: Chunks) -> bool:
    """Whether one fits into the place of the other."""
    return (a.prefix is None) == (b.prefix is None) and tree.spec(_tensors(a), 0) == tree.spec(_tensors(b), 0)
