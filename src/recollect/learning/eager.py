"""The optimiser steps of an update, with an eye on every number.

Where to look at one would mean to wait for a GPU, ``algos.unread`` makes them without a look. Both are the
same to the learner: ``admit`` the rollout, ``begin``, an ``epoch`` after the other, ``read``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from recollect.experience.chunks import minibatches
from recollect.experience.rollout import Rollout
from recollect.learning import diagnostics
from recollect.learning.reproduction import Recorded

if TYPE_CHECKING:
    from recollect.learning.learner import Learner, Sequences, Stats


class WatchedSteps:
    """Looks at every minibatch, and ends an update as soon as there is reason to."""

    def __init__(self, learner: Learner[Any]):
        self._learner = learner
        self._steps: list[Stats] = []
        self._entropy_coef = 0.0
        self._metrics: Stats = {}
        self._recorded: Recorded | None = None

    def admit(self, rollout: Rollout) -> Rollout:
        """The rollout, which is refused if something in it is not finite."""
        diagnostics.check_finite_rollout(rollout)
        return rollout

    def check(self, deviation: Stats, metrics: Stats, recorded: Recorded) -> None:
        """Refuse a ``deviation`` of the whole rollout that rounding does not explain."""
        self._learner.reproduction.check(diagnostics.read(metrics | deviation), recorded)

    def begin(self, metrics: Stats, entropy_coef: float, recorded: Recorded | None) -> None:
        """A new update.

        Args:
            metrics: of the rollout.
            entropy_coef: for all minibatches.
            recorded: what the first minibatch must reproduce; None: nothing.
        """
        self._steps, self._entropy_coef = [], entropy_coef
        self._metrics, self._recorded = metrics, recorded

    def epoch(self, sequences: Sequences) -> bool:
        """One pass over all sequences. False if the KL, or a gradient that is not finite, ended it."""
        learner, config = self._learner, self._learner.config
        for which in minibatches(sequences.count, config.minibatches, learner.generator, sequences.sizes):
            learner.optimizer.zero_grad(set_to_none=True)
            stats = learner.backward(sequences, which, self._entropy_coef)
            if not self._steps and self._recorded is not None:
                learner.reproduction.check(diagnostics.read(self._metrics | stats), self._recorded, which)
            self._steps.append(stats)
            if config.target_kl is not None and stats["kl"] > config.target_kl:
                return False
            norm = stats["grad_norm"] = learner.optimizer.norm()
            if not torch.isfinite(norm):  # before clipping, which would spread the NaN
                return False
            learner.optimizer.clipped_step(norm, config.max_grad_norm)
            if config.weight_clip is not None and learner.origin is not None:
                stats["weights/clipped"] = learner.origin.clip_(config.weight_clip)
        return True

    def read(self, metrics: Stats, stale: list[Tensor]) -> dict[str, float] | None:
        """All metrics as numbers: the given ones, and those of the minibatches and of stale states.

        None: no step was made, because of a deviation that rounding explains. Make all epochs once more.
        """
        return diagnostics.read(metrics | self._summary(self._steps, stale))

    def _summary(self, steps: list[Stats], stale: list[Tensor]) -> Stats:
        # With a lag, what the loss found is how far the weights moved on, not how true the rollout is.
        known = (
            steps if self._recorded is not None else [diagnostics.without_deviation(stats) for stats in steps]
        )
        return diagnostics.summarise(known, stale, self._learner.config.max_grad_norm)
