"""Rollouts of the real actor, each with a log of the env and a slow, independent replay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from recollect.acting.actor import Actor
from recollect.acting.group_actor import GroupActor, make_actor
from recollect.algos import impala, ppo
from recollect.algos.catalog import AnyLearner, acting, make_learner
from recollect.audit.results import Skip
from recollect.audit.setup import Setup
from recollect.base import tree
from recollect.base.types import State, Step, Tree
from recollect.config.algo_shared import LearnerConfig
from recollect.config.replay import ReplayConfig
from recollect.envs.contract import AsyncStep, BatchedEnv, EnvWrapper
from recollect.envs.group_views import Groups, views_of
from recollect.experience.group_rollout import by_group as rollouts_by_group
from recollect.experience.rollout import Rollout
from recollect.learning.algorithm import Algorithm
from recollect.learning.learner import Learner
from recollect.learning.refresh_rollout import Outputs
from recollect.policy.head_contract import Field
from recollect.policy.policies import Network, by_group
from recollect.policy.policy import Policy

LEAST, MOST = 2, 12
"""Minimum and maximum number of rollouts; more than the minimum only until an episode has ended."""
SECONDS = 4.0
"""Seconds after which no further rollout is recorded."""


@dataclass(frozen=True, slots=True)
class EnvLog:
    """Copies of the inputs and outputs of an env over T steps of B rows."""

    obs: Tree
    """[T + 1, B, ...]"""
    first: Tensor
    """[T + 1, B] bool"""
    action: Tree
    """[T, B, ...] as passed to the env."""
    reward: Tensor
    """[T, B]"""
    terminated: Tensor
    """[T, B] bool"""
    truncated: Tensor
    """[T, B] bool"""
    valid: Tensor
    """[T, B] bool"""
    final_obs: Tree
    """[T, B, ...] where an episode ended."""

    @property
    def ended(self) -> Tensor:
        """[T, B] bool: an episode ended here."""
        return (self.terminated | self.truncated) & self.valid

    @property
    def cut(self) -> Tensor:
        """[T, B] bool: an episode was truncated here, so that its future has a value."""
        return self.truncated & ~self.terminated & self.valid

    @property
    def inside(self) -> Tensor:
        """[B] bool: rows that are within an episode after the last step."""
        return self.valid[-1] & ~self.ended[-1]


class EnvRecorder(EnvWrapper):
    """An env wrapper that copies all inputs and outputs; ``take`` returns the copies."""

    _last: dict[str, Tree]
    _steps: list[dict[str, Tree]]

    def __init__(self, env: BatchedEnv) -> None:
        super().__init__(env, AsyncStep)

    def reset(self, seed: int) -> Tree:
        """Reset the env and start a new log."""
        obs = self.env.reset(seed)
        first = torch.ones(self.num_envs * self.agents, dtype=torch.bool, device=self.device)
        self._last, self._steps = {"obs": tree.clone(obs), "first": first}, []
        return obs

    def step(self, action: Tree) -> Step:
        """Step the env and copy everything."""
        sent = tree.clone(action)
        return self._logged(self.env.step(action), sent)

    def _send(self, action: Tree) -> None:
        self._sent = tree.clone(action)
        self.env.send(action)

    def _receive(self) -> Step:
        return self._logged(self.env.receive(), self._sent)

    def _logged(self, step: Step, sent: Tree) -> Step:
        names = ("obs", "first", "reward", "terminated", "truncated", "valid", "final_obs")
        self._steps.append(tree.clone({name: getattr(step, name) for name in names}) | {"action": sent})
        return step

    def take(self) -> EnvLog:
        """The steps since the last ``take`` or ``reset``, at least one."""
        log = tree.stack(self._steps)
        for name, last in self._last.items():
            log[name] = tree.map(lambda before, after: torch.cat([before[None], after]), last, log[name])
        self._last, self._steps = {name: self._steps[-1][name] for name in self._last}, []
        return EnvLog(**log)


@dataclass(frozen=True, slots=True)
class RecordedRollout:
    """One rollout as the actor recorded it, with the data to check it against."""

    setup: Setup
    policy: Policy
    made: AnyLearner
    """The learner."""
    rollout: Rollout
    log: EnvLog
    replay: Outputs
    """The expected outputs of the policy, with the input states [T + 1, B, ...] of all steps."""
    live: State
    """[B, ...] the actor's state after the rollout."""
    has_graph: bool
    """Whether the stored or the live states required a gradient."""
    is_shared: bool
    """Whether the stored and the live states shared memory."""

    @property
    def algo(self) -> LearnerConfig:
        """The settings of an algorithm that learns from rollouts."""
        assert isinstance(self.setup.config.algo, LearnerConfig)
        return self.setup.config.algo

    @property
    def learner(self) -> Learner:
        """The learner of such an algorithm."""
        assert isinstance(self.made, Learner)
        return self.made

    def known_algorithm(self, what: str) -> Algorithm:
        """PPO or IMPALA. Skips the check of ``what`` of any other algorithm, whose formulas nobody knows."""
        if (algorithm := self.learner.algorithm) not in (ppo, impala):
            raise Skip(f"the {what} of an algorithm of your own are not known")
        return algorithm

    @property
    def fields(self) -> dict[str, Field]:
        """The fields of the record that the learner must reproduce."""
        return self.made.compared

    @staticmethod
    def values_at_ends(of: Rollout | Outputs) -> tuple[Tensor, Tensor]:
        """``final_value`` and ``bootstrap``. Skips the check if the algorithm needs none."""
        if of.final_value is None or of.bootstrap is None:
            raise Skip("the algorithm needs no values of final observations")
        return of.final_value, of.bootstrap

    def unit(self, name: str) -> float:
        """The unit of a field's deviations: its own, or the size to which float32 rounding is relative."""
        if (unit := self.fields[name].unit) is not None:
            return unit
        recorded = self.rollout.record[name][self.rollout.valid]
        largest = float(recorded.abs().max()) if len(recorded) else 0.0
        return max(1.0, largest, float(self.policy.value_scale))


def record_rollouts(
    setup: Setup, env: BatchedEnv | Groups, network: Network
) -> Iterator[dict[str, RecordedRollout]]:
    """Consecutive rollouts of each group until an episode has ended inside one, within the limits above."""
    config, policies = setup.config, by_group(network)
    views = views_of(env)
    learners = {
        name: make_learner(
            policy, config.algo, rows=views[name].num_envs * views[name].agents, seed=config.seed
        )
        for name, policy in policies.items()
    }
    least = LEAST
    if isinstance(config.algo, ReplayConfig):  # so many steps that the replay holds whole sequences
        least += -(-config.algo.window // config.algo.rollout)
    options: Any = {
        "rollout": config.algo.rollout,
        "seed": config.seed,
        **acting(config.algo).keywords(),
        "keeps_finals": True,
    }
    if any(policy.obs_norm is not None for policy in policies.values()):
        # One rollout for their statistics, so that the networks see scaled values.
        for name, warm_up in rollouts_by_group(make_actor(env, network, **options).collect()).items():
            norm = policies[name].obs_norm
            if norm is not None:
                norm.update(tree.index(warm_up.obs, slice(warm_up.steps)), warm_up.valid)
    recorders = {name: EnvRecorder(view) for name, view in views.items()}
    recorded = Groups({**recorders}, env.members) if isinstance(env, Groups) else recorders[""]
    actor = make_actor(recorded, network, **options)
    actors: dict[str, Actor] = actor.actors if isinstance(actor, GroupActor) else {"": actor}
    states = {name: policies[name].initial_state(one.rows) for name, one in actors.items()}
    ended, started = set[str](), time.perf_counter()
    for count in range(1, max(MOST, least) + 1):
        rollouts = rollouts_by_group(actor.collect())
        found: dict[str, RecordedRollout] = {}
        for name, rollout in rollouts.items():
            log, live = recorders[name].take(), actors[name].state
            replay = plain_replay(policies[name], rollout, log, states[name])
            leaves = (*tree.leaves(rollout.states), *tree.leaves(live))
            found[name] = RecordedRollout(
                setup=setup,
                policy=policies[name],
                made=learners[name],
                rollout=replace(rollout, **tree.clone(rollout.tensors())),  # ``collect`` overwrites it
                log=log,
                replay=replay,
                live=tree.clone(live),
                has_graph=any(leaf.requires_grad for leaf in leaves),
                is_shared=bool(_addresses(rollout.states) & _addresses(live)),
            )
            states[name] = tree.index(replay.states, -1)
            if log.ended[:-1].any():
                ended.add(name)
        yield found
        if count >= least and (len(ended) == len(actors) or time.perf_counter() - started > SECONDS):
            return


@torch.no_grad()
def plain_replay(policy: Policy, rollout: Rollout, log: EnvLog, state: State) -> Outputs:
    """The outputs of the policy on the logged observations, one step at a time from ``state`` [B, ...].

    Resets are applied here; the core gets ``first`` = False at every step.
    """
    T, rows = log.reward.shape
    never = torch.zeros(1, rows, dtype=torch.bool, device=log.first.device)
    fresh = policy.initial_state(rows)
    states, records, has_values = [tree.clone(state)], [], rollout.final_value is not None
    final_value = torch.zeros_like(log.reward)
    for t in range(T):
        now = slice(t, t + 1)
        start = tree.select(log.first[t], fresh, states[t])
        *outputs, state = policy.unroll(tree.index(log.obs, now), start, never)
        records.append(policy.head.record(outputs, tree.index(rollout.action, now)))
        states.append(tree.clone(state))
        if has_values and log.cut[t].any():
            final_value[t] = policy.unroll(tree.index(log.final_obs, now), state, never)[1][0]
    record = {name: torch.cat([one[name] for one in records]) for name in records[0]}
    if not has_values:
        return Outputs(record, None, None, tree.stack(states))
    start = tree.select(log.first[T], fresh, states[T])
    bootstrap = policy.unroll(tree.index(log.obs, slice(T, T + 1)), start, never)[1][0]
    return Outputs(record, final_value, bootstrap, tree.stack(states))


def _addresses(state: State) -> set[int]:
    return {leaf.untyped_storage().data_ptr() for leaf in tree.leaves(state) if leaf.numel()}


def network_seconds(network: Network, env: BatchedEnv | Groups) -> float:
    """Approximate seconds to learn from one step of all rows, forward and backward."""
    policies = by_group(network)
    return sum(_policy_seconds(policies[name], view) for name, view in views_of(env).items())


def _policy_seconds(policy: Policy, env: BatchedEnv, steps: int = 4) -> float:
    obs = tree.map(lambda leaf: leaf.unsqueeze(0).repeat(steps, *[1] * leaf.dim()), env.reset(0))
    rows = env.num_envs * env.agents
    first = torch.ones(steps, rows, dtype=torch.bool, device=env.device)
    seconds = 0.0
    for _ in range(2):  # the first call is slower
        started = time.perf_counter()
        *_, last, _ = policy.unroll(obs, policy.initial_state(rows), first)  # values
        if last.requires_grad:
            last.sum().backward()
        seconds = time.perf_counter() - started
    policy.zero_grad(set_to_none=True)
    return seconds / steps


def positions(rollout: Rollout) -> Tensor:
    """[T, B]: a distinct number for every step and row, from 1: t * B + row + 1."""
    count = rollout.steps * rollout.rows
    return torch.arange(1, count + 1, device=rollout.reward.device).view(rollout.steps, rollout.rows)


def step_and_row(position: int, rows: int) -> tuple[int, int]:
    """(t, row) of a position."""
    return divmod(position - 1, rows)


def worst(gap: Tensor, mask: Tensor) -> tuple[float, int, int]:
    """The largest of gap [T, B] where ``mask``, with its t and row. NaN counts as infinite."""
    gap = torch.where(gap.isnan(), torch.inf, gap).masked_fill(~mask, 0)
    t, row = divmod(int(gap.argmax()), gap.shape[1])
    return float(gap[t, row]), t, row
