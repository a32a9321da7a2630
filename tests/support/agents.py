"""Small agents that train in a moment, and envs of every kind of space."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import gymnasium as gym
import numpy as np

import recollect as rc
from recollect.config.policy import EncoderConfig, HeadConfig
from recollect.cores import LSTMConfig

SMALL: dict[str, Any] = {
    "rollout": 8,
    "chunk": 4,
    "epochs": 1,
    "minibatches": 2,
    "num_envs": 2,
    "threads": 1,
    "core": LSTMConfig(hidden=8),
    "encoder": EncoderConfig(hidden=(8,)),
    "head": HeadConfig(gain=1.0),
}


def small_agent(env: Any = "delayed-cue", steps: int = 16, **settings: Any) -> rc.Agent:
    """An agent after an update; actions that depend on its memory."""
    return rc.train(env, steps=steps, progress=False, **(SMALL | settings))


class AnySpace(gym.Env):
    """Samples of its spaces; episodes of five steps, of which every other is cut."""

    def __init__(self, observation_space: gym.Space | None = None, action_space: gym.Space | None = None):
        self.observation_space = observation_space or gym.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = action_space or gym.spaces.Discrete(3)
        self.episodes = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
            self.episodes = 0
        self.age = 0
        self.episodes += 1
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        self.age += 1
        over = self.age == 5
        reward = float(self.np_random.normal())
        return self.observation_space.sample(), reward, over and self.episodes % 2 == 0, over, {}


OBSERVATIONS = {
    "box": gym.spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "bounds": gym.spaces.Box(np.array([-1.5, 0.1]), np.array([1.0, 2.0]), dtype=np.float64),
    "scalar": gym.spaces.Box(0, 1, ()),
    "image": gym.spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "discrete": gym.spaces.Discrete(4, start=-2),
    "multidiscrete": gym.spaces.MultiDiscrete([2, 3], dtype=np.int32),
    "multibinary": gym.spaces.MultiBinary(3),
    "binary_grid": gym.spaces.MultiBinary([2, 2]),
    "dict": gym.spaces.Dict(
        OrderedDict(z=gym.spaces.Box(-1, 1, (2,)), a=gym.spaces.Discrete(2), m=gym.spaces.MultiBinary(2))
    ),
    "tuple": gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (1,))]),
}
ACTIONS = {
    "discrete": gym.spaces.Discrete(3, start=5),
    "box": gym.spaces.Box(-2, 1, (2,)),
    "open_box": gym.spaces.Box(-np.inf, np.inf, (1,)),
    "scalar": gym.spaces.Box(-1, 1, ()),
    "multidiscrete": gym.spaces.MultiDiscrete([2, 3]),
    "multibinary": gym.spaces.MultiBinary(2),
    "dict": gym.spaces.Dict(
        OrderedDict(
            move=gym.spaces.Box(-1, 1, (2,)), fire=gym.spaces.Discrete(2), b=gym.spaces.MultiBinary(2)
        )
    ),
    "tuple": gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (1,))]),
}
