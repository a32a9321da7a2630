"""What all learners share: from a rollout to better weights, whatever the algorithm.

::

    rollout ─▶ targets (the algorithm's) ─▶ sequences ─▶ epochs of minibatches ─▶ weights
                                                         loss (the algorithm's)

Shared are the optimiser and its schedules, minibatches and their parts, burn-in, clipping, the
regularisers, the prediction of the next observation, and the checks: before the first step of an update
the learner must reproduce what the actor recorded. With weights that moved on since (``lag`` > 0) it
cannot; then only a copy of the weights that acted can tell, where one is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from recollect.base import devices, tree
from recollect.base.graphs import Graphs
from recollect.config.learner import LearnerConfig
from recollect.experience.episode_segments import Pieces, make_pieces
from recollect.experience.rollout import Chunks, Rollout, make_chunks, shares
from recollect.learning import auxiliary, diagnostics, recompute
from recollect.learning.captured import UnreadSteps
from recollect.learning.eager import WatchedSteps
from recollect.learning.optimiser import Adam, parameter_groups
from recollect.learning.ranks import ALONE, Group, Ranks, add_up, check_equal
from recollect.learning.refresh import Refreshed, refresh
from recollect.learning.regularise import Origin
from recollect.learning.reproduction import Recorded, Reproduction
from recollect.learning.schedules import scheduled
from recollect.learning.shards import SharedSequences
from recollect.policy.policy import Policy

Stats = dict[str, Tensor]
Data = dict[str, Tensor]
Sequences = Chunks | Pieces | SharedSequences
Config = TypeVar("Config", bound=LearnerConfig)


class Learner(ABC, Generic[Config]):
    """``update`` turns a rollout into better weights. An algorithm brings its targets and its loss."""

    def __init__(self, policy: Policy, config: Config, *, seed: int = 0):
        self.policy, self.config = policy, config
        self.predictor = auxiliary.NextObs(policy, seed) if config.next_obs_coef > 0 else None
        """What predicts the next observation, if the config asks for that. No part of the policy."""
        self._parameters = [parameter for _, parameter in self.named_parameters()]
        self.device = self._parameters[0].device
        self.optimizer = Adam(parameter_groups(policy, config, self.predictor), self._parameters)
        self.graphs = Graphs(self.device, is_on=False)
        """Records optimiser steps; set by whoever wants that."""
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.updates = 0
        self.ranks: Ranks = ALONE
        """The learners that share the rows of a batch, this one among them."""
        self.origin: Origin | None = None
        """The weights that the training began with, once it has begun, if the config needs them."""
        self.reproduction = Reproduction(self)
        """The check that it reproduces what was recorded."""
        self._unread: UnreadSteps | None = None
        """Makes the optimiser steps where to look at numbers would mean to wait."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All that is learned: the policy's, and those of the predictor as ``next_obs.NAME``."""
        yield from self.policy.named_parameters()
        if self.predictor is not None:
            yield from self.predictor.named_parameters("next_obs")

    @abstractmethod
    def _prepare(self, rollout: Rollout, lag: int) -> tuple[Rollout, Data, Stats]:
        """The rollout to learn from, its targets [T, B] by name, and their metrics.

        Moves the value statistics. ``lag``: updates since the weights that acted.
        """

    @abstractmethod
    def _estimate(self, rollout: Rollout, made: Refreshed) -> tuple[Tensor, Tensor]:
        """Advantages and returns [T, B], given what some weights, ``made``, say of the rollout."""

    @abstractmethod
    def _objective(
        self, batch: Chunks, entropy_coef: float | Tensor, count: Tensor, features: list[Tensor] | None = None
    ) -> tuple[Tensor, Stats]:
        """The loss of a batch whose sums are divided by ``count``, and what is worth knowing of it.

        What the heads saw, [L, N, D], is added to ``features`` if that is given.
        """

    def update(self, rollout: Rollout, progress: float = 0.0, *, lag: int = 0) -> dict[str, float]:
        """One iteration on one rollout.

        Args:
            rollout: T steps of B rows.
            progress: in [0, 1]; drives the schedules.
            lag: updates since the weights that acted, the most of any row. A rollout that lags is not
                checked here, because the present weights do not reproduce it: see ``check``.
        """
        with self.policy.computing():
            return self._update(rollout, progress, lag)

    def _update(self, rollout: Rollout, progress: float, lag: int) -> dict[str, float]:
        config, policy, steps = self.config, self.policy, self._steps()
        rollout = steps.admit(rollout)
        if config.is_anchored and self.origin is None:
            self.origin = Origin(policy)
        entropy_coef = self._schedule(progress)
        rollout, data, metrics = self._prepare(rollout, lag)
        recorded = Recorded(rollout, data) if lag == 0 else None
        if recorded is not None and not self.reproduction.is_checked:
            # Everything, before the first step of all. Later updates look at their first minibatch, a
            # random sample that the loss recomputes anyway.
            steps.check(self.reproduction.deviation(recorded), metrics, recorded)
            self.reproduction.is_checked = True
        while True:  # at most twice: what a replay has explained is accepted from then on
            steps.begin(metrics, entropy_coef, recorded)
            last, sequences, stale = self._epochs(steps, rollout, data)
            numbers = steps.read(metrics | self._final_metrics(last), stale)
            if numbers is not None:
                break
        if policy.obs_norm is not None:
            # Only now: the statistics are frozen for a rollout and its update.
            seen = tree.map(lambda leaf: leaf[: rollout.steps], rollout.obs)
            policy.obs_norm.update(seen, rollout.valid, self.ranks)
        diagnostics.check_valid(numbers)
        numbers.pop("valid", None)
        numbers["learning_rate"] = self.optimizer.rate
        numbers["entropy_coef"] = entropy_coef
        numbers["sequences"] = float(sequences.count)
        numbers["encoder_bits"] = float(policy.encoder_bits)
        diagnostics.check_gradient(numbers, self, self.updates)
        check_equal(self.ranks, [*self._parameters, *policy.buffers()], self.updates)
        self.updates += 1
        return numbers

    def _epochs(
        self, steps: WatchedSteps, rollout: Rollout, data: Data
    ) -> tuple[Rollout, Sequences, list[Tensor]]:
        """All passes over a rollout. Returns it and its sequences as of the last one, and the stalenesses."""
        config, stale = self.config, []
        sequences = self._sequences(rollout, data)
        for epoch in range(config.epochs):
            if epoch > 0 and (config.refresh_states or config.recompute_advantages):
                rollout, data = self._refresh(rollout, data)
                sequences = self._sequences(rollout, data)
            finished = steps.epoch(sequences)
            if self._is_gauged:
                stale.append(diagnostics.staleness(self.policy, rollout, ranks=self.ranks))
            if not finished:
                break
        return rollout, sequences, stale

    def _final_metrics(self, rollout: Rollout) -> Stats:
        """What is measured when all passes are made."""
        metrics = diagnostics.state_norms(rollout, self.ranks)
        if self.origin is not None:
            metrics["weights/distance"] = self.origin.squared_distance().sqrt()
        return metrics

    def _steps(self) -> WatchedSteps:
        """Who makes the optimiser steps: without a look where that would mean to wait.

        Pieces of episodes have as many shapes as there are episodes, and several learners wait for each
        other anyway: both are looked at.
        """
        is_one_shape = self.config.batching == "chunks" and not isinstance(self.ranks, Group)
        if not (is_one_shape and devices.synchronises(self.device)):
            return WatchedSteps(self)
        if self._unread is None:
            self._unread = UnreadSteps(self)
        return self._unread

    def forget_graphs(self) -> None:
        """Whatever was recorded of the optimiser steps is void, as the optimiser's tensors are others now."""
        if self._unread is not None:
            self._unread.forget()

    def backward(self, sequences: Sequences, which: Tensor | None, entropy_coef: float | Tensor) -> Stats:
        """Add the gradient of the minibatch ``which`` to that of the parameters; what is known of all of it.

        ``which``: numbers of sequences; None: all of ``sequences``, which then are chunks.

        Part after part, so that the activations of one part at a time are alive. Every part is divided by
        the valid steps of the whole minibatch, on all ranks: then their sum is its mean.
        """
        config = self.config
        is_all = which is None and config.accumulate == 1
        if which is None:
            which = torch.arange(sequences.count, device=self.device)
        count = sequences.valid_steps(which).clamp(min=1)
        known = None if self.predictor is None else sequences.total(which, auxiliary.KNOWN).clamp(min=1)
        parts: list[Stats] = []
        pieces = 0
        for part in shares(which, config.accumulate, sequences.sizes):
            batch = self._burn_in(sequences.whole() if is_all else sequences.take(part))
            total, stats = self._loss(batch, entropy_coef, count, known)
            total.backward()
            parts.append(stats | {"unrolled": torch.full_like(stats["kl"], batch.valid.numel())})
            pieces += recompute.pieces(len(batch.valid))
        stats = add_up(self.ranks, self._parameters, diagnostics.join(parts), diagnostics.DEVIATION)
        stats["padding"] = 1 - count / stats.pop("unrolled")
        if config.accumulate > 1:
            stats["passes"] = torch.full_like(stats["kl"], len(parts))
        if config.recompute_activations:
            stats["recomputed"] = torch.full_like(stats["kl"], pieces / len(parts))
        if config.l2_init > 0 and self.origin is not None:
            penalty = config.l2_init * self.origin.squared_distance()
            penalty.backward()
            stats["loss/l2_init"] = penalty.detach()
        return stats

    def _loss(
        self, batch: Chunks, entropy_coef: float | Tensor, count: Tensor, known: Tensor | None
    ) -> tuple[Tensor, Stats]:
        """The algorithm's loss, and that of the next observations: the minibatch has ``known`` of them."""
        if self.predictor is None or known is None:
            return self._objective(batch, entropy_coef, count)
        features: list[Tensor] = []
        total, stats = self._objective(batch, entropy_coef, count, features)
        error = self.predictor.loss(features[0], batch, known)
        return total + self.config.next_obs_coef * error, stats | {"loss/next_obs": error.detach()}

    def _described(self, rollout: Rollout, advantage: Tensor, returns: Tensor) -> tuple[Data, Stats]:
        """The targets of a fresh rollout as data, and their metrics; moves the value statistics."""
        policy, value = self.policy, rollout.record["value"]
        metrics = diagnostics.describe(rollout, advantage, returns, self.ranks)
        if policy.value_norm is not None:
            valid, targets = self.ranks.gather(rollout.valid, returns)
            scale, shift = policy.value_norm.update(targets, policy.critic, valid)
            value = value * scale + shift
            metrics["value_scale"] = policy.value_norm.std.clone()
        data = self._data(rollout, advantage, returns) | {"value": value}
        if self.predictor is not None:
            data |= self.predictor.targets(policy, rollout)
        return data, metrics

    def _data(self, rollout: Rollout, advantage: Tensor, returns: Tensor) -> Data:
        if self.config.normalise_advantages:
            advantage = normalise(advantage, rollout.valid, self.ranks)
        return {"advantage": advantage, "return": returns}

    def _retarget(self, rollout: Rollout, fresh: Refreshed) -> Data:
        """Those targets that follow from the weights, under the current ones."""
        return self._data(rollout, *self._estimate(rollout, fresh))

    def _reward(self, rollout: Rollout) -> Tensor:
        """What is learned from, [T, B]: scaled and clipped as the config says."""
        config = self.config
        reward = rollout.reward * config.reward_scale
        if config.reward_clip is not None:
            reward = reward.clamp(-config.reward_clip, config.reward_clip)
        return reward

    def _refresh(self, rollout: Rollout, data: Data) -> tuple[Rollout, Data]:
        """The rollout and its targets under the current weights, as far as the config asks."""
        fresh = refresh(self.policy, rollout)
        if self.config.recompute_advantages:
            data = data | self._retarget(rollout, fresh)
        if self.config.refresh_states:
            rollout = replace(rollout, states=fresh.states)
        return rollout, data

    def _sequences(self, rollout: Rollout, data: Data) -> Sequences:
        """What minibatches are drawn over: the sequences of all ranks."""
        own = self._own_sequences(rollout, data)
        if not isinstance(self.ranks, Group):
            return own
        return SharedSequences(own, self.ranks, lambda: make_chunks(rollout, rollout.steps, data))

    def _own_sequences(self, rollout: Rollout, data: Data) -> Chunks | Pieces:
        config = self.config
        if config.batching == "episodes":
            return make_pieces(rollout, data)
        return make_chunks(rollout, config.chunk_length, data, config.burn_in_steps)

    def _cut(self, rollout: Rollout, data: Data) -> Chunks:
        """All of a rollout in one batch."""
        return self._own_sequences(rollout, data).whole()

    def _burn_in(self, batch: Chunks, policy: Policy | None = None) -> Chunks:
        """The batch with the states that its chunks start from after their burn-in, if there is one.

        ``policy``: whose memory is burnt in; the learner's if None.
        """
        prefix, policy = batch.prefix, policy or self.policy
        if prefix is None:
            return batch
        with torch.no_grad():
            _, _, burnt = policy.unroll(prefix.obs, prefix.state, prefix.first)
        return replace(batch, state=tree.select(prefix.exists, burnt, batch.state))

    def _schedule(self, progress: float) -> float:
        """Set the learning rate of every group; return the entropy coefficient."""
        config = self.config
        rate = scheduled(
            config.learning_rate_end, config.learning_rate_schedule, progress, config.learning_rate_warmup
        )
        self.optimizer.set_rates(rate)
        return config.entropy * scheduled(
            config.entropy_end, config.entropy_schedule, progress, config.entropy_warmup
        )

    @property
    def _is_gauged(self) -> bool:
        every = self.config.gauge_every
        return every > 0 and self.updates % every == 0 and self.policy.has_memory


def squared_error(
    value: Tensor, data: Data, scale: Tensor | float, value_clip: float | None = None
) -> Tensor:
    """((V - R) / sigma)^2, the larger of the plain and the clipped one if ``value_clip`` is set."""
    error = ((value - data["return"]) / scale).square()
    if value_clip is None:
        return error
    moved = ((value - data["value"]) / scale).clamp(-value_clip, value_clip)
    return torch.maximum(error, ((data["value"] - data["return"]) / scale + moved).square())


def normalise(advantage: Tensor, valid: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Mean 0 and spread 1 over the valid steps [T, B] of all ranks; 0 where invalid, or if all are equal."""
    advantage, valid = ranks.gather(advantage, valid)
    count = valid.sum().clamp(min=1)
    mean = advantage.masked_fill(~valid, 0).sum() / count
    centred = (advantage - mean).masked_fill(~valid, 0)
    std = (centred.square().sum() / count).sqrt()
    return ranks.own(centred / (std + 1e-8))
