"""An env that repeats a log, whatever the actions are."""

from __future__ import annotations

import gymnasium as gym
import torch
from torch import Tensor

from recollect.audit.recorded_rollouts import EnvLog
from recollect.base import tree
from recollect.base.types import Step, Tree
from recollect.policy.policy import Policy


class Playback:
    """The observations and ends of a log, again and again, for a policy with these spaces.

    Where it starts again all rows begin an episode, so that no memory is carried over.
    """

    agents = 1

    def __init__(self, log: EnvLog, policy: Policy, truncation_gap: int | None = None) -> None:
        """With ``truncation_gap`` it is ``Capturable``."""
        if truncation_gap is not None:
            self.truncation_gap = truncation_gap
        self.log, self.num_envs, self.device = log, log.reward.shape[1], log.reward.device
        self.observation_space: gym.Space = policy.observation_space
        self.action_space: gym.Space = policy.action_space
        self.time = torch.zeros((), dtype=torch.int64)

    def reset(self, seed: int) -> Tree:
        """Start from the first step."""
        self.time.zero_()
        return self._now()

    def step(self, action: Tree) -> Step:
        """The next step of the log."""
        log, T = self.log, len(self.log.reward)
        t = int(self.time) % T
        self.time += 1
        return Step(
            obs=self._now(),
            first=log.first[t + 1] | (t + 1 == T),
            reward=log.reward[t],
            terminated=log.terminated[t],
            truncated=log.truncated[t],
            valid=log.valid[t],
            final_obs=tree.index(log.final_obs, t),
        )

    def _now(self) -> Tree:
        return tree.index(self.log.obs, int(self.time) % len(self.log.reward))

    def close(self) -> None:
        """Release nothing."""

    def snapshot(self) -> dict[str, Tensor]:
        """The time in the log."""
        return {"time": self.time.clone()}

    def restore(self, snapshot: dict[str, Tensor]) -> Tree:
        """Continue from there."""
        self.time.copy_(snapshot["time"])
        return self._now()
