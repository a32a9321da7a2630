"""Envs that adapters run a foreign trainer on: one to record a rollout, one that plays a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from recollect.audit.trace import TracedRollout

LENGTHS = (3, 7, 1, 5, 4, 6)
"""Steps of the episodes of row 0, in turns; each further row begins one later in the list."""
STEPS, ROWS = 24, 3
"""Of a recorded rollout."""
WARMUP = 5
"""Steps before the recorded rollout, which so begins inside episodes."""
POISON = 100.0
"""The value of the observation after a termination, which nothing may use."""


@dataclass
class Log:
    """What one row's env has shown, step by step."""

    obs: list[np.ndarray] = field(default_factory=list)
    """The observation that each action was chosen on."""
    action: list[Any] = field(default_factory=list)
    first: list[bool] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    final_obs: list[np.ndarray] = field(default_factory=list)
    """The observation after each step, before any reset."""


class Probe(gym.Env[Any, Any]):
    """Random observations and rewards. Episodes are short, and end by the rules and by a limit in turns."""

    def __init__(
        self,
        row: int = 0,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
    ):
        self.row = row
        self.observation_space = observation_space or gym.spaces.Box(-2, 2, (3,), np.float32)
        self.action_space = action_space or gym.spaces.Discrete(3)
        self.random = np.random.default_rng(row)
        self.log = Log()
        self.episode, self.left, self.is_first = 0, 0, True
        self.now = np.zeros(0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A new episode; seeds are ignored, so that rows differ and runs do not."""
        self.left = LENGTHS[(self.episode + self.row) % len(LENGTHS)]
        self.episode += 1
        self.is_first, self.now = True, self._draw()
        return self.now.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The same for all actions."""
        self.left -= 1
        by_rules = self.episode % 2 == 1
        terminated, truncated = self.left == 0 and by_rules, self.left == 0 and not by_rules
        reward, shown = float(self.random.normal()), self._draw()
        log = self.log
        log.obs.append(self.now)
        log.action.append(np.asarray(action).copy())
        log.first.append(self.is_first)
        log.reward.append(reward)
        log.terminated.append(terminated)
        log.truncated.append(truncated)
        log.final_obs.append(shown)
        self.is_first, self.now = False, shown
        return shown.copy(), reward, terminated, truncated, {}

    def _draw(self) -> np.ndarray:
        return random_box(self.observation_space, self.random, ())


class Scripted(gym.Env[Any, Any]):
    """Plays one row of a script; its observation IS the value that a critic has to give it."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, script: TracedRollout, row: int):
        self.row, self.t = row, 0
        assert script.value is not None
        assert script.reward is not None
        self.script = script
        self.values = script.value[:, row].tolist()
        last = 0.0 if script.bootstrap is None else float(script.bootstrap[row])
        self.following = [*self.values[1:], last]
        self.is_over = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins at the script's next step."""
        return self._obs(self.values[0] if self.t == 0 else self.following[self.t - 1]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The script's next step."""
        t, script = self.t, self.script
        self.t += 1
        terminated, truncated = (bool(flag[t, self.row]) for flag in (script.terminated, script.truncated))
        shown = self.following[t]
        if terminated:
            shown = POISON
        elif truncated:
            shown = POISON if script.final_value is None else float(script.final_value[t, self.row])
        assert script.reward is not None
        return self._obs(shown), float(script.reward[t, self.row]), terminated, truncated, {}

    def _obs(self, value: float) -> np.ndarray:
        return np.array([value], np.float32)


def random_box(space: gym.Space[Any], random: np.random.Generator, lead: Sequence[int]) -> np.ndarray:
    """[*lead, ...]: observations of a Box, within its bounds where it has any."""
    if not isinstance(space, gym.spaces.Box):
        raise TypeError(f"the auditor's env has Box observations only, this trainer's space is {space}")
    low, high = np.maximum(space.low, -2.0), np.minimum(space.high, 2.0)
    return random.uniform(low, high, (*lead, *space.shape)).astype(space.dtype)


def rollout(logs: Sequence[Log], steps: int = STEPS, skip: int | Sequence[int] = 0) -> dict[str, Tensor]:
    """[steps, B]: obs, first, reward, terminated, truncated, final_obs of the rows, from step ``skip`` on.

    ``skip``: of all rows, or of each.
    """
    found = {}
    starts = [skip] * len(logs) if isinstance(skip, int) else skip
    for name in ("obs", "first", "reward", "terminated", "truncated", "final_obs"):
        rows = [np.asarray(getattr(log, name)[begin : begin + steps]) for log, begin in zip(logs, starts)]
        found[name] = torch.as_tensor(np.stack(rows, axis=1))
        if found[name].is_floating_point():
            found[name] = found[name].float()
    return found


def positions(steps: int, rows: int) -> Tensor:
    """[T, B]: t * B + row, the numbers of the steps."""
    return torch.arange(steps * rows).view(steps, rows)
