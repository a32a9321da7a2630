"""Sequences drawn from a replay of recorded rollouts, for the checks of replay algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from recollect.audit.recorded_rollouts import RecordedRollout
from recollect.audit.results import Skip
from recollect.base import tree
from recollect.base.types import Tree
from recollect.config.replay import ReplayConfig
from recollect.experience.replay import Sample
from recollect.learning.replay_algorithm import Loss, Windows, windows
from recollect.learning.replay_learner import ReplayLearner, add, make_replay

COUNT = 64
"""Sequences that are drawn."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Sequences [W, M] of a replay of all recorded rollouts, and the log that they must come from."""

    one: RecordedRollout
    sample: Sample
    number: Tensor
    """[W, M]: t * rows + row + 1 of each step in the log of all rollouts; 0 where the sample has no step."""
    windows: int
    """Sequences that can be drawn."""
    log: dict[str, Tree]
    """[T, B, ...]: obs, first, action (as recorded), terminated, truncated, final_obs, and the record."""
    rows: int

    @property
    def algo(self) -> ReplayConfig:
        """The settings of the algorithm."""
        return cast(ReplayConfig, self.one.setup.config.algo)

    @property
    def learner(self) -> ReplayLearner:
        """The learner."""
        return cast(ReplayLearner, self.one.made)

    def of_log(self, name: str) -> Tree:
        """[W, M, ...]: a part of the log at each step; that of some other step where there is none."""
        at = (self.number - 1).clamp(min=0)
        return tree.index(tree.map(lambda leaf: leaf.flatten(0, 1), self.log[name]), at)

    def batch(self, sample: Sample | None = None) -> Windows:
        """The sequences as the learner gets them."""
        used, learner = sample or self.sample, self.learner
        weight = torch.ones_like(used.reward[0])
        return windows(learner.policy, learner.target, used, self.algo, weight=weight)

    def loss(self, batch: Windows) -> Loss:
        """The algorithm's loss, with the same random numbers at every call."""
        learner, generator = self.learner, torch.Generator(batch.reward.device).manual_seed(0)
        return learner.algorithm.loss(learner.policy, learner.target, batch, self.algo, generator)


class Recorded(list[RecordedRollout]):
    """The rollouts of a group. All checks of replayed sequences share what is drawn from them."""

    @cached_property
    def drawn(self) -> Drawn:
        """The sequences."""
        return draw(self)

    @cached_property
    def overwritten(self) -> Drawn | None:
        """Sequences of a replay in which new steps have overwritten old ones; None: there are too few."""
        try:
            return draw(self, small=True)
        except Skip:
            return None


def draw(rollouts: Sequence[RecordedRollout], *, small: bool = False) -> Drawn:
    """Add all rollouts to a replay, with numbers as rewards that tell the steps apart, and draw sequences.

    ``small``: a replay that holds so few steps that new ones overwrite old ones.
    """
    one, rows = rollouts[0], rollouts[0].rollout.rows
    algo = cast(ReplayConfig, one.setup.config.algo)
    if small:
        steps = algo.window + algo.rollout + 3
        algo = replace(algo, replay_capacity=rows * steps)
        if sum(recorded.rollout.steps for recorded in rollouts) <= steps:
            raise Skip("too few steps were recorded to fill a replay (the env is slow)")
    device = one.rollout.reward.device
    replay = make_replay(one.policy, algo, rows)
    count = 0
    for recorded in rollouts:
        rollout = recorded.rollout
        size = rollout.steps * rows
        numbers = torch.arange(count + 1, count + size + 1, device=device, dtype=torch.float32)
        add(replay, replace(rollout, reward=numbers.view(rollout.steps, rows)))
        count += size
    if not replay.windows:
        raise Skip("no sequence is complete: too few steps were recorded (the env is slow)")
    sample = replay.sample(COUNT, torch.Generator(device).manual_seed(3))
    number = torch.where(sample.is_step, sample.reward.long(), 0)

    def joined(parts: list[Tree]) -> Tree:
        return tree.map(lambda *leaves: torch.cat(leaves), *parts)

    logs = [recorded.log for recorded in rollouts]
    log: dict[str, Tree] = {
        "obs": joined([tree.index(one.obs, slice(0, -1)) for one in logs]),
        "first": torch.cat([one.first[:-1] for one in logs]),
        **{name: joined([getattr(one, name) for one in logs]) for name in ("terminated", "truncated")},
        "final_obs": joined([one.final_obs for one in logs]),
        "reward": torch.cat([one.reward for one in logs]),
        "action": joined([one.rollout.action for one in rollouts]),
        **{name: torch.cat([one.rollout.record[name] for one in rollouts]) for name in one.fields},
    }
    drawn = Drawn(one, sample, number, replay.windows, log, rows)
    sample.reward = torch.where(sample.is_step, cast(Tensor, drawn.of_log("reward")), 0.0)
    return drawn
