"""Rollouts of the real actor, each with a witness's log and a slow, independent replay beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.acting.actor import Actor
from recollect.algos.catalog import acting, make_learner
from recollect.audit.env_recorder import Log, Witness
from recollect.audit.setup import Subject
from recollect.base import tree
from recollect.base.types import State
from recollect.envs.contract import BatchedEnv
from recollect.experience.rollout import Rollout
from recollect.policy.policy import Policy

LEAST, MOST = 2, 12
"""The least and the most rollouts to check: more than the least only until an episode has ended."""
SECONDS = 6.0
"""After this long no further rollout is made."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The expected contents of a rollout, computed one step at a time."""

    log_prob: Tensor
    """[T, B] of the recorded actions."""
    value: Tensor
    """[T, B]"""
    states: list[State]
    """The raw input states of the steps 0..T, each [B, ...]."""
    final_value: Tensor
    """[T, B], where an episode was cut."""
    bootstrap: Tensor
    """[B]"""


class Scene:
    """One rollout as recorded, as lived, and as it must be."""

    def __init__(self, trial: Trial, rollout: Rollout, log: Log):
        self.trial, self.rollout, self.log = trial, rollout, log
        self._replay: Replay | None = None

    @property
    def replay(self) -> Replay:
        """The slow replay, made when it is first asked for."""
        if self._replay is None:
            self._replay = self.trial.replay(self.rollout, self.log)
        return self._replay


class Trial:
    """The user's env and network with the real actor and learner."""

    def __init__(self, subject: Subject, env: BatchedEnv, policy: Policy):
        self.subject, self.policy = subject, policy
        self.algo = subject.config.algo
        self.rows = env.num_envs * env.agents
        self.learner = make_learner(policy, self.algo, seed=subject.config.seed)
        self.witness = Witness(env)
        self._warm_up(env)
        self.actor = self._actor(self.witness)
        self.state: State = policy.initial_state(self.rows)
        """The state that the replay has come to."""
        self.ended = 0
        """Episodes that ended so far."""

    def scenes(self) -> Iterator[Scene]:
        """Rollouts one after another, the replay of each included, until an episode has ended inside one.

        A scene's rollout holds until the next one is made.
        """
        started = time.perf_counter()
        for count in range(1, MOST + 1):
            scene = Scene(self, self.actor.collect(), self.witness.take())
            self.ended += int(scene.log.ended[:-1].sum())
            yield scene
            self.state = scene.replay.states[-1]
            is_late = time.perf_counter() - started > SECONDS
            if count >= LEAST and (self.ended or is_late):
                return

    @torch.no_grad()
    def replay(self, rollout: Rollout, log: Log) -> Replay:
        """Step by step from the last state, on what the env showed.

        A reset is applied here, by hand; the core is never told of one.
        """
        policy, T = self.policy, len(log.reward)
        never = torch.zeros(1, self.rows, dtype=torch.bool, device=log.first.device)
        fresh = policy.initial_state(self.rows)
        states, log_probs, values = [tree.clone(self.state)], [], []
        final_value = torch.zeros_like(log.reward)
        bootstrap = torch.zeros_like(log.reward[0])
        for t in range(T + 1):
            start = tree.select(log.first[t], fresh, states[t])
            dist, value, state = policy.unroll(tree.index(log.obs, slice(t, t + 1)), start, never)
            if t == T:
                bootstrap = value[0]
                break
            log_probs.append(dist.log_prob(tree.index(rollout.action, slice(t, t + 1)))[0])
            values.append(value[0])
            states.append(tree.clone(state))
            if log.cut[t].any():
                _, after, _ = policy.unroll(tree.index(log.final_obs, slice(t, t + 1)), state, never)
                final_value[t] = after[0]
        return Replay(torch.stack(log_probs), torch.stack(values), states, final_value, bootstrap)

    def _warm_up(self, env: BatchedEnv) -> None:
        """One rollout for the statistics of the observations, so that the network sees them scaled."""
        if self.policy.obs_norm is not None:
            rollout = self._actor(env).collect()
            seen = tree.map(lambda leaf: leaf[: rollout.steps], rollout.obs)
            self.policy.obs_norm.update(seen, rollout.valid)

    def _actor(self, env: BatchedEnv) -> Actor:
        steps, seed = acting(self.algo).state_steps, self.subject.config.seed
        return Actor(env, self.policy, rollout=self.algo.rollout, state_steps=steps, seed=seed)


def network_seconds(policy: Policy, env: BatchedEnv, steps: int = 4) -> float:
    """Approximate seconds to learn from one step of all rows, forward and backward."""
    obs = tree.map(lambda leaf: leaf.unsqueeze(0).repeat(steps, *[1] * leaf.dim()), env.reset(0))
    rows = env.num_envs * env.agents
    first = torch.ones(steps, rows, dtype=torch.bool, device=env.device)
    seconds = 0.0
    for _ in range(2):  # the first call is slower
        started = time.perf_counter()
        _, value, _ = policy.unroll(obs, policy.initial_state(rows), first)
        if value.requires_grad:
            value.sum().backward()
        seconds = time.perf_counter() - started
    policy.zero_grad(set_to_none=True)
    return seconds / steps


def positions(rollout: Rollout) -> Tensor:
    """[T, B]: a number of its own for every step and row, from 1 up: t * B + row + 1."""
    count = rollout.steps * rollout.rows
    return torch.arange(1, count + 1, device=rollout.reward.device).view(rollout.steps, rollout.rows)


def where(position: int, rows: int) -> tuple[int, int]:
    """(t, row) of a position."""
    return divmod(position - 1, rows)


def worst(gap: Tensor, mask: Tensor) -> tuple[float, int, int]:
    """The largest of gap [T, B] where ``mask``, NaN being the largest of all, and its t and row."""
    gap = torch.where(gap.isnan(), torch.inf, gap).masked_fill(~mask, 0)
    at = int(gap.argmax())
    t, row = divmod(at, gap.shape[1])
    return float(gap[t, row]), t, row
