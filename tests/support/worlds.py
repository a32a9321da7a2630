"""Envs to adapt, and the experience that they must give: stepped by hand, and through an adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from recollect.base import tree
from recollect.base.types import Step
from recollect.envs.contract import BatchedEnv
from recollect.envs.space_values import env_seeds
from tests.support.counter import ACTIONS, Counter

__all__ = ["Counter", "Echo", "Scripted", "TwoAgents", "by_batch", "by_hand", "choose"]


def choose(obs: Any) -> torch.Tensor:
    """The one right action [B] for observations of Counter."""
    numbers = obs["a"] if isinstance(obs, dict) else obs
    return (numbers[:, 0] * 7 + numbers[:, 1]).long() % ACTIONS


def by_hand(make: Callable[[], gym.Env], rows: int, steps: int, seed: int) -> list[list[tuple]]:
    """For each row ``steps`` of (obs, reward, terminated, truncated, next or final obs)."""
    rollouts = []
    for env_seed in env_seeds(seed, rows):
        env, rollout = make(), []
        obs = _numbers(env.reset(seed=env_seed)[0])
        for _ in range(steps):
            action = choose(torch.tensor(obs[:4])[None])
            seen, reward, terminated, truncated, _ = env.step(np.int64(action.item()))
            seen = _numbers(seen)
            rollout.append((obs, float(np.float32(reward)), terminated, truncated, seen))
            obs = _numbers(env.reset()[0]) if terminated or truncated else seen
        rollouts.append(rollout)
    return rollouts


def by_batch(env: BatchedEnv, steps: int, seed: int) -> list[list[tuple]]:
    """The same out of a BatchedEnv, from valid steps only."""
    rollouts: list[list[tuple]] = [[] for _ in range(env.num_envs)]
    obs = tree.clone(env.reset(seed))
    while min(map(len, rollouts)) < steps:
        step = env.step(choose(obs))
        ended = step.terminated | step.truncated
        for row, rollout in enumerate(rollouts):
            if step.valid[row]:
                after = step.final_obs if ended[row] else step.obs
                rollout.append(
                    (
                        _numbers(tree.index(obs, row)),
                        float(step.reward[row]),
                        bool(step.terminated[row]),
                        bool(step.truncated[row]),
                        _numbers(tree.index(after, row)),
                    )
                )
        obs = tree.clone(step.obs)
    return [rollout[:steps] for rollout in rollouts]


def _numbers(obs: Any) -> list[float]:
    """An observation of Counter, single and from numpy or torch, as plain numbers."""
    parts = [obs["a"], obs["b"]] if isinstance(obs, dict) else [obs]
    return [float(x) for part in parts for x in np.asarray(part).reshape(-1)]


class Echo(gym.Env):
    """Shows the action that it was given; insists that it lies in the space."""

    def __init__(self, space: gym.Space) -> None:
        self.observation_space = self.action_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.action_space.seed(seed)
        return self.action_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), f"{self.action_space} does not contain {action!r}"
        return action, 0.0, False, False, {}


class Scripted(gym.Env):
    """Returns what it is told to: for everything that a broken env may do."""

    observation_space = spaces.Box(-10, 10, (2,), np.float32)
    action_space = spaces.Discrete(2)
    good = np.zeros(2, np.float32)

    def __init__(self, result: Any = None, start: Any = None, fail: Exception | None = None) -> None:
        self.result = result if result is not None else (self.good, 0.0, False, False, {})
        self.start = start if start is not None else (self.good, {})
        self.fail = fail

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.start

    def step(self, action: Any) -> Any:
        if self.fail is not None:
            raise self.fail
        return self.result


class TwoAgents:
    """A BatchedEnv of two slots of two agents: agent 1 dies early and waits until its slot is cut."""

    num_envs, agents = 2, 2
    device = torch.device("cpu")
    observation_space: Any = spaces.Dict(
        {"x": spaces.Box(0, 99, (2,), np.float32), "action_mask": spaces.MultiBinary(3)}
    )
    action_space: Any = spaces.Discrete(3)

    def reset(self, seed: int) -> Any:
        self.random = np.random.default_rng(seed)
        self.t = torch.zeros(4)
        return self._see()

    def step(self, action: Any) -> Any:
        agent = torch.tensor([0, 1, 0, 1])
        valid = (agent == 0) | (self.t < 2)
        assert (action[valid] != 1).all(), "a masked action"
        self.t += 1
        terminated = (agent == 1) & (self.t == 2)
        truncated = self.t == 4
        first, truncated = truncated, truncated & valid
        final = self._see()
        self.t[first] = 0
        return Step(
            obs=self._see(),
            first=first,
            reward=torch.where(valid, self.t, 0.0),
            terminated=terminated,
            truncated=truncated,
            final_obs=final,
            valid=valid,
            info={"age": self.t.clone()},
        )

    def close(self) -> None: ...

    def _see(self) -> Any:
        x = torch.from_numpy(self.random.random((4, 2))).float() + self.t[:, None]
        return {"x": x, "action_mask": torch.tensor([1, 0, 1], dtype=torch.int8).repeat(4, 1)}
