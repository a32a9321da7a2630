"""Support for tests of actors in processes: collectors whose weights tell their version, and /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

import recollect as rc
from recollect.base import tree
from recollect.experience.rollout import Rollout
from recollect.learning.learner_state import learner_tensors
from recollect.policy.policy import Policy
from recollect.runtimes.collector import Batch
from recollect.runtimes.env_probe import env_probe
from recollect.runtimes.remote_collector import RemoteCollector
from tests.support.doomed import SMALL, UPDATE, rows, wait_for, weights, without

TINY = without(SMALL, "progress", "checkpoint_every")
OWN = {"time", "queue", "actors", "actor", "restarts", "speed"}
"""Metrics that only runtimes with actors elsewhere have, and times."""


def trained(env: Any, updates: int, **settings: Any) -> dict[str, torch.Tensor]:
    """Weights, statistics and optimiser after so many updates."""
    settings = SMALL | {"steps": updates * UPDATE} | settings
    with rc.train(env, **settings) as agent:
        assert agent._trainer is not None
        return weights(agent) | tree.clone(learner_tensors(agent._trainer.learner))


def common_rows(path: Path) -> list[dict[str, Any]]:
    """The metrics of a run that do not depend on where its actors lived."""
    return [{k: v for k, v in row.items() if k.split("/")[0] not in OWN} for row in rows(path)]


@contextmanager
def process_collector(env: Any, **settings: Any) -> Iterator[tuple[RemoteCollector, Policy]]:
    """A collector without a learner."""
    torch.manual_seed(0)
    settings = TINY | {"runtime": "processes", "normalise_value": False} | settings
    config = rc.TrainConfig().override(**settings)
    with env_probe(env, config) as probe:
        policy = config.policy.build(probe.one.observation_space, probe.one.action_space)
        collector = probe.collector(policy)
    assert isinstance(collector, RemoteCollector)
    try:
        yield collector, policy
    finally:
        collector.close()


class Turns:
    """Collects and publishes with weights that say which version they are."""

    def __init__(self, collector: RemoteCollector, policy: Policy):
        self.collector, self.policy, self.batches = collector, policy, list[list[Rollout]]()
        self.notes: list[str] = []
        self._say(0)

    def turn(self) -> Batch:
        """One update's worth. In the first one, learning takes so long that actors run ahead in any case."""
        version = len(self.batches)
        batch = self.collector.collect(version)
        if version == 0:
            run_ahead(self.collector)
        for rollout in batch.rollouts:  # the critic says its own version, whatever it sees
            assert rollout.record["value"].unique().tolist() == [rollout.version]
        self.batches.append([kept(rollout) for rollout in batch.rollouts])
        self.notes += batch.notes
        self._say(version + 1)
        self.collector.publish(version + 1)
        return batch

    def _say(self, version: int) -> None:
        say(self.policy, version)

    def check(self, max_lag: int) -> set[int]:
        """Every ticket once, in order for every actor, and no lag beyond the limit. Returns the lags."""
        lags = {k - rollout.version for k, batch in enumerate(self.batches) for rollout in batch}
        assert min(lags) >= 0
        assert max(lags) <= max_lag
        numbers = [(rollout.actor, rollout.sequence) for batch in self.batches for rollout in batch]
        for actor in {actor for actor, _ in numbers}:
            mine = [sequence for other, sequence in numbers if other == actor]
            assert mine == list(range(len(mine))), "none lost, none doubled, in order"
        return lags


def run_ahead(collector: Any) -> None:
    """Wait until the actors, of whatever runtime, have done all that they may do now."""
    wait_for(lambda: not collector._tickets.running or (collector._receive(1.0) and False))


@torch.no_grad()
def say(policy: Policy, version: int) -> None:
    """Let the critic say this version, whatever it sees."""
    policy.critic.weight.zero_()
    policy.critic.bias.fill_(float(version))


def kept(rollout: Rollout) -> Rollout:
    """A copy that the next ``collect`` does not overwrite."""
    finals = None if rollout.finals is None else rollout.finals.map(torch.clone)
    return replace(rollout, **tree.clone(rollout.tensors()), finals=finals)


class Slow(gym.Wrapper):
    """One process, the first that makes a step, takes its time for every one."""

    def __init__(self, env: gym.Env, folder: str, seconds: float):
        super().__init__(env)
        self.folder, self.seconds = Path(folder), seconds

    def step(self, action: Any) -> Any:
        if claimed(self.folder, 1):
            time.sleep(self.seconds)
        return super().step(action)


def claimed(folder: Path, count: int) -> bool:
    """Whether this process is one of the first ``count`` that asked."""
    own = folder / str(os.getpid())
    if own.exists():
        return True
    for number in range(count):
        try:
            os.close(os.open(folder / f"claim-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        own.touch()
        return True
    return False


# Processes -----------------------------------------------------------------------------------------------


def parents() -> dict[int, int]:
    """The parent of every process that is not a zombie."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state != "Z":
                found[int(folder.name)] = int(parent)
    return found


def descendants(pid: int) -> set[int]:
    """All processes that a process has started, and those that these have."""
    above, found = parents(), set[int]()
    while new := {child for child, parent in above.items() if parent in found | {pid}} - found:
        found |= new
    return found


def wait_until_gone(pids: set[int]) -> None:
    """Until none of them is there."""
    wait_for(lambda: time.sleep(0.02) or not pids & parents().keys())
