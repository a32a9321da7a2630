"""The inline runtime: env, actor and learner in this process, one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from recollect import about, workers
from recollect.actor import Actor
from recollect.actors import Actors
from recollect.algos.ppo import PPO
from recollect.config import TrainConfig
from recollect.envs.batched import BatchedEnv
from recollect.errors import ConfigError
from recollect.learner_state import learner_tensors, load_learner
from recollect.metrics import Episodes, EpisodeTracker
from recollect.policy.policy import Policy
from recollect.storage import Learned, TrainerState


@dataclass(frozen=True, slots=True)
class Iteration:
    """One rollout, collected and learned from."""

    metrics: dict[str, float]
    """By the names of the glossary."""
    episodes: Episodes
    """Those that ended in it."""


class Trainer:
    """Collects and learns, one iteration at a time, on the way from step ``start`` to step ``end``.

    Schedules run over that way, a *leg*: ``begin`` opens one, a resumed run goes on with its own.
    """

    def __init__(self, envs: Sequence[BatchedEnv], policy: Policy, config: TrainConfig):
        """``envs``: those of every actor."""
        self.rows = sum(env.num_envs * env.agents for env in envs)
        for env in envs:
            check_spaces(policy, env)
        config.ppo.check(policy, self.rows)
        self.envs, self.policy, self.config = tuple(envs), policy, config
        if config.compile:
            policy.compile_parts()
        self.learner = PPO(policy, config.ppo, seed=_stream(config.seed, 2))
        self.threads = config.threads or about.usable_cores()
        self.episodes = EpisodeTracker(self.rows, config.target_episodes)
        self.steps = self.start = self.end = 0
        self.actor: Actor | Actors | None = None
        self.is_exact = True
        """Whether everything is as it was when ``restore`` was last called for; else new episodes begin."""

    def begin(self, steps: int) -> None:
        """Open a leg of ``steps`` more env steps."""
        self.start, self.end = self.steps, self.steps + steps

    @property
    def is_at_end(self) -> bool:
        """Whether the leg is done."""
        return self.steps >= self.end

    @property
    def is_solved(self) -> bool:
        """Whether the mean return of the last episodes has reached the target, if there is one."""
        target, recent = self.config.target_return, self.episodes.recent
        if target is None or len(recent) < self.config.target_episodes:
            return False
        return sum(r for r, _ in recent) / len(recent) >= target

    @contextmanager
    def working(self) -> Iterator[None]:
        """The threads that ``iterate`` needs; call it inside."""
        by_rows = self.threads if self.config.parallel == "rows" else 1
        with workers.threads(by_rows), workers.intra_op_threads(1):
            yield

    def iterate(self) -> Iteration:
        """Collect one rollout, learn from it, and say how it went."""
        started = time.perf_counter()
        actor = self._actor()
        try:
            rollout = actor.collect(version=self.learner.updates)
        except BaseException:
            self.restart_episodes()  # the env has gone on, and the actor does not know how far
            raise
        collected = time.perf_counter()
        progress = (self.steps - self.start) / max(1, self.end - self.start)
        lag = self.learner.updates - rollout.version
        with workers.intra_op_threads(self.threads if self.config.parallel == "operations" else 1):
            metrics = self.learner.update(rollout, progress)
        ended = time.perf_counter()
        count = int(rollout.valid.sum())
        self.steps += count
        episodes = self.episodes.add(rollout)
        seconds = {**actor.seconds, "learn": ended - collected, "total": ended - started}
        metrics |= {"steps": float(self.steps), "updates": float(self.learner.updates), "lag": float(lag)}
        metrics |= self.episodes.metrics() | actor.info
        if self.config.compile:
            metrics["compiled_graphs"] = float(self.policy.compiled_graphs)
        metrics |= {f"speed/{name}": count / max(value, 1e-9) for name, value in seconds.items()}
        return Iteration(metrics, episodes)

    def restart_episodes(self) -> None:
        """Begin new episodes at the next iteration: for when the env was used by somebody else."""
        self.actor = None

    def learned(self, *, live: bool) -> Learned:
        """What training needs to go on; ``live``: also the memories and the env's state, for a checkpoint."""
        return Learned(
            steps=self.steps,
            updates=self.learner.updates,
            optimizer=learner_tensors(self.learner),
            trainer=self._state() if live else None,
        )

    def restore(self, learned: Learned) -> None:
        """Go on from there, bit for bit if ``is_exact`` says so after it."""
        load_learner(self.learner, learned)
        self.steps = self.start = self.end = learned.steps
        self.restart_episodes()
        self.is_exact = learned.steps == 0
        saved = learned.trainer
        if saved is None:
            return
        self.start, self.end = saved.numbers["start"], saved.numbers["end"]
        parts = _grouped(saved.tensors)
        actor = self._actor() if "actor" in parts else None
        self.episodes.restore({name: tensor.numpy() for name, tensor in parts["episodes"].items()})
        if actor is None or not actor.fits(parts["actor"]):
            self.restart_episodes()  # a foreign env, or a generator of another kind of device
            return
        actor.restore(parts["actor"])
        self.is_exact = True

    def _state(self) -> TrainerState:
        live = None if self.actor is None else self.actor.snapshot()
        episodes = {name: torch.from_numpy(value) for name, value in self.episodes.snapshot().items()}
        tensors = {f"episodes/{name}": tensor for name, tensor in episodes.items()}
        tensors |= {f"actor/{name}": tensor for name, tensor in (live or {}).items()}
        return TrainerState({"start": self.start, "end": self.end}, tensors)

    def _actor(self) -> Actor | Actors:
        if self.actor is None:
            ppo, runs = self.config.ppo, self.learner.updates
            actors = [
                Actor(
                    env,
                    self.policy,
                    rollout=ppo.rollout,
                    state_steps=ppo.state_steps,
                    seed=_stream(self.config.seed, 1, runs, *([index] if index else [])),
                    index=index,
                )
                for index, env in enumerate(self.envs)
            ]
            self.actor = actors[0] if len(actors) == 1 else Actors(actors)
            self.episodes.forget_running()
        return self.actor


def check_spaces(policy: Policy, env: BatchedEnv) -> None:
    """Refuse a policy that was made for other spaces than the env's."""
    for name in ("observation_space", "action_space"):
        ours, theirs = getattr(policy, name), getattr(env, name)
        if ours != theirs:
            raise ConfigError(
                f"the policy was made for {name} {ours}, the env has {theirs}: "
                "build the policy from this env's spaces, or use the env that it was made for"
            )


def _grouped(tensors: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """``{"a/b": x}`` as ``{"a": {"b": x}}``, split at the first slash."""
    groups: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        group, rest = name.split("/", 1)
        groups.setdefault(group, {})[rest] = tensor
    return groups


def _stream(*key: int) -> int:
    """A seed for one of the random streams of a run: distinct for every (seed, role, index)."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(2))
