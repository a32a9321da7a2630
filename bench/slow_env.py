"""An env whose every step takes its time: asleep, as one that waits for a simulator, or busy on its core."""

from __future__ import annotations

import time
from typing import Any, Literal

import gymnasium as gym
import numpy as np


class Slow(gym.Env):
    """Episodes of ``length`` steps, each ``milliseconds`` long; the observation says what to answer."""

    def __init__(self, kind: Literal["asleep", "busy"], milliseconds: float = 1.0, length: int = 200):
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._is_busy, self._seconds, self._length = kind == "busy", milliseconds / 1e3, length
        self._steps, self._sign = 0, 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._steps = 0
        return self._observation(), {}

    def step(self, action: int):
        if self._is_busy:
            # Its own time on a core, not that of the clock: who shares the core with others takes longer.
            ends = time.thread_time() + self._seconds
            while time.thread_time() < ends:
                for _ in range(400):  # some microseconds: to ask for the time is a call of the system
                    pass
        else:
            time.sleep(self._seconds)
        self._steps += 1
        reward = float((self._sign > 0) == bool(action))
        return self._observation(), reward, False, self._steps >= self._length, {}

    def _observation(self) -> np.ndarray:
        self._sign = 1 if self.np_random.random() < 0.5 else -1
        return np.array([self._sign, self._steps / self._length, 0.0, 0.0], np.float32)
