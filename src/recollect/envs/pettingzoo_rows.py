"""The rows of one group of agents, filled by the single values of PettingZoo envs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor

from recollect.base import spaces
from recollect.base.types import Step, Tree
from recollect.envs.groups import Group
from recollect.envs.space_values import (
    Buffers,
    RowError,
    scalar,
    to_rows,
    write_rewards,
    write_row,
    write_rows,
)
from recollect.envs.user_wrappers import check_observation_space
from recollect.errors import EnvError, SpaceError

MASK = "action_mask"
"""The key of an action mask, in an observation or in an agent's info."""


class AgentError(EnvError):
    """An error in the values of one agent."""

    def __init__(self, group: Group, error: RowError) -> None:
        super().__init__(str(error))
        self.slot, k = divmod(error.row, len(group.agents))
        self.agent = group.agents[k]


class GroupRows:
    """The rows of one group: the values of the step in progress, and the arrays of the last one."""

    def __init__(self, group: Group, num_envs: int, masked: set[str]) -> None:
        self.is_masked = bool(masked) and not has_mask(group.observation_space)
        self.group = replace(group, observation_space=_with_mask(group)) if self.is_masked else group
        space = self.group.observation_space
        check_observation_space(space, f"agent {group.agents[0]}")
        list(spaces.walk(group.action_space, f"action_space of agent {group.agents[0]}"))
        self._rows = num_envs * len(group.agents)
        self._now, self.next = (Buffers(space, self._rows) for _ in range(2))
        self._absent = spaces.nearest_to_zero(space)
        if has_mask(space):
            self._absent[MASK] = _ones(self._absent[MASK])
        self._infos: dict[str, np.ndarray] = {}
        """The last number that each row has reported, NaN before."""

    def begin(self, action: Tree | None = None) -> None:
        """Start a step, or a reset without an action, in which all agents are absent so far."""
        if action is None:
            self._infos = {}
        else:
            self.actions = to_rows(self.group.action_space, action, self._rows)
        self.next.flags.fill(False)
        self.next.valid.fill(False)
        self.obs: list[Any] = [self._absent] * self._rows
        self.rewards: list[Any] = [0.0] * self._rows

    def seen(self, obs: Any, info: Mapping[str, Any]) -> Any:
        """The observation of an agent, with the action mask of its info if the group has such masks."""
        if not self.is_masked:
            return obs
        if MASK not in info:
            raise SpaceError(f"its info has no {MASK!r}, as it had at the start: return one in every step")
        return {**(obs if isinstance(obs, Mapping) else {"obs": obs}), MASK: info[MASK]}

    def write_final(self, row: int, obs: Any, info: Mapping[str, Any]) -> None:
        """Store the last observation of an agent; now, because an env may reuse one array for all of them."""
        if obs is None and not self.next.terminated[row]:
            raise SpaceError(
                "it is truncated, and observations has no entry for it: the value of its future is estimated "
                "from its last observation, so return that"
            )
        if obs is not None:
            obs = self.seen(obs, {MASK: self._absent[MASK], **info} if self.is_masked else info)
        write_row(
            self.group.observation_space, self.next.final_obs, row, self._absent if obs is None else obs
        )

    def report(self, row: int, info: Mapping[str, Any]) -> None:
        """Store the numbers of an info."""
        for name, value in info.items():
            number = scalar(value, "fiub")
            if number is not None and name != MASK:
                self._infos.setdefault(name, np.full(self._rows, np.nan, np.float32))[row] = number

    def finish(self) -> Step:
        """Write observations and rewards. Returns the Step."""
        try:
            write_rows(self.group.observation_space, self.next.obs, self.obs)
            write_rewards(self.next.reward, self.rewards)
        except RowError as error:
            raise AgentError(self.group, error) from None
        self._now, self.next = self.next, self._now
        known = {name: array for name, array in self._infos.items() if not np.isnan(array).any()}
        info: dict[str, Tensor] = {name: torch.from_numpy(array.copy()) for name, array in known.items()}
        return replace(self._now.step, info=info) if info else self._now.step


def has_mask(space: gym.Space) -> bool:
    """Whether observations of ``space`` have an action mask."""
    return isinstance(space, gym_spaces.Dict) and MASK in space.spaces


def _with_mask(group: Group) -> gym.Space:
    """The observation space of a group with the action masks of its infos."""
    space, action = group.observation_space, group.action_space
    if not isinstance(action, gym_spaces.Discrete):
        raise SpaceError(
            f"info[{MASK!r}] of agent {group.agents[0]} is for Discrete actions, and its action_space is "
            f"{action}: put the mask into the observation, a Dict with that key"
        )
    parts = dict(space.spaces) if isinstance(space, gym_spaces.Dict) else {"obs": space}
    return gym_spaces.Dict({**parts, MASK: gym_spaces.MultiBinary(int(action.n))})


def _ones(mask: Any) -> Any:
    """A mask, a tree of arrays, that allows all actions."""
    if isinstance(mask, dict):
        return {key: _ones(part) for key, part in mask.items()}
    return tuple(map(_ones, mask)) if isinstance(mask, tuple) else np.ones_like(mask)
