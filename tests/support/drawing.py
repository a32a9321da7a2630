"""An env that draws itself, two that cannot, and agents for them."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from recollect.agent import Agent
from recollect.config.train import TrainConfig
from tests.support.agents import SMALL


class Drawing(gym.Env):
    """Draws how old the episode is: a frame of that grey. Episodes of four steps."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 50}
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)
    frame: Any = None

    def __init__(self, render_mode: str | None = None, size: int = 24, last_step: int = 4):
        self.render_mode, self.size, self.last_step, self.age = render_mode, size, last_step, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.age = 0
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.age += 1
        over = self.age == self.last_step
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), 1.0, over, False, {}

    def render(self) -> Any:
        assert self.render_mode == "rgb_array"
        return np.full((self.size, 2 * self.size, 3), self.age * 10, np.uint8)


class Undrawn(Drawing):
    """Needs something that is not here."""

    def render(self) -> Any:
        raise gym.error.DependencyNotInstalled('easel is not installed, run `pip install "easel"`')


class Misdrawn(Drawing):
    """Floats in place of bytes."""

    def render(self) -> Any:
        return np.zeros((4, 4, 3))


def new_agent(env: Any = "delayed-cue", **settings: Any) -> Agent:
    return Agent.create(env, TrainConfig().override(**SMALL | settings))
