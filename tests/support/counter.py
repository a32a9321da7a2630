"""An env whose every number tells where it comes from. Without torch: worker processes import it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

ACTIONS = 1000


class Counter(gym.Env):
    """Shows (episode, step, a random number, the last action) and ends after 1 to 4 steps.

    The action must be the one that ``choose`` finds for what was shown last: one that crosses into
    another episode, or is applied before its observation was shown, raises.
    """

    action_space = spaces.Discrete(ACTIONS)

    def __init__(self, as_dict: bool = False, length: int | None = None, one_array: bool = False) -> None:
        box = spaces.Box(-1, 1e6, (4,), np.float32)
        self.observation_space = spaces.Dict({"a": box, "b": spaces.Discrete(99)}) if as_dict else box
        self.as_dict, self.length, self.one_array = as_dict, length, one_array
        self.episode, self.row = -1, np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.episode = 0 if seed is not None else self.episode + 1
        self.left = self.length or int(self.np_random.integers(1, 5))
        self.ending = ((True, False), (False, True), (True, True))[self.np_random.integers(3)]
        self.t = 0
        return self._show(-1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        assert self.left > 0, "a step after the end"
        expected = _code(self.episode, self.t)
        assert action == expected, f"got the action {action}, and {expected} belongs to what was shown"
        self.t += 1
        self.left -= 1
        terminated, truncated = self.ending if self.left == 0 else (False, False)
        return self._show(action), self.episode + self.t / 100, terminated, truncated, {"noise": self.t}

    def _show(self, action: int) -> Any:
        self.row[:] = self.episode, self.t, self.np_random.random(), action
        row = self.row if self.one_array else self.row.copy()
        return {"b": self.t, "a": row} if self.as_dict else row


def _code(episode: int, t: int) -> int:
    return (episode * 7 + t) % ACTIONS
