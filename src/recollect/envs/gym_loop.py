"""Single Gymnasium envs, stepped one after another in this process.

Faster than Gymnasium's ``SyncVectorEnv``: rows are written straight into the arrays behind the tensors of the
Step, without further copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import torch

from recollect.base import notices, spaces
from recollect.base.types import Step, Tree
from recollect.envs.contract import BatchedEnv, Describes
from recollect.envs.pettingzoo import refuse_pettingzoo
from recollect.envs.space_values import (
    Buffers,
    RowError,
    env_seeds,
    flag,
    to_rows,
    write_rewards,
    write_row,
    write_rows,
    wrong_result,
)
from recollect.envs.user_wrappers import check_observation_space
from recollect.errors import ConfigError, EnvError, SpaceError


class GymLoop:
    """A BatchedEnv of single envs, with same-step autoreset; every step is valid."""

    agents = 1
    device = torch.device("cpu")

    def __init__(self, makers: Sequence[Callable[[], gym.Env]], *, first_slot: int = 0) -> None:
        """Make the envs. ``first_slot``: the slot of the first one, if they are part of a larger env."""
        if not makers:
            raise ConfigError("num_envs is 0: a GymLoop needs at least one env")
        self.first_slot = first_slot
        self.envs = _make_all(makers, first_slot)
        self.num_envs = len(self.envs)
        self.observation_space: gym.Space = self.envs[0].observation_space
        self.action_space: gym.Space = self.envs[0].action_space
        check_observation_space(self.observation_space, env_name(self.envs[0]))
        list(spaces.walk(self.action_space, f"action_space of {env_name(self.envs[0])}"))
        self._steppers = [env.step for env in self.envs]
        self._now, self._next = (Buffers(self.observation_space, self.num_envs) for _ in range(2))
        self._steps = -1  # since the last reset; -1 before the first one

    def describe_row(self, obs: Tree) -> str | None:
        """The observation of row 0 in words, if the env is a built-in task."""
        env = self.envs[0].unwrapped
        return env.describe_row(obs) if isinstance(env, Describes) else None

    def reset(self, seed: int) -> Tree:
        """Reset env i with a seed derived from (seed, first_slot + i). Returns obs [B, ...]."""
        self._steps = 0
        seeds = env_seeds(seed, self.first_slot + self.num_envs)[self.first_slot :]
        self._write_obs([self._restart(i, env_seed) for i, env_seed in enumerate(seeds)])
        self._now, self._next = self._next, self._now
        return self._now.step.obs

    def step(self, action: Tree) -> Step:
        """Apply ``action`` [B, ...]; where an episode ended, ``obs`` opens the next one."""
        if self._steps < 0:
            raise EnvError("GymLoop.step before GymLoop.reset: call reset(seed) first")
        actions = to_rows(self.action_space, action, self.num_envs)
        self._steps += 1
        self._next.flags.fill(False)
        observations, rewards = [], []
        for step, row_action in zip(self._steppers, actions):
            try:
                result = step(row_action)
            except Exception as error:
                text = f"step({row_action!r}) raised {type(error).__name__}: {error}"
                raise self._error(len(rewards), text) from error
            try:
                obs, reward, terminated, truncated, _ = result
            except (TypeError, ValueError):
                raise self._error(len(rewards), wrong_result(result)) from None
            # `is False` skips the checks in the common case that no episode ends.
            if terminated is not False or truncated is not False:
                obs = self._finish(len(rewards), obs, terminated, truncated)
            observations.append(obs)
            rewards.append(reward)
        self._write_obs(observations)
        self._write_rewards(rewards)
        self._now, self._next = self._next, self._now
        return self._now.step

    def close(self) -> None:
        """Close all envs."""
        for env in self.envs:
            env.close()

    def _finish(self, i: int, obs: Any, terminated: Any, truncated: Any) -> Any:
        """Validate the flags of env ``i``; at an end store ``obs`` and reset. Returns the next obs."""
        out = self._next
        try:
            out.terminated[i], out.truncated[i] = flag("terminated", terminated), flag("truncated", truncated)
        except SpaceError as error:
            raise self._error(i, str(error)) from None
        if not (out.terminated[i] or out.truncated[i]):
            return obs
        try:
            # Before the reset, because an env may reuse one array for all its observations.
            write_row(self.observation_space, out.final_obs, i, obs)
        except SpaceError as error:
            raise self._error(i, str(error)) from None
        out.first[i] = True
        return self._restart(i, None)

    def _restart(self, i: int, seed: int | None) -> Any:
        try:
            result = self.envs[i].reset() if seed is None else self.envs[i].reset(seed=seed)
        except Exception as error:
            raise self._error(i, f"reset raised {type(error).__name__}: {error}") from error
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            raise self._error(
                i,
                f"reset returned a {type(result).__name__}, not (obs, info): is it written for the old "
                "gym API? Return the observation and a dict",
            )
        return result[0]

    def _write_obs(self, observations: list[Any]) -> None:
        try:
            write_rows(self.observation_space, self._next.obs, observations)
        except RowError as error:
            raise self._error(error.row, str(error)) from None

    def _write_rewards(self, rewards: list[Any]) -> None:
        try:
            write_rewards(self._next.reward, rewards)
        except RowError as error:
            raise self._error(error.row, str(error)) from None

    def _error(self, i: int, text: str) -> EnvError:
        return EnvError(f"env {self.first_slot + i} ({env_name(self.envs[i])}), step {self._steps}: {text}")


def _make_all(makers: Sequence[Callable[[], gym.Env]], first_slot: int) -> list[gym.Env]:
    envs: list[gym.Env] = []
    used: set[int] = set()  # the ids of their innermost envs
    for i, make in enumerate(notices.counted(makers, "envs"), first_slot):
        env = make()
        if not isinstance(env, gym.Env):
            refuse_pettingzoo(env)
            fix = "envs of the old gym package need a conversion, such as shimmy's GymV21CompatibilityV0"
            if isinstance(env, gym.vector.VectorEnv | BatchedEnv):
                fix = "a callable that makes a batch needs a parameter num_envs, and makes that many"
            raise EnvError(
                f"the callable for env {i} returned a {type(env).__name__}, not a gymnasium.Env: {fix}"
            )
        if id(env.unwrapped) in used:
            raise EnvError(
                f"the callable for env {i} returned an env that is in use already: its rows would step "
                "one another. Make a new env in each call"
            )
        envs.append(env)
        used.add(id(env.unwrapped))
        for kind in ("observation_space", "action_space"):
            if not isinstance(getattr(env, kind, None), gym.Space):
                raise SpaceError(
                    f"env {i} ({env_name(env)}) has no {kind}: set it in __init__, or on the class"
                )
            own, expected = getattr(env, kind), getattr(envs[0], kind)
            if own != expected:
                raise SpaceError(
                    f"{kind} of env {i} is {own}, that of env {first_slot} {expected}: they must be equal"
                )
    return envs


def env_name(env: gym.Env) -> str:
    """The id of an env, or the name of its class."""
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
