"""The learner of algorithms that replay old steps, such as R2D2 and IQN.

::

    rollout ─▶ deviation check ─▶ replay ─▶ minibatches of sequences ─▶ loss (the algorithm's) ─▶ weights
                                     ▲                                             │
                                     └──────────────── priorities ─────────────────┘

``ReplayLearner.update`` adds one rollout to the replay and makes as many optimiser steps as ``replay_ratio``
asks for. Trainer and runtimes use it like a ``Learner``. It also owns what acting reads from the weights:
``epsilon`` of the head, which follows the schedule, and the noise of noisy layers, drawn once per rollout.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from recollect.base import spaces, tree
from recollect.base.cuda_graphs import Graphs
from recollect.config.algo_shared import LearnerConfig
from recollect.config.replay import STORED, ReplayConfig
from recollect.errors import ConfigError
from recollect.experience.replay import Replay, Sample
from recollect.experience.rollout import Rollout
from recollect.learning import diagnostics
from recollect.learning.actor_critic import scaled
from recollect.learning.algorithm import Stats
from recollect.learning.constant_batch import ConstantBatch
from recollect.learning.deviation_check import DeviationCheck, Record
from recollect.learning.optimiser import Adam
from recollect.learning.ranks import ALONE
from recollect.learning.replay_algorithm import ReplayAlgorithm, windows
from recollect.learning.schedules import scheduled
from recollect.learning.value_functions import mixed_priority
from recollect.policy.head_contract import named_fields
from recollect.policy.policy import Policy
from recollect.policy.q_heads import QHead

OWN = "replay_learner:"
"""Begins the names of a learner's own tensors in a checkpoint."""


class ReplayLearner:
    """Holds a policy, its target network, an algorithm, an optimiser and the replay."""

    def __init__(
        self, policy: Policy, algorithm: ReplayAlgorithm, config: ReplayConfig, *, seed: int, rows: int
    ):
        """For the weights of ``policy``, which acts in ``rows`` rows."""
        self.policy, self.algorithm, self.config, self.rows = policy, algorithm, config, rows
        self.device = policy.device
        self.target = copy.deepcopy(policy).requires_grad_(False)
        self.target.obs_norm = policy.obs_norm  # the same statistics: inputs mean the same to both
        self._parameters = list(policy.parameters())
        rate = config.learning_rate
        group = {"params": self._parameters, "lr": rate, "base_lr": rate, "rate": rate, "name": "all"}
        self.optimizer = Adam([group], self._parameters)
        self.graphs = Graphs(self.device, is_on=False)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        """Of the replayed sequences, of fractions and of noise."""
        self.updates = 0
        self.gradient_steps = 0
        self.ranks, self.origin = ALONE, None
        self.is_complete = True
        """Whether the last ``load_more`` found a replay, or there was none to find."""
        fields = named_fields(policy.head, algorithm.acting(config).record)
        self.compared = {name: field for name, field in fields.items() if field.is_compared}
        whole = LearnerConfig(
            rollout=config.rollout,
            chunk=config.rollout,
            minibatches=1,
            tolerance=config.tolerance,
        )
        self.deviation_check = DeviationCheck(policy, whole, self.compared)
        self.constant = ConstantBatch()
        self._constants: Stats = {}
        """What was constant in the first minibatch of this update."""
        self._owed = 0.0
        """Steps to learn from that the steps collected so far have earned."""
        self.head.epsilon.fill_(config.epsilon)

    @cached_property
    def replay(self) -> Replay:
        """The replay, allocated when it is first needed: learner processes have their own."""
        return make_replay(self.policy, self.config, self.rows)

    @property
    def head(self) -> QHead:
        """The head of the policy."""
        return cast(QHead, self.policy.head)

    @property
    def _is_due(self) -> bool:
        """Whether this update is checked and measured."""
        every = self.config.gauge_every
        return self.updates < 2 or (every > 0 and self.updates % every == 0)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All parameters that learn."""
        return self.policy.named_parameters()

    def forget_graphs(self) -> None:
        """Do nothing: optimiser steps are not captured."""

    def update(self, rollout: Rollout, progress: float = 0.0, *, lag: int = 0) -> dict[str, float]:
        """Add one rollout to the replay and learn; arguments as in ``Learner.update``."""
        with self.policy.computing():
            return self._update(rollout, progress, lag)

    def _update(self, rollout: Rollout, progress: float, lag: int) -> dict[str, float]:
        config = self.config
        diagnostics.check_finite_rollout(rollout)
        metrics = self._check(rollout, lag)
        add(self.replay, rollout)
        share = scheduled(
            config.learning_rate_end,
            config.learning_rate_schedule,
            progress,
            config.learning_rate_warmup,
        )
        self.optimizer.set_rates(share)
        steps = self._learn(rollout.valid_steps)
        if self.policy.obs_norm is not None:
            # Only now: the statistics are frozen for a rollout and its update.
            seen = tree.map(lambda leaf: leaf[: rollout.steps], rollout.obs)
            self.policy.obs_norm.update(seen, rollout.valid, self.ranks.each)
        metrics |= {"epsilon": float(self.head.epsilon), "learning_rate": self.optimizer.rate}
        self.head.epsilon.fill_(epsilon(config, progress))
        if self.head.config.noisy:
            self.head.draw_noise(self.generator)
        metrics |= self._described(steps, rollout.valid_steps)
        if steps and self._is_due and self.config.states == STORED and self.policy.has_memory:
            metrics["replay/staleness"] = float(
                staleness(self.policy, self.replay, self.updates, config.state_distance)
            )
        self.updates += 1
        return metrics

    def _check(self, rollout: Rollout, lag: int) -> dict[str, float]:
        """The range of the recorded values; now and then how far they deviate from recomputed ones."""
        found = diagnostics.record_range(rollout, self.compared)
        record, is_checked = Record(rollout, {}, self.updates), lag == 0 and self._is_due
        if is_checked and self.compared:
            found |= self.deviation_check.deviation(record)
        numbers = diagnostics.read(found)
        diagnostics.check_valid(numbers)
        if is_checked and self.compared:
            self.deviation_check.check(numbers, record)
        numbers.pop("valid")
        return numbers | diagnostics.read(diagnostics.moments("reward", rollout.reward, rollout.valid))

    def _learn(self, collected: int) -> list[Stats]:
        """The optimiser steps that are due after so many more steps; the statistics of each."""
        config, found = self.config, []
        # Steps ever stored: those in memory may never be so many, beside final observations.
        if int(self.replay.seen.sum()) < config.replay_warmup or not self.replay.windows:
            return found
        self._owed += config.replay_ratio * collected
        while self._owed >= config.batch * config.chunk:
            self._owed -= config.batch * config.chunk
            found.append(self.step())
        return found

    def step(self) -> Stats:
        """One optimiser step from a minibatch of the replay; its statistics."""
        config, policy, generator = self.config, self.policy, self.generator
        sample = self.replay.sample(config.batch, generator)
        self._constants = self._constants or self.constant.find(sample)
        if self.head.config.noisy:
            self.head.draw_noise(generator)
            cast(QHead, self.target.head).draw_noise(generator)
        sample.reward = scaled(sample.reward, config)
        weight = importance(sample, config.importance_exponent)
        batch = windows(policy, self.target, sample, config, weight=weight)
        self.optimizer.zero_grad()
        total, error, stats = self.algorithm.loss(policy, self.target, batch, config, generator)
        total.backward()
        norm = self.optimizer.norm()
        learned = batch.learned
        stats |= {"loss/q": total.detach(), "grad_norm": norm, "replay/learned": learned.sum()}
        if not torch.isfinite(norm):
            numbers = diagnostics.read(stats | {"grad_norm_max": norm, "minibatches": norm.new_zeros(())})
            diagnostics.check_gradient(numbers, self.named_parameters(), self.updates)
        self.optimizer.clipped_step(norm, config.max_grad_norm)
        priority = mixed_priority(error=error, is_step=learned, eta=config.priority_eta)
        if config.priority_exponent > 0:
            self.replay.update(sample.entries, priority)
        stats["td_error"] = diagnostics.masked_mean(error, learned)
        stats["replay/age"] = sample.age.double().mean()
        stats["replay/priority_spread"] = priority.std(correction=0) / priority.mean().clamp(min=1e-12)
        self.gradient_steps += 1
        self._follow()
        return stats

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the target network as configured, after an optimiser step."""
        config = self.config
        share = config.target_rate or float(self.gradient_steps % (config.target_every or 1) == 0)
        if share:
            for older, weight in zip(self.target.parameters(), self._parameters):
                older.lerp_(weight, share)

    def _described(self, steps: list[Stats], collected: int) -> dict[str, float]:
        """The metrics of an update from the statistics of its optimiser steps."""
        found = {
            "minibatches": float(len(steps)),
            "gradient_steps": float(self.gradient_steps),
            "replay/steps": float(self.replay.steps),
            "replay/sequences": float(self.replay.windows),
        }
        if not steps:
            return found | {"replay/ratio": 0.0}
        stacked = {name: torch.stack([one[name].double() for one in steps]) for name in steps[0]}
        norm = stacked["grad_norm"]
        learned = stacked.pop("replay/learned").sum()
        means = {name: values.mean() for name, values in stacked.items()}
        means |= {
            "grad_norm_max": norm.max(),
            "grad_clip_rate": (norm > self.config.max_grad_norm).double().mean(),
            "replay/ratio": learned / max(1, collected),
        }
        numbers, self._constants = diagnostics.read(means | self._constants), {}
        self.deviation_check.notes += self.constant.notes(numbers)
        return found | numbers

    # -- checkpoints ------------------------------------------------------------------------------

    def more_tensors(self) -> dict[str, Tensor]:
        """Tensors for ``load_more``: target network, counters, and the replay if it is to be saved."""
        found = {f"target.{name}": p for name, p in self.target.named_parameters()}
        found |= {
            "owed": torch.tensor(self._owed, dtype=torch.float64),
            "gradient_steps": torch.tensor(self.gradient_steps),
            "epsilon": self.head.epsilon.clone(),
        }
        if self.config.save_replay:
            found |= {f"replay.{name}": tensor for name, tensor in self.replay.state_dict().items()}
        return {f"{OWN}{name}": tensor for name, tensor in found.items()}

    @torch.no_grad()
    def load_more(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue with the tensors of a checkpoint, if there are any."""
        own = {name.removeprefix(OWN): t for name, t in tensors.items() if name.startswith(OWN)}
        self.is_complete = not own or self.config.save_replay
        if not own:
            return
        ours: dict[str, Tensor] = {f"target.{name}": p for name, p in self.target.named_parameters()}
        ours["epsilon"] = self.head.epsilon
        for name, value in ours.items():
            if name not in own or own[name].shape != value.shape:
                raise ConfigError(
                    f"the saved learner does not fit this policy: {name} is missing or has another shape; "
                    "was it saved with another network?"
                )
        replay = {name.removeprefix("replay."): t for name, t in own.items() if name.startswith("replay.")}
        if self.config.save_replay and replay:
            self.replay.load_state_dict(replay)
        self.is_complete = bool(replay) and self.config.save_replay
        for name, value in ours.items():
            value.copy_(own[name])
        self._owed = float(own["owed"])
        self.gradient_steps = int(own["gradient_steps"])


def make_replay(
    policy: Policy, config: ReplayConfig, rows: int, device: torch.device | str | None = None
) -> Replay:
    """An empty replay for the rows of a policy, by default on its device."""
    device = policy.device if device is None else device
    return Replay(
        rows=rows,
        capacity=config.slots(rows),
        burn_in=config.burn_in_steps,
        length=config.chunk,
        n_step=config.n_step,
        stride=config.spacing,
        obs=spaces.zeros(policy.observation_space, 1, device),
        action=spaces.zeros(policy.action_space, 1, device),
        state=policy.initial_state(1),
        device=device,
        stores_states=config.states == STORED,
        priority_exponent=config.priority_exponent,
    )


def add(replay: Replay, rollout: Rollout) -> None:
    """Add a rollout of one actor, or the joined rollouts of several."""
    actors = rollout.actors
    rows = rollout.rows // len(actors)
    if actors == tuple(range(len(actors))):
        replay.add(rollout)
        return
    for number, actor in enumerate(actors):  # actors that run ahead arrive in any order, some twice
        replay.add(rollout.select_rows(number * rows, (number + 1) * rows), row=actor * rows)


@torch.no_grad()
def staleness(policy: Policy, replay: Replay, seed: int, distance: int, count: int = 32) -> Tensor:
    """How much stored states that no longer fit the weights change action values.

    The mean difference between the values of replayed actions from the stored state and from the state that
    the present weights make of the ``distance`` steps before it, divided by the largest value. Both have the
    burn-in. NaN if no episode has two sequences.
    """
    generator, head = torch.Generator(replay.device).manual_seed(seed), cast(QHead, policy.head)
    before, sample, has = replay.neighbours(count, distance, generator)
    span = slice(distance)
    fresh = policy.unroll_core(tree.index(before.obs, span), before.state, before.first[span])[1]
    learned = sample.is_step[replay.burn_in :][: replay.length] & has
    values = []
    for state in (sample.state, fresh):
        q, _ = policy.unroll(sample.obs, state, sample.first)
        values.append(head.of(q, sample.action)[replay.burn_in :][: replay.length])
    gap = diagnostics.masked_mean((values[0] - values[1]).abs(), learned)
    largest = values[1].abs().masked_fill(~learned, 0).max().clamp(min=1e-6)
    return torch.where(learned.any(), gap / largest, torch.nan)


def epsilon(config: ReplayConfig, progress: float) -> float:
    """The probability of a random action at ``progress`` in [0, 1] of the run."""
    along = 1.0 if config.epsilon_decay == 0 else min(1.0, progress / config.epsilon_decay)
    return config.epsilon + (config.epsilon_end - config.epsilon) * along


def importance(sample: Sample, exponent: float) -> Tensor:
    """[M] float32: the weights of sequences against their probability; the largest is 1."""
    if exponent == 0:
        return torch.ones_like(sample.reward[0])
    weight = sample.probability.clamp(min=1e-300) ** -exponent
    return (weight / weight.max()).float()
