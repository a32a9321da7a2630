"""A batched env as a user would write one, made by a callable that gets ``num_envs``."""

from __future__ import annotations

import gymnasium as gym
import torch

from recollect.base.types import Step


class Recall:
    """A number is seen in an episode's first step, and to be said in its last; even rows are truncated."""

    agents = 1
    observation_space = gym.spaces.Box(-1.0, 3.0, (2,))
    action_space = gym.spaces.Discrete(3)

    def __init__(self, num_envs: int, length: int = 4, device: str | torch.device = "cpu"):
        self.num_envs, self.length, self.device = num_envs, length, torch.device(device)
        self.is_closed = False
        self._truncates = torch.arange(num_envs, device=self.device) % 2 == 0

    def reset(self, seed: int) -> torch.Tensor:
        self._random = torch.Generator(self.device).manual_seed(seed)
        self._age = torch.zeros(self.num_envs, device=self.device)
        self._number = self._drawn()
        return self._obs()

    def step(self, action: torch.Tensor) -> Step:
        is_last = self._age == self.length - 1
        reward = (is_last & (action == self._number)).float()
        self._age = self._age + 1
        final_obs = self._obs()
        self._age = torch.where(is_last, 0.0, self._age)
        self._number = torch.where(is_last, self._drawn(), self._number)
        return Step(
            obs=self._obs(),
            first=is_last,
            reward=reward,
            terminated=is_last & ~self._truncates,
            truncated=is_last & self._truncates,
            final_obs=final_obs,
            valid=torch.ones_like(is_last),
        )

    def close(self) -> None:
        self.is_closed = True

    def _drawn(self) -> torch.Tensor:
        return torch.randint(3, (self.num_envs,), generator=self._random, device=self.device)

    def _obs(self) -> torch.Tensor:
        shown = torch.where(self._age == 0, self._number.float(), -1.0)
        return torch.stack([shown, self._age / self.length], 1)


def make_recall(num_envs: int, **options: int) -> Recall:
    """A function in place of the class; it leaves the device open."""
    return Recall(num_envs, **options)
