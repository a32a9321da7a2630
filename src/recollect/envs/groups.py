"""Several agents: the groups that share a policy, and the interface of an env with more than one group."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import gymnasium as gym
import torch

from recollect.base import tree
from recollect.base.types import Step, Tree
from recollect.envs.contract import Adjustable, BatchedEnv, EnvWrapper, Resumable
from recollect.errors import ConfigError, EnvError, SpaceError, nearest

Policies = str | Mapping[str, str | Sequence[str]]
"""``"shared"``, ``"independent"``, or the agents of each group: names or patterns, such as "archer_*"."""


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
    slot starts a new episode, where ``first`` is true for all agents that are present. An agent that appears
    later in an episode has invalid rows until then, also after ``reset``; ``first`` marks its appearance.

    A ``Resumable`` one has the snapshot of all groups, with slots as the first dimension; ``restore`` returns
    the obs of each group.
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


class OneGroup:
    """A BatchedEnv as a GroupedEnv with one group."""

    def __init__(self, env: BatchedEnv, name: str):
        self._env, self._name = env, name
        self.num_envs, self.device = env.num_envs, env.device
        self.groups = {name: Group(agent_names(env), env.observation_space, env.action_space)}
        if isinstance(env, Resumable):
            self.snapshot, self.restore = env.snapshot, lambda snapshot: {name: env.restore(snapshot)}
        if isinstance(env, Adjustable):
            self.adjustable, self.adjust = env.adjustable, env.adjust

    def reset(self, seed: int) -> dict[str, Tree]:
        """Restart all slots."""
        return {self._name: self._env.reset(seed)}

    def step(self, action: Mapping[str, Tree]) -> dict[str, Step]:
        """Apply the actions of the group."""
        return {self._name: self._env.step(action[self._name])}

    def close(self) -> None:
        """Close the env."""
        self._env.close()


class AgentGroups:
    """A BatchedEnv of several agents as a GroupedEnv whose groups have policies of their own.

    Its snapshots have slots as the first dimension, as those of the built-in tasks.
    """

    def __init__(self, env: BatchedEnv, agents: Sequence[str], policies: Policies):
        """``agents``: the names of a slot's agents, in the order of its rows."""
        self._env = env
        self.num_envs, self.device = env.num_envs, env.device
        spaces = (env.observation_space, env.action_space)
        self.groups = make_groups(policies, dict.fromkeys(agents, spaces))
        slots = torch.arange(env.num_envs, device=env.device).unsqueeze(1) * env.agents
        self._rows = {
            name: (slots + slots.new_tensor([agents.index(agent) for agent in group.agents])).flatten()
            for name, group in self.groups.items()
        }
        rows = torch.cat([*self._rows.values()])
        self._order = torch.empty_like(rows).scatter_(0, rows, torch.arange(len(rows), device=env.device))
        """The place of each row of the env in the rows of all groups one after another."""
        if isinstance(env, Resumable):  # on the instance: ``isinstance(env, Resumable)`` is exact
            self.snapshot, self.restore = env.snapshot, lambda snapshot: self._split(env.restore(snapshot))
        if isinstance(env, Adjustable):
            self.adjustable, self.adjust = env.adjustable, env.adjust

    def reset(self, seed: int) -> dict[str, Tree]:
        """Restart all slots."""
        return self._split(self._env.reset(seed))

    def step(self, action: Mapping[str, Tree]) -> dict[str, Step]:
        """Apply the actions of all groups."""
        check_actions(self.groups, action)
        for name, rows in self._rows.items():
            shapes = [tuple(leaf.shape) for leaf in tree.leaves(action[name])]
            if any(shape[:1] != (len(rows),) for shape in shapes):
                raise EnvError(
                    f"step got actions of shape {shapes[0]} for group {name!r}, which has {len(rows)} rows: "
                    "row = slot * agents of the group + agent"
                )
        actions = tree.cat([action[name] for name in self.groups])
        step = self._env.step(tree.index(actions, self._order))
        own = {name: value for name, value in step.info.items() if len(value) == len(self._order)}
        parts = self._split({field.name: getattr(step, field.name) for field in fields(step)} | {"info": own})
        return {name: Step(**part | {"info": {**step.info, **part["info"]}}) for name, part in parts.items()}

    def close(self) -> None:
        """Close the env."""
        self._env.close()

    def _split(self, values: Tree) -> dict[str, Tree]:
        """The rows of each group in a tree [B, ...]."""
        return {name: tree.index(values, rows) for name, rows in self._rows.items()}


def agent_names(env: BatchedEnv) -> tuple[str, ...]:
    """The names of the agents of a slot: those of its ``agent_names``, else their numbers."""
    numbers = tuple(map(str, range(env.agents)))
    while isinstance(env, EnvWrapper) and not hasattr(env, "agent_names"):
        env = env.env
    names = tuple(getattr(env, "agent_names", ()))
    return names if len(names) == len(numbers) else numbers


def check_actions(groups: Mapping[str, Group], action: Mapping[str, Tree]) -> None:
    """Raise EnvError unless ``action`` has the actions of each group, and no others."""
    if action.keys() != groups.keys():
        raise EnvError(f"step got the actions of {sorted(action)}: give those of {', '.join(groups)}")


def make_groups(policies: Policies, agents: Mapping[str, tuple[gym.Space, gym.Space]]) -> dict[str, Group]:
    """The groups of ``agents``, which have an observation and an action space each, by name.

    ``"shared"`` is one group, "agents"; ``"independent"`` has a group for each agent, with its name.
    """
    if not agents:
        raise ConfigError("the env has no agents: possible_agents must name at least one")
    if policies == "shared":
        return {"agents": _group("agents", list(agents), agents)}
    if policies == "independent":
        for name in agents:
            _check_name(name, "choose one by a mapping, such as {'left': 'team/0'}")
        return {name: _group(name, [name], agents) for name in agents}
    if not isinstance(policies, Mapping):
        hint = nearest(policies, ("shared", "independent")) if isinstance(policies, str) else ""
        raise ConfigError(
            f"policies is {policies!r}{hint}: choose 'shared', 'independent', or a mapping from each group "
            "to its agents"
        )
    members = {group: _matching(group, names, agents) for group, names in policies.items()}
    for name in agents:
        homes = [group for group, own in members.items() if name in own]
        if len(homes) != 1:
            found = f"in the groups {' and '.join(homes)}" if homes else "in no group"
            raise ConfigError(f"policies: agent {name!r} is {found}: name it in exactly one")
    return {group: _group(group, own, agents) for group, own in members.items()}


def _check_name(group: object, fix: str) -> None:
    """Names of groups are parts of the names of metrics and tensors."""
    if not isinstance(group, str) or not group or set(group) & set("/.:"):
        raise ConfigError(f"policies: {group!r} cannot be the name of a group: {fix}, without / . and :")


def _matching(group: str, patterns: str | Sequence[str], agents: Mapping[str, object]) -> list[str]:
    """The agents of a group in the order of the env."""
    _check_name(group, "use a text such as 'archers'")
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    if not patterns:
        raise ConfigError(f"policies: group {group!r} has no agents: name some, or leave the group out")
    for pattern in patterns:
        if not isinstance(pattern, str) or not any(fnmatch.fnmatchcase(name, pattern) for name in agents):
            raise ConfigError(
                f"policies: group {group!r} has {pattern!r}, which is no agent of the env"
                f"{nearest(str(pattern), agents)}: it has {', '.join(agents)}"
            )
    return [name for name in agents if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def _group(group: str, names: list[str], agents: Mapping[str, tuple[gym.Space, gym.Space]]) -> Group:
    observation, action = agents[names[0]]
    for name in names[1:]:
        for kind, own, other in zip(
            ("observation_space", "action_space"), agents[name], (observation, action)
        ):
            if own != other:
                raise SpaceError(
                    f"policies: {names[0]!r} and {name!r} cannot share a policy (group {group!r}), because "
                    f"their spaces differ: {kind} is {other} and {own}. Use policies='independent', a "
                    "mapping with groups of equal spaces, or pad the smaller one in a wrapper"
                )
    return Group(tuple(names), observation, action)
