"""A witness between actor and env: what really went in and out, to compare the records with."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium as gym
import torch
from torch import Tensor

from recollect.base import tree
from recollect.base.types import Step, Tree
from recollect.envs.contract import BatchedEnv


@dataclass(frozen=True, slots=True)
class Log:
    """T steps of B rows as the env lived them."""

    obs: Tree
    """[T + 1, B, ...]"""
    first: Tensor
    """[T + 1, B] bool"""
    action: Tree
    """[T, B, ...] as the env got it."""
    reward: Tensor
    """[T, B]"""
    terminated: Tensor
    """[T, B] bool"""
    truncated: Tensor
    """[T, B] bool"""
    valid: Tensor
    """[T, B] bool"""
    final_obs: Tree
    """[T, B, ...] where an episode ended"""

    @property
    def ended(self) -> Tensor:
        """[T, B] bool: an episode ended here."""
        return (self.terminated | self.truncated) & self.valid

    @property
    def cut(self) -> Tensor:
        """[T, B] bool: an episode was cut here and has a future that is not seen."""
        return self.truncated & ~self.terminated & self.valid

    @property
    def inside(self) -> Tensor:
        """[B] bool: rows that are within an episode after the last step."""
        return self.valid[-1] & ~self.ended[-1]


class Witness:
    """A BatchedEnv that passes everything on and keeps copies; ``take`` hands them out."""

    def __init__(self, env: BatchedEnv) -> None:
        self.env = env
        self._obs: list[Tree] = []
        self._first: list[Tensor] = []
        self._actions: list[Tree] = []
        self._steps: list[Step] = []

    @property
    def num_envs(self) -> int:
        """Env slots."""
        return self.env.num_envs

    @property
    def agents(self) -> int:
        """Agents in each slot."""
        return self.env.agents

    @property
    def observation_space(self) -> gym.Space:
        """Of one row."""
        return self.env.observation_space

    @property
    def action_space(self) -> gym.Space:
        """Of one row."""
        return self.env.action_space

    @property
    def device(self) -> torch.device:
        """Where all tensors live."""
        return self.env.device

    def reset(self, seed: int) -> Tree:
        """Reset the env and start a new log."""
        obs = self.env.reset(seed)
        rows = self.num_envs * self.agents
        self._obs = [tree.clone(obs)]
        self._first = [torch.ones(rows, dtype=torch.bool, device=self.device)]
        self._actions, self._steps = [], []
        return obs

    def step(self, action: Tree) -> Step:
        """Step the env and keep a copy of everything."""
        self._actions.append(tree.clone(action))
        step = self.env.step(action)
        self._obs.append(tree.clone(step.obs))
        self._first.append(step.first.clone())
        self._steps.append(
            Step(
                obs=(),
                first=self._first[-1],
                reward=step.reward.clone(),
                terminated=step.terminated.clone(),
                truncated=step.truncated.clone(),
                final_obs=tree.clone(step.final_obs),
                valid=step.valid.clone(),
            )
        )
        return step

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    def take(self) -> Log:
        """The steps since the last ``take`` or ``reset``, at least one."""
        log = Log(
            obs=tree.stack(self._obs),
            first=torch.stack(self._first),
            action=tree.stack(self._actions),
            reward=torch.stack([step.reward for step in self._steps]),
            terminated=torch.stack([step.terminated for step in self._steps]),
            truncated=torch.stack([step.truncated for step in self._steps]),
            valid=torch.stack([step.valid for step in self._steps]),
            final_obs=tree.stack([step.final_obs for step in self._steps]),
        )
        self._obs, self._first = self._obs[-1:], self._first[-1:]
        self._actions, self._steps = [], []
        return log
