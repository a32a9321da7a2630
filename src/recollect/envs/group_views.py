"""``group_views``: a BatchedEnv for each group of a GroupedEnv, so that one actor can step each group.

The actors run interleaved (``acting.actor.interleaved``): each sends its actions, the last of them starts the
joint step, and each receives its own part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from recollect.base.types import Step, Tree
from recollect.envs.contract import Adjustable, AsyncStep, BatchedEnv, Resumable
from recollect.envs.groups import Group, GroupedEnv, OneGroup
from recollect.errors import EnvError

SEPARATOR = ":"
"""Between the group and the name of a tensor in a snapshot."""


def group_views(env: GroupedEnv) -> dict[str, BatchedEnv]:
    """A BatchedEnv for each group, in the order of ``env.groups``. Each is also ``AsyncStep``, and
    ``Resumable`` if ``env`` is.

    Reset (or restore) the first view first, then every other once with the same seed. The snapshot of the
    first view is that of the whole env, the others' are empty. Closing any view closes the env.
    """
    joint = _Joint(env)
    return {name: GroupView(joint, name) for name in env.groups}


class GroupView:
    """The rows of one group of a GroupedEnv, as a BatchedEnv."""

    def __init__(self, joint: _Joint, name: str) -> None:
        env, group = joint.env, joint.env.groups[name]
        self._joint, self._name = joint, name
        self.num_envs: int = env.num_envs
        self.agents, self.agent_names = len(group.agents), group.agents
        self.observation_space: gym.Space = group.observation_space
        self.action_space: gym.Space = group.action_space
        self.device: torch.device = env.device
        if isinstance(env, Resumable):  # on the instance: ``isinstance(view, Resumable)`` is exact
            self.snapshot, self.restore = self._snapshot, self._restore
        if isinstance(env, Adjustable):  # the env of all views
            self.adjustable, self.adjust = env.adjustable, env.adjust

    def reset(self, seed: int) -> Tree:
        """The first view resets the env; every other returns its obs [B, ...] of that reset."""
        return self._joint.restart(self._name, f"reset(seed={seed})", lambda env: env.reset(seed))

    def send(self, action: Tree) -> None:
        """Give the actions [B, ...] of this group; the last group to do so starts the joint step."""
        self._joint.send(self._name, action)

    def receive(self) -> Step:
        """The part of this group in the joint step."""
        return self._joint.receive(self._name)

    def step(self, action: Tree) -> Step:
        """Apply ``action`` [B, ...], if this is the only group."""
        if len(self._joint.env.groups) > 1:
            raise EnvError(
                f"the view of group {self._name!r} cannot step alone, because the agents of all groups step "
                "together: call send(action) of every view, then receive()"
            )
        self.send(action)
        return self.receive()

    def close(self) -> None:
        """Close the env of all views, once."""
        self._joint.close()

    def _snapshot(self) -> dict[str, Tensor]:
        return self._joint.env.snapshot() if self._name == self._joint.leader else {}

    def _restore(self, snapshot: dict[str, Tensor]) -> Tree:
        return self._joint.restart(self._name, "restore", lambda env: env.restore(snapshot))


class _Joint:
    """The state that the views of one env share."""

    def __init__(self, env: GroupedEnv) -> None:
        self.env: Any = env
        self._is_async = isinstance(env, AsyncStep)
        self.leader = next(iter(env.groups))
        """The group whose view resets and restores the env."""
        self._restarted = ""
        """The call that restarted the env, such as "reset(seed=1)"; empty before it, and after an error."""
        self._obs: dict[str, Tree] = {}
        """The observations of that call, for the views that have not made it yet."""
        self._actions: dict[str, Tree] = {}
        """The actions for the next joint step, of the groups that have sent theirs."""
        self._steps: dict[str, Step] = {}
        """The parts of the last joint step that were not received yet."""
        self._is_stepping = False
        """Whether an ``AsyncStep`` env has a step in progress."""
        self._is_closed = False

    def restart(self, name: str, call: str, restart: Callable[[Any], dict[str, Tree]]) -> Tree:
        """The obs of group ``name`` after a reset or restore; ``call`` describes it."""
        if name == self.leader:
            self._restarted, self._is_stepping = "", False
            self._obs, self._actions, self._steps = {}, {}, {}
            self._obs = dict(restart(self.env))
            self._restarted = call
        elif name not in self._obs or call != self._restarted:
            raise self._error(
                name,
                call,
                f"call it of the view of {self.leader!r} first, then once of every other, with the same seed "
                f"(the last call was {self._restarted or 'none'})",
            )
        return self._obs.pop(name)

    def send(self, name: str, action: Tree) -> None:
        """Store the actions of a group; with those of all groups, start the joint step."""
        if not self._restarted:
            raise self._error(name, "send", "call reset of every view first, also after an error")
        if self._obs:
            raise self._error(
                name, "send", f"call {self._restarted} of the view of {next(iter(self._obs))!r}"
            )
        if name in self._actions or name in self._steps or self._is_stepping:
            raise self._error(name, "send", "call receive() for the step that send() began")
        self._actions[name] = action
        if len(self._actions) < len(self.env.groups):
            return
        actions, self._actions = {group: self._actions[group] for group in self.env.groups}, {}
        restarted, self._restarted = self._restarted, ""  # stays empty if the step fails
        if self._is_async:
            self.env.send(actions)
            self._is_stepping = True
        else:
            self._steps = dict(self.env.step(actions))
        self._restarted = restarted

    def receive(self, name: str) -> Step:
        """The part of a group in the joint step; the first group to receive waits for its end."""
        if self._is_stepping:
            restarted, self._restarted, self._is_stepping = self._restarted, "", False
            self._steps = dict(self.env.receive())
            self._restarted = restarted
        if name not in self._steps:
            missing = [group for group in self.env.groups if group not in self._actions]
            raise self._error(
                name,
                "receive",
                f"send(action) of {', '.join(map(repr, missing))} comes first: run the actors of all groups "
                "interleaved",
            )
        return self._steps.pop(name)

    def close(self) -> None:
        """Close the env, once."""
        if not self._is_closed:
            self._is_closed = True
            self.env.close()

    def _error(self, name: str, call: str, fix: str) -> EnvError:
        return EnvError(f"{call} of the view of group {name!r} cannot be called now: {fix}")


class Groups:
    """The views of a GroupedEnv with several groups, together: what a BatchedEnv is for one group.

    Also a GroupedEnv, whose tensors are those of the views; ``Resumable`` if all views are.
    """

    def __init__(self, views: dict[str, BatchedEnv], members: dict[str, tuple[str, ...]]) -> None:
        """``members``: the names of each group's agents."""
        self.views, self.members = views, members
        self._one = next(iter(views.values()))
        self.num_envs, self.device = self._one.num_envs, self._one.device
        self.agents = sum(view.agents for view in views.values())
        """Agents per slot, of all groups."""
        self.groups = {
            name: Group(members[name], view.observation_space, view.action_space)
            for name, view in views.items()
        }
        if all(isinstance(view, Resumable) for view in views.values()):
            self.snapshot, self.restore = self._snapshot, self._restore
        if isinstance(self._one, Adjustable):
            self.adjustable, self.adjust = self._one.adjustable, self._one.adjust

    def reset(self, seed: int) -> dict[str, Tree]:
        """Restart all slots. Returns the obs [B, ...] of each group."""
        return {name: view.reset(seed) for name, view in self.views.items()}

    def step(self, action: Mapping[str, Tree]) -> dict[str, Step]:
        """Apply the actions [B, ...] of each group."""
        views: dict[str, Any] = self.views
        for name, view in views.items():
            view.send(action[name])
        return {name: view.receive() for name, view in views.items()}

    def close(self) -> None:
        """Close the env."""
        self._one.close()

    def _snapshot(self) -> dict[str, Tensor]:
        views: dict[str, Any] = self.views
        return {
            f"{name}{SEPARATOR}{key}": tensor
            for name, view in views.items()
            for key, tensor in view.snapshot().items()
        }

    def _restore(self, snapshot: dict[str, Tensor]) -> dict[str, Tree]:
        views: dict[str, Any] = self.views
        return {name: view.restore(group_part(snapshot, name)) for name, view in views.items()}


def group_part(snapshot: Mapping[str, Tensor], group: str) -> dict[str, Tensor]:
    """The tensors of one group in a snapshot of several."""
    prefix = f"{group}{SEPARATOR}"
    return {name.removeprefix(prefix): t for name, t in snapshot.items() if name.startswith(prefix)}


def joint(env: BatchedEnv | Groups) -> GroupedEnv:
    """The env as a GroupedEnv; an env with one group has the name ""."""
    return env if isinstance(env, Groups) else OneGroup(env, "")


def views_of(env: BatchedEnv | Groups) -> dict[str, BatchedEnv]:
    """The views by group; an env with one group has the name ""."""
    return env.views if isinstance(env, Groups) else {"": env}
