"""The inline runtime: env, actor and learner in this process, one after the other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from recollect import workers
from recollect.actor import Actor
from recollect.algos.ppo import PPO
from recollect.config import TrainConfig
from recollect.envs.batched import BatchedEnv
from recollect.errors import ConfigError
from recollect.metrics import Advisor, EpisodeTracker, History
from recollect.policy.policy import Policy

Watcher = Callable[[dict[str, float], list[str]], Any]
"""Called after every update with its metrics and, the first time each applies, advice."""


class Trainer:
    """Collects and learns until a number of steps is reached; may be run again for more."""

    def __init__(self, env: BatchedEnv, policy: Policy, config: TrainConfig):
        rows = env.num_envs * env.agents
        check_spaces(policy, env)
        config.ppo.check(policy, rows)
        self.env, self.policy, self.config = env, policy, config
        self.learner = PPO(policy, config.ppo, seed=_stream(config.seed, 2))
        self.threads = config.threads or _available_cores()
        self.episodes = EpisodeTracker(rows, config.target_episodes)
        self.advisor = Advisor(config.ppo.max_grad_norm)
        self.history = History()
        self.steps = 0
        self.actor: Actor | None = None

    def run(self, steps: int, watch: Watcher | None = None) -> dict[str, float]:
        """Train for ``steps`` more env steps, or until solved. Returns the last update's metrics."""
        start = self.steps
        by_rows = self.threads if self.config.parallel == "rows" else 1
        with workers.threads(by_rows), _intra_op_threads(1):
            while True:
                metrics = self._iterate(progress=(self.steps - start) / steps)
                advice = self.advisor.watch(metrics)
                if watch is not None:
                    watch(metrics, advice)
                if self.steps - start >= steps or self._is_solved():
                    return metrics

    def _iterate(self, progress: float) -> dict[str, float]:
        """Collect one rollout, learn from it, and say how it went."""
        started = time.perf_counter()
        actor = self._actor()
        try:
            rollout = actor.collect(version=self.learner.updates)
        except BaseException:
            self.restart_episodes()  # the env has gone on, and the actor does not know how far
            raise
        collected = time.perf_counter()
        with _intra_op_threads(self.threads if self.config.parallel == "operations" else 1):
            metrics = self.learner.update(rollout, progress)
        ended = time.perf_counter()
        count = int(rollout.valid.sum())
        self.steps += count
        self.episodes.add(rollout)
        seconds = {**actor.seconds, "learn": ended - collected, "total": ended - started}
        metrics |= {"steps": float(self.steps), "updates": float(self.learner.updates)}
        metrics |= self.episodes.metrics() | actor.info
        metrics |= {f"speed/{name}": count / max(value, 1e-9) for name, value in seconds.items()}
        self.history.add(metrics)
        return metrics

    def restart_episodes(self) -> None:
        """Begin new episodes at the next ``run``: for when the env was used by somebody else."""
        self.actor = None

    def _actor(self) -> Actor:
        if self.actor is None:
            ppo, runs = self.config.ppo, self.learner.updates
            self.actor = Actor(
                self.env,
                self.policy,
                rollout=ppo.rollout,
                state_steps=ppo.state_steps,
                seed=_stream(self.config.seed, 1, runs),
            )
            self.episodes.forget_running()
        return self.actor

    def _is_solved(self) -> bool:
        target, recent = self.config.target_return, self.episodes.recent
        if target is None or len(recent) < self.config.target_episodes:
            return False
        return sum(r for r, _ in recent) / len(recent) >= target


def check_spaces(policy: Policy, env: BatchedEnv) -> None:
    """Refuse a policy that was made for other spaces than the env's."""
    for name in ("observation_space", "action_space"):
        ours, theirs = getattr(policy, name), getattr(env, name)
        if ours != theirs:
            raise ConfigError(
                f"the policy was made for {name} {ours}, the env has {theirs}: "
                "build the policy from this env's spaces, or use the env that it was made for"
            )


@contextmanager
def _intra_op_threads(count: int) -> Iterator[None]:
    """Split torch's operations over ``count`` threads for a while. One for acting: they are tiny."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _stream(*key: int) -> int:
    """A seed for one of the random streams of a run: distinct for every (seed, role, index)."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(2))


def _available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
