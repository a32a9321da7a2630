"""The interface between the learner and an algorithm: ``acting``, ``targets``, ``loss``."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from recollect.experience.chunks import Chunks
from recollect.experience.rollout import Acting, Rollout
from recollect.learning.ranks import Ranks
from recollect.learning.refresh_rollout import Outputs
from recollect.policy.policy import Policy

Stats = dict[str, Tensor]
"""Scalars on the device by the names of metrics."""
Data = dict[str, Tensor]
"""Tensors [T, B] by name."""


class Targets(NamedTuple):
    """The data of an update: the rollout and its targets."""

    rollout: Rollout
    """The given rollout, or a copy with refreshed states."""
    data: Data
    """Tensors for the loss, which gets them as ``batch.data`` beside what actors recorded."""
    metrics: Stats
    """Numbers to report. The learner adds the range of recorded fields that the deviation check needs."""


class Algorithm(Protocol):
    """A module such as ``recollect.algos.ppo``, or any object with these three functions.

    ``config`` is the algorithm's own config, a subclass of ``LearnerConfig``.
    """

    def acting(self, config: Any) -> Acting:
        """The parts of a rollout that actors must record."""
        ...

    def targets(
        self,
        policy: Policy,
        rollout: Rollout,
        config: Any,
        ranks: Ranks,
        *,
        lag: int = 0,
        outputs: Outputs | None = None,
    ) -> Targets:
        """Targets of a rollout.

        Args:
            policy: with the weights at the start of the update.
            rollout: T steps of the rows of this rank.
            config: the settings.
            ranks: all learners of the batch, for statistics over all of its rows.
            lag: updates between the weights that acted and those of ``policy``.
            outputs: those of ``policy`` for the rollout, if targets are recomputed between two epochs. Then
                no statistics change. None: the rollout is new.
        """
        ...

    def loss(
        self,
        policy: Policy,
        batch: Chunks,
        config: Any,
        entropy_coef: float | Tensor,
        count: Tensor,
        features: list[Tensor] | None = None,
    ) -> tuple[Tensor, Stats]:
        """The loss of a batch and its statistics; sums are divided by ``count``, the number of valid steps.

        Statistics add up over the parts of a minibatch. Those of ``diagnostics.deviation`` must be among
        them, for every field of the record that the head declares as compared, and ``kl`` for the setting
        ``target_kl``. If ``features`` is given, the inputs of the heads,
        [L, N, D], are appended to it.
        """
        ...
