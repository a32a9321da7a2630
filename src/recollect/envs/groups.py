"""Several agents: the groups that share a policy, and the interface of an env with more than one group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import gymnasium as gym
import torch

from recollect.base.types import Step, Tree


@dataclass(frozen=True, slots=True)
class Group:
    """Agents that one policy plays. They have equal spaces."""

    agents: tuple[str, ...]
    """Their names, in the order of the env."""
    observation_space: gym.Space
    """Of one agent."""
    action_space: gym.Space
    """Of one agent."""


@runtime_checkable
class GroupedEnv(Protocol):
    """An env of ``num_envs`` slots whose agents are in groups.

    The rows of each group obey the rules of ``BatchedEnv``: row = slot * agents of the group + agent. An
    agent that dies has its end (``terminated`` or ``truncated``) in that step, and invalid rows until its
    slot starts a new episode, where ``first`` is true for all agents of the slot.
    """

    @property
    def num_envs(self) -> int:
        """Number of env slots."""
        ...

    @property
    def groups(self) -> Mapping[str, Group]:
        """The groups by name, in a fixed order."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        ...

    def reset(self, seed: int) -> dict[str, Tree]:
        """Restart all slots; ``seed`` determines all steps. Returns the obs [B, ...] of each group."""
        ...

    def step(self, action: Mapping[str, Tree]) -> dict[str, Step]:
        """Apply the actions [B, ...] of each group; actions of rows without a living agent are ignored."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...
