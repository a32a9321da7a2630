"""Rollouts: T steps of B rows, time-major, as an actor recorded them.

Each field of a rollout is listed here and nowhere else: moving it to a device, selecting rows, joining the
rollouts of several actors, and passing it to another process are methods. Another process gets the tensors
through memory of a fixed layout (``slot``) and the rest as a small message (``Header``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import gymnasium as gym
import torch
from torch import Tensor

from recollect.base import spaces, tree
from recollect.base.types import State, Tree
from recollect.config.algo_shared import LearnerConfig
from recollect.errors import RecollectError
from recollect.policy.policy import Policy

ROW_DIMENSION = dict.fromkeys(
    ("obs", "first", "action", "record", "reward", "terminated", "truncated", "valid", "final_value"), 1
) | {"bootstrap": 0, "states": 1}
"""The tensors of a rollout except its finals, and the dimension of each that counts rows."""


@dataclass(slots=True)
class Finals:
    """The observations before the resets of truncated episodes, N of them, in order of time."""

    time: Tensor
    """[N] int64: the truncated step t."""
    row: Tensor
    """[N] int64."""
    obs: Tree
    """[N, ...] the observation after step t."""

    def map(self, fn: Callable[[Tensor], Tensor]) -> Finals:
        """Apply ``fn`` to every tensor."""
        return Finals(fn(self.time), fn(self.row), tree.map(fn, self.obs))


@dataclass(frozen=True, slots=True)
class Header:
    """All of a rollout except the tensors in its slot."""

    state_steps: tuple[int, ...]
    actor: int
    sequence: int = 0
    version: int = 0
    finals: int | Finals = 0
    """The number of finals in the slot; the finals themselves if the slot has no room for them."""


@dataclass(slots=True)
class Rollout:
    """T steps of B rows, recorded by one actor under one version of the weights."""

    obs: Tree
    """[T + 1, B, ...]"""
    first: Tensor
    """[T + 1, B] bool"""
    action: Tree
    """[T, B, ...] as stored: see ``Policy.to_env``."""
    record: dict[str, Tensor]
    """The outputs of the policy beside the action, [T, B] each; the algorithm chooses them."""
    reward: Tensor
    """[T, B]"""
    terminated: Tensor
    """[T, B] bool"""
    truncated: Tensor
    """[T, B] bool"""
    valid: Tensor
    """[T, B] bool"""
    final_value: Tensor
    """[T, B], where truncated"""
    bootstrap: Tensor
    """[B]"""
    state_steps: tuple[int, ...]
    """The steps, ascending from 0, whose raw input states are stored."""
    states: State
    """[S, B, ...]: the states at ``state_steps``."""
    finals: Finals | None = None
    """The observations before the resets of truncated episodes."""
    actor: int = 0
    """Index of the actor."""
    sequence: int = 0
    """Index of this rollout within its actor."""
    version: int = 0
    """Version of the weights that acted."""

    @property
    def steps(self) -> int:
        """T."""
        return self.reward.shape[0]

    @property
    def rows(self) -> int:
        """B."""
        return self.reward.shape[1]

    def state_at(self, step: int) -> State:
        """The stored raw input state of a step, [B, ...]."""
        if step not in self.state_steps:
            raise RecollectError(
                f"the state at step {step} was not stored (stored: {self.state_steps}): the actor and the "
                "learner disagree about the chunk length or the burn-in"
            )
        slot = self.state_steps.index(step)
        return tree.index(self.states, slot)

    def tensors(self) -> dict[str, Tree]:
        """All tensors except the finals, by name."""
        return {name: getattr(self, name) for name in ROW_DIMENSION}

    def to(self, device: torch.device | str) -> Rollout:
        """The same rollout on a device."""
        if self.reward.device == torch.device(device):
            return self
        moved = {name: tree.to(value, device) for name, value in self.tensors().items()}
        finals = None if self.finals is None else self.finals.map(lambda leaf: leaf.to(device))
        return replace(self, **moved, finals=finals)

    def select_rows(self, begin: int, end: int) -> Rollout:
        """The rows from ``begin`` up to ``end``, exclusive. The tensors are views; the finals are copies."""
        parts = {
            name: tree.index(getattr(self, name), (slice(None),) * dim + (slice(begin, end),))
            for name, dim in ROW_DIMENSION.items()
        }
        finals = None
        if self.finals is not None:
            own = (self.finals.row >= begin) & (self.finals.row < end)
            if own.any():
                finals = self.finals.map(lambda leaf: leaf[own])
                finals.row -= begin
        return replace(self, **parts, finals=finals)

    @staticmethod
    def join(rollouts: Sequence[Rollout], *, is_mixed: bool = False, into: Rollout | None = None) -> Rollout:
        """Concatenate the rows of rollouts of equally many steps. A single rollout is returned as it is.

        Args:
            rollouts: in the order of their rows.
            is_mixed: whether their versions may differ; the oldest is then the version of the result.
            into: the result of an earlier call for the same shapes, whose memory is reused: allocating many
                megabytes costs more than the copy.
        """
        one = rollouts[0]
        if len(rollouts) == 1:
            return one
        versions = sorted({r.version for r in rollouts})
        if any(r.state_steps != one.state_steps for r in rollouts) or (len(versions) > 1 and not is_mixed):
            raise RecollectError(
                f"rollouts of versions {versions} cannot be joined: in lockstep the actors must act with the "
                "same weights and store the same states"
            )

        def joined(name: str, dim: int) -> Tree:
            parts = [getattr(r, name) for r in rollouts]
            if into is None:
                return tree.cat(parts, dim)
            return tree.map(lambda out, *xs: torch.cat(xs, dim, out=out), getattr(into, name), *parts)

        tensors = {name: joined(name, dim) for name, dim in ROW_DIMENSION.items()}
        return replace(one, **tensors, finals=_join_finals(rollouts), version=versions[0])

    # -- to another process -----------------------------------------------------------------------

    def slot(self) -> dict[str, Tree]:
        """Tensors shaped like the memory that holds such a rollout with its finals.

        The capacity for finals is fixed and seldom too small. Finals that do not fit travel in the header.
        """
        capacity = self.rows * max(2, self.steps // 16)
        index = torch.zeros(capacity, dtype=torch.int64)
        obs = tree.empty(tree.map(lambda leaf: leaf[0, :1], self.obs), (capacity,))
        return {"rollout": self.tensors(), "finals": {"time": index, "row": index.clone(), "obs": obs}}

    def write(self, slot: Tree) -> Header:
        """Copy the rollout to a slot. Returns the part that has to be sent."""
        tree.copy_(slot["rollout"], self.tensors())
        return self.write_finals(slot)

    def write_finals(self, slot: Tree) -> Header:
        """``write`` for a rollout whose tensors were recorded in the slot itself."""
        found, target = self.finals, slot["finals"]
        finals = 0 if found is None else len(found.time)
        if found is not None and finals > len(target["time"]):
            finals = found
        elif found is not None:
            source = {"time": found.time, "row": found.row, "obs": found.obs}
            tree.map(lambda to, leaf: to[: len(leaf)].copy_(leaf), target, source)
        return Header(self.state_steps, self.actor, self.sequence, self.version, finals)

    @classmethod
    def read(cls, slot: Tree, header: Header) -> Rollout:
        """The rollout in a slot. Its tensors are the memory of the slot."""
        finals = header.finals
        if isinstance(finals, int):
            finals = Finals(**tree.index(slot["finals"], slice(finals))) if finals else None
        return cls(
            **slot["rollout"],
            state_steps=header.state_steps,
            finals=finals,
            actor=header.actor,
            sequence=header.sequence,
            version=header.version,
        )


def _join_finals(rollouts: Sequence[Rollout]) -> Finals | None:
    offset, times, rows, obs = 0, [], [], []
    for rollout in rollouts:
        if rollout.finals is not None:
            times.append(rollout.finals.time)
            rows.append(rollout.finals.row + offset)
            obs.append(rollout.finals.obs)
        offset += rollout.rows
    if not times:
        return None
    time = torch.cat(times)
    order = time.argsort(stable=True)  # in order of time, as one actor records them
    return Finals(time[order], torch.cat(rows)[order], tree.index(tree.cat(obs), order))


@dataclass(frozen=True, slots=True)
class RolloutSize:
    """The memory that acting takes: the rollout, and the live state of the rows."""

    total: int
    """Bytes, without the final observations of envs that list them, which are few."""
    states: int
    """Bytes of ``total`` that are stored states."""


def rollout_bytes(
    observation_space: gym.Space,
    action_space: gym.Space,
    state: State,
    *,
    rows: int,
    steps: int,
    stored: int,
    places: int = 0,
) -> RolloutSize:
    """The size of a rollout of ``steps`` x ``rows`` with ``stored`` states, before it is allocated.

    ``state`` is that of one row, such as ``policy.initial_state(1)``; ``places`` is the number of truncations
    per row whose observation and state are kept (``acting.truncation.places``).
    """
    obs = tree.size_bytes(spaces.zeros(observation_space, 1))
    action = tree.size_bytes(spaces.zeros(action_space, 1))
    memory = tree.size_bytes(state)
    floats, flags = 4 * 4, 4  # log_prob, value, reward, final_value; first, terminated, truncated, valid
    per_row = steps * (obs + action + floats + flags) + obs + 1 + 4  # and obs[T], first[T], bootstrap
    live = obs + 1 + memory
    kept = places * (obs + memory + 8 + 2)  # and its time, whether it is used, and its ``first``
    return RolloutSize((per_row + live + kept + stored * memory) * rows, stored * memory * rows)


def rollout_size(algo: LearnerConfig, policy: Policy, rows: int, places: int = 0) -> RolloutSize:
    """The size of a rollout of ``rows`` rows with these settings; ``places``: see ``rollout_bytes``."""
    return rollout_bytes(
        policy.observation_space,
        policy.action_space,
        policy.initial_state(1),
        rows=rows,
        steps=algo.rollout,
        stored=len(algo.state_steps),
        places=places,
    )
