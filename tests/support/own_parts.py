"""Code that a user names: an env with a text in its observation, wrappers, and all parts of a policy."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

import recollect as rc
from recollect.policy.heads import ActionHead

HERE = __name__
"""The module, as in ``f"{HERE}:World"``."""
TINY: dict[str, Any] = {
    "steps": 32,
    "num_envs": 2,
    "rollout": 8,
    "chunk": 4,
    "epochs": 1,
    "minibatches": 1,
    "threads": 1,
}
"""Settings of a run of a moment."""
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
"""The same as flags."""


class World(gym.Env):
    """An image, a direction and a text; the return is the number of ones that were chosen."""

    observation_space = spaces.Dict(
        {
            "direction": spaces.Discrete(4),
            "image": spaces.Box(0, 255, (7, 7, 3), np.uint8),
            "mission": spaces.Text(20),
        }
    )
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 4):
        self.length = length

    def _obs(self) -> dict[str, Any]:
        image = np.full((7, 7, 3), self.time, np.uint8)
        return {"direction": self.time % 4, "image": image, "mission": "go there"}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return self._obs(), float(action), self.time >= self.length, False, {}


class Flat(gym.ObservationWrapper):
    """The mean of the image, times ``scale``, as a vector of one."""

    def __init__(self, env: gym.Env, scale: float = 1.0):
        super().__init__(env)
        self.scale = scale
        self.observation_space = spaces.Box(0, 1e4, (1,), np.float32)

    def observation(self, observation: Any) -> np.ndarray:
        return np.array([observation["image"].mean() * self.scale], np.float32)


class Shifted(gym.ObservationWrapper):
    """Adds one; the result tells whether it came before or after a scale."""

    def observation(self, observation: Any) -> np.ndarray:
        return observation + 1


def not_an_env(env: gym.Env) -> int:
    return 3


def head_of_none(space: gym.Space, features: int) -> int:
    return 3


class Average(rc.Core):
    """Running averages of the input."""

    def __init__(self, input_size: int, hidden: int = 8):
        super().__init__(input_size, hidden)
        self.inward = nn.Linear(input_size, hidden)

    def initial_state(self, batch: int) -> Tensor:
        return torch.zeros(batch, self.output_size, device=self.inward.weight.device)

    def _step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        state = 0.5 * state + 0.5 * self.inward(x)
        return state.tanh(), state

    def _unroll(self, x: Tensor, state: Any, first: Tensor) -> tuple[Tensor, Any]:
        outputs = []
        for x_t, first_t in zip(x, first):
            y, state = self._step(x_t, self.reset(state, first_t))
            outputs.append(y)
        return torch.stack(outputs), state


class Wide(nn.Module):
    """An encoder of a vector."""

    def __init__(self, space: spaces.Box, width: int = 4):
        super().__init__()
        self.output_size = width
        self.linear = nn.Linear(space.shape[0], width)

    def forward(self, obs: Tensor) -> Tensor:
        return self.linear(obs)


class Sharp(ActionHead):
    """The built-in head with other logits."""

    def __init__(self, space: gym.Space, features: int, sharpness: float = 1.0):
        super().__init__(space, features)
        self.sharpness = sharpness

    def distribution(self, outputs: Tensor, mask: Any = None) -> Any:
        return super().distribution(outputs * self.sharpness, mask)


class Own(rc.Policy):
    """A policy of its own; this one is as any other."""

    def __init__(self, observation_space: gym.Space, action_space: gym.Space):
        super().__init__(observation_space, action_space, rc.PolicyConfig(core="gru"))
