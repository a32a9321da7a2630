"""The learner: from a rollout to better weights, for any algorithm.

::

    rollout ─▶ targets (the algorithm's) ─▶ sequences ─▶ epochs of minibatches ─▶ weights
                                                         loss (the algorithm's)

``Learner.update`` is one update: targets, then ``epochs`` passes over the sequences of the rollout.
``Learner.backward`` computes the gradient of a minibatch: burn-in, the algorithm's loss, and the terms that
any algorithm can have. ``EagerUpdate`` makes the optimiser steps and reads every minibatch's statistics on
the host; ``CapturedUpdate`` (``captured_update``), for devices where a host read synchronises, reads nothing
before the last step.

Before the first optimiser step of an update the learner must reproduce what the actor recorded
(``recollect.learning.deviation_check``), unless the rollout lags (``lag`` > 0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from recollect.base import devices, tree
from recollect.base.cuda_graphs import Graphs
from recollect.config.algo_shared import LearnerConfig
from recollect.experience.chunks import Chunks, minibatches, shares
from recollect.experience.rollout import Rollout
from recollect.learning import auxiliary_loss, diagnostics
from recollect.learning.algorithm import Algorithm, Data, Stats, Targets
from recollect.learning.captured_update import CapturedUpdate
from recollect.learning.deviation_check import DeviationCheck, Record
from recollect.learning.optimiser import Adam, parameter_groups
from recollect.learning.ranks import ALONE, Group, Ranks, add_up, check_equal
from recollect.learning.recompute_activations import segments
from recollect.learning.refresh_rollout import refresh
from recollect.learning.regularise_weights import Origin
from recollect.learning.schedules import scheduled
from recollect.learning.sequences import Sequences, burn_in, make_sequences
from recollect.policy.head_contract import named_fields
from recollect.policy.policy import Policy


class Update(Protocol):
    """The optimiser steps of an update: ``validate``, ``begin``, ``epoch`` for each epoch, ``finish``."""

    def validate(self, rollout: Rollout) -> Rollout:
        """The rollout, of which no number that is not finite reaches the weights."""
        ...

    def begin(self, metrics: Stats, entropy_coef: float, record: Record | None) -> None:
        """Start with these metrics of the targets; ``record``: what the first minibatch must reproduce."""
        ...

    def epoch(self, sequences: Sequences) -> bool:
        """One pass over all sequences. False if the update is known to have ended in it."""
        ...

    def finish(self, metrics: Stats, stale: list[Tensor]) -> dict[str, float] | None:
        """These metrics, those of all minibatches and the stalenesses after each epoch, as numbers.

        None if no step was made, because of a deviation that rounding explains: all epochs must be repeated.
        """
        ...


class Learner:
    """Holds a policy, an algorithm and an optimiser; ``update`` turns a rollout into better weights."""

    def __init__(
        self,
        policy: Policy,
        algorithm: Algorithm,
        config: LearnerConfig,
        *,
        seed: int = 0,
        graphs: bool = False,
    ):
        """For the weights of ``policy``.

        Args:
            policy: the policy that learns, in place.
            algorithm: acting, targets and loss.
            config: the settings of the algorithm.
            seed: of the minibatches, and of the predictor's initial weights.
            graphs: whether CUDA graphs of optimiser steps are captured.
        """
        self.policy, self.algorithm, self.config = policy, algorithm, config
        self.predictor = auxiliary_loss.NextObs(policy, seed) if config.next_obs_coef > 0 else None
        """Predicts the next observation, if the config asks for it. Not part of the policy."""
        self._parameters = [parameter for _, parameter in self.named_parameters()]
        self.device = self._parameters[0].device
        self.optimizer = Adam(parameter_groups(policy, config, self.predictor), self._parameters)
        self.graphs = Graphs(self.device, is_on=graphs)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.updates = 0
        self.ranks: Ranks = ALONE
        """All learners that share the rows of a batch."""
        self.origin: Origin | None = None
        """The weights at the start of the training, if the config needs them; made by the first update."""
        fields = named_fields(policy.head, algorithm.acting(config).record)
        self.compared = {name: field for name, field in fields.items() if field.is_compared}
        """The fields of the record that every update must reproduce."""
        self.deviation_check = DeviationCheck(policy, config, self.compared)
        self._captured: CapturedUpdate | None = None
        self.is_complete = True
        """Whether the last ``load_learner`` restored everything."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All parameters: the policy's, and those of the predictor as ``next_obs.NAME``."""
        yield from self.policy.named_parameters()
        if self.predictor is not None:
            yield from self.predictor.named_parameters("next_obs")

    def update(self, rollout: Rollout, progress: float = 0.0, *, lag: int = 0) -> dict[str, float]:
        """One update from one rollout; returns its metrics.

        Args:
            rollout: T steps of B rows.
            progress: in [0, 1]; drives the schedules.
            lag: updates since the weights that acted, the maximum over all rows. With a lag the present
                weights cannot reproduce the record; ``DeviationCheck.check_late`` checks such rollouts.
        """
        with self.policy.computing():
            return self._update(rollout, progress, lag)

    def _update(self, rollout: Rollout, progress: float, lag: int) -> dict[str, float]:
        policy, update = self.policy, self.make_update()
        rollout = update.validate(rollout)
        if self.config.is_anchored and self.origin is None:
            self.origin = Origin(policy)
        entropy_coef = self.set_schedules(progress)
        rollout, data, metrics = self.targets(rollout, lag)
        metrics = self._with_ranges(rollout, metrics)
        record = Record(rollout, data, self.updates, self.ranks) if lag == 0 and self.compared else None
        if record is not None and not self.deviation_check.is_checked:
            # The whole rollout, before the very first step. Later updates check their first minibatch, a
            # random sample that the loss recomputes anyway.
            self.deviation_check.check_all(record, metrics)
        while True:  # at most twice: a deviation that rounding explains is accepted from then on
            update.begin(metrics, entropy_coef, record)
            last, sequences, stale = self._epochs(update, rollout, data)
            final = diagnostics.state_norms(last, self.ranks)
            if self.origin is not None:
                final["weights/distance"] = self.origin.squared_distance().sqrt()
            numbers = update.finish(metrics | final, stale)
            if numbers is not None:
                break
        if policy.obs_norm is not None:
            # Only now: the statistics are frozen for a rollout and its update.
            seen = tree.map(lambda leaf: leaf[: rollout.steps], rollout.obs)
            policy.obs_norm.update(seen, rollout.valid, self.ranks.each)
        diagnostics.check_valid(numbers)
        numbers.pop("valid", None)
        numbers["learning_rate"] = self.optimizer.rate
        numbers["entropy_coef"] = entropy_coef
        numbers["sequences"] = float(sequences.count)
        numbers["encoder_bits"] = float(policy.encoder_bits)
        diagnostics.check_gradient(numbers, self.named_parameters(), self.updates)
        check_equal(self.ranks, [*self._parameters, *policy.buffers()], self.updates)
        self.updates += 1
        return numbers

    def targets(self, rollout: Rollout, lag: int = 0) -> Targets:
        """The algorithm's targets of a new rollout, and those of the predictor. Updates value statistics."""
        found = self.algorithm.targets(self.policy, rollout, self.config, self.ranks, lag=lag)
        if self.predictor is None:
            return found
        data = found.data | self.predictor.targets(self.policy, rollout)
        return Targets(found.rollout, data, found.metrics)

    def _with_ranges(self, rollout: Rollout, metrics: Stats) -> Stats:
        """The metrics with those that the deviation check needs, if the algorithm has left them out."""
        is_read_later = devices.synchronises(self.device)
        has_valid = "valid" in metrics or not is_read_later
        scaled = [name for name, field in self.compared.items() if field.unit is None]
        if has_valid and all(f"{name}/max" in metrics for name in scaled):
            return metrics
        metrics = diagnostics.record_range(rollout, self.compared, self.ranks) | metrics
        if not is_read_later:
            diagnostics.check_valid(diagnostics.read(metrics))
        return metrics

    def sequences(self, rollout: Rollout, data: Data) -> Sequences:
        """The sequences of a rollout and its targets, of all ranks."""
        return make_sequences(rollout, data, self.config, self.ranks)

    def refresh(self, rollout: Rollout, data: Data) -> tuple[Rollout, Data]:
        """The rollout and its targets with states and advantages of the present weights, as configured."""
        fresh = refresh(self.policy, rollout)
        if self.config.recompute_advantages:
            again = self.algorithm.targets(self.policy, rollout, self.config, self.ranks, outputs=fresh)
            data = data | again.data
        if self.config.refresh_states:
            rollout = replace(rollout, states=fresh.states)
        return rollout, data

    def _epochs(
        self, update: Update, rollout: Rollout, data: Data
    ) -> tuple[Rollout, Sequences, list[Tensor]]:
        """All epochs. Returns the rollout and the sequences of the last one, and the stalenesses."""
        config, stale, every = self.config, [], self.config.gauge_every
        gauges = every > 0 and self.updates % every == 0 and self.policy.has_memory
        sequences = self.sequences(rollout, data)
        for epoch in range(config.epochs):
            if epoch > 0 and (config.refresh_states or config.recompute_advantages):
                rollout, data = self.refresh(rollout, data)
                sequences = self.sequences(rollout, data)
            finished = update.epoch(sequences)
            if gauges:
                stale.append(diagnostics.staleness(self.policy, rollout, ranks=self.ranks))
            if not finished:
                break
        return rollout, sequences, stale

    def make_update(self) -> Update:
        """A captured update where a host read synchronises, else an eager one.

        Eager also for episode segments, whose shapes differ from batch to batch, and for several learners,
        which synchronise with each other anyway.
        """
        is_one_shape = self.config.batching == "chunks" and not isinstance(self.ranks, Group)
        if not is_one_shape or not devices.synchronises(self.device):
            return EagerUpdate(self)
        self._captured = self._captured or CapturedUpdate(self)
        return self._captured

    def more_tensors(self) -> dict[str, Tensor]:
        """Tensors of a checkpoint beside those of every learner: none."""
        return {}

    def load_more(self, tensors: Mapping[str, Tensor]) -> None:
        """Do nothing: there are none."""

    def forget_graphs(self) -> None:
        """Drop all captured optimiser steps: the tensors of the optimiser are about to be replaced."""
        self._captured = None

    def backward(self, sequences: Sequences, which: Tensor | None, entropy_coef: float | Tensor) -> Stats:
        """Add the gradient of a minibatch to the parameters' gradients; returns the minibatch's statistics.

        The parts of a minibatch (``accumulate``) follow each other, so that only the activations of one are
        in memory. Each is divided by the valid steps of the whole minibatch on all ranks, so that they add
        up.

        Args:
            sequences: of the rollout.
            which: [M] numbers of the sequences in the minibatch; None: all, and ``sequences`` are chunks.
            entropy_coef: weight of the entropy bonus.
        """
        config = self.config
        is_all = which is None and config.accumulate == 1
        if which is None:
            which = torch.arange(sequences.count, device=self.device)
        count = sequences.valid_steps(which).clamp(min=1)
        known = None if self.predictor is None else sequences.total(which, auxiliary_loss.KNOWN).clamp(min=1)
        parts: list[Stats] = []
        recomputed = 0
        for part in shares(which, config.accumulate, sequences.sizes):
            batch = burn_in(self.policy, sequences.whole() if is_all else sequences.take(part))
            total, stats = self._loss(batch, entropy_coef, count, known)
            diagnostics.check_deviations(stats, self.compared)
            total.backward()
            parts.append(stats | {"unrolled": torch.full_like(total.detach(), batch.valid.numel())})
            recomputed += segments(len(batch.valid))
        stats = add_up(self.ranks, self._parameters, diagnostics.join(parts), diagnostics.DEVIATION)
        padding = stats["padding"] = 1 - count / stats.pop("unrolled")
        if config.accumulate > 1:
            stats["passes"] = torch.full_like(padding, len(parts))
        if config.recompute_activations:
            stats["recomputed"] = torch.full_like(padding, recomputed / len(parts))
        if config.l2_init > 0 and self.origin is not None:
            penalty = config.l2_init * self.origin.squared_distance()
            penalty.backward()
            stats["loss/l2_init"] = penalty.detach()
        return stats

    def _loss(
        self, batch: Chunks, entropy_coef: float | Tensor, count: Tensor, known: Tensor | None
    ) -> tuple[Tensor, Stats]:
        """The algorithm's loss, and the predictor's, a mean over the ``known`` steps of the minibatch."""
        given = (self.policy, batch, self.config, entropy_coef, count)
        if self.predictor is None or known is None:
            return self.algorithm.loss(*given)
        features: list[Tensor] = []
        total, stats = self.algorithm.loss(*given, features)
        error = self.predictor.loss(features[0], batch, known)
        return total + self.config.next_obs_coef * error, stats | {"loss/next_obs": error.detach()}

    def clip_weights(self) -> Stats:
        """Clip the weights after an optimiser step, if the config asks for it; the clipped share."""
        if self.config.weight_clip is None or self.origin is None:
            return {}
        return {"weights/clipped": self.origin.clip_(self.config.weight_clip)}

    def set_schedules(self, progress: float) -> float:
        """Set the learning rate of every group; return the entropy coefficient."""
        config = self.config
        rate = scheduled(
            config.learning_rate_end, config.learning_rate_schedule, progress, config.learning_rate_warmup
        )
        self.optimizer.set_rates(rate)
        return config.entropy * scheduled(
            config.entropy_end, config.entropy_schedule, progress, config.entropy_warmup
        )


class EagerUpdate:
    """The optimiser steps of an update: ``validate``, ``begin``, ``epoch`` for each epoch, ``finish``.

    Reads the statistics of every minibatch on the host, and ends the update as soon as they say so.
    """

    def __init__(self, learner: Learner):
        self._learner = learner
        self._steps: list[Stats] = []
        self._metrics: Stats = {}
        self._entropy_coef = 0.0
        self._record: Record | None = None

    def validate(self, rollout: Rollout) -> Rollout:
        """The rollout. Raises if a number in it is not finite."""
        diagnostics.check_finite_rollout(rollout)
        return rollout

    def begin(self, metrics: Stats, entropy_coef: float, record: Record | None) -> None:
        """Start with these metrics of the targets; ``record``: what the first minibatch must reproduce."""
        self._steps, self._metrics, self._entropy_coef, self._record = [], metrics, entropy_coef, record

    def epoch(self, sequences: Sequences) -> bool:
        """One pass over all sequences. False if the KL or a gradient that is not finite ended the update."""
        learner, config = self._learner, self._learner.config
        for which in minibatches(sequences.count, config.minibatches, learner.generator, sequences.sizes):
            learner.optimizer.zero_grad()
            stats = learner.backward(sequences, which, self._entropy_coef)
            if not self._steps and self._record is not None:
                learner.deviation_check.check(diagnostics.read(self._metrics | stats), self._record, which)
            self._steps.append(stats)
            if config.target_kl is not None and stats["kl"] > config.target_kl:
                return False
            norm = stats["grad_norm"] = learner.optimizer.norm()
            if not torch.isfinite(norm):  # before clipping, which would spread the NaN
                return False
            learner.optimizer.clipped_step(norm, config.max_grad_norm)
            stats |= learner.clip_weights()
        return True

    def finish(self, metrics: Stats, stale: list[Tensor]) -> dict[str, float]:
        """These metrics, those of all minibatches and the stalenesses after each epoch, as numbers."""
        made = diagnostics.summarise(
            self._steps, stale, self._learner.config.max_grad_norm, is_recorded=self._record is not None
        )
        return diagnostics.read(metrics | made)
