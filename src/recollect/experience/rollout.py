"""Rollouts: T steps of B rows, time-major, as an actor recorded them.

Each field of a rollout is listed here and nowhere else: moving it to a device, selecting rows, joining the
rollouts of several actors, and passing it to another process are methods. Another process gets the tensors
through memory of a fixed layout (``slot``) and the rest as a small message (``Header``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recollect.base import spaces, tree
from recollect.base.types import State, Tree
from recollect.errors import RecollectError
from recollect.policy.head_contract import named_fields
from recollect.policy.policy import Policy

ROW_DIMENSION = dict.fromkeys(
    ("obs", "first", "action", "record", "reward", "terminated", "truncated", "valid", "final_value"), 1
) | {"bootstrap": 0, "states": 1}
"""The tensors of a rollout except its finals, and the dimension of each that counts rows."""


class Acting(NamedTuple):
    """The parts of a rollout that actors must record for an algorithm."""

    state_steps: tuple[int, ...]
    """Steps of a rollout whose input states are stored."""
    keeps_finals: bool
    """Whether the observations before the resets of truncated episodes are kept, to be evaluated again."""
    record: tuple[str, ...] | None = None
    """The fields of the head's record that are stored; None: all."""
    needs_values: bool = True
    """Whether ``final_value`` and ``bootstrap`` are computed, which needs a critic."""
    exploration: Callable[[int], Tensor] | None = None
    """How much each row explores, [B], of so many rows of all actors; None: the head needs none."""

    def keywords(self) -> dict[str, Any]:
        """The same as keywords of ``Actor``."""
        found = self._asdict()
        return found if self.exploration is not None else {k: found[k] for k in found if k != "exploration"}


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


@dataclass(frozen=True)
class Header:
    """All of a rollout except the tensors in its slot, by the names of its fields."""

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
    """What the head recorded beside the action, [T, B, ...] each; the algorithm names the fields."""
    reward: Tensor
    """[T, B]"""
    terminated: Tensor
    """[T, B] bool"""
    truncated: Tensor
    """[T, B] bool"""
    valid: Tensor
    """[T, B] bool"""
    state_steps: tuple[int, ...]
    """The steps, ascending from 0, whose raw input states are stored."""
    states: State
    """[S, B, ...]: the states at ``state_steps``."""
    final_value: Tensor | None = None
    """[T, B], where truncated; None unless the algorithm needs values."""
    bootstrap: Tensor | None = None
    """[B]; None unless the algorithm needs values."""
    finals: Finals | None = None
    """The observations before the resets of truncated episodes."""
    actor: int = 0
    """Index of the actor."""
    sequence: int = 0
    """Index of this rollout within its actor."""
    version: int = 0
    """Version of the weights that acted."""
    joined: tuple[int, ...] = ()
    """The actors of joined rollouts, each of equally many rows, in the order of the rows."""

    @property
    def actors(self) -> tuple[int, ...]:
        """The actors, each of equally many rows, in the order of the rows."""
        return self.joined or (self.actor,)

    @property
    def steps(self) -> int:
        """T."""
        return self.reward.shape[0]

    @property
    def rows(self) -> int:
        """B."""
        return self.reward.shape[1]

    @property
    def valid_steps(self) -> int:
        """The number of valid steps. A host read."""
        return int(self.valid.sum())

    def state_at(self, step: int) -> State:
        """The stored raw input state of a step, [B, ...]."""
        if step not in self.state_steps:
            raise RecollectError(
                f"the state at step {step} was not stored (stored: {self.state_steps}): the actor and the "
                "learner disagree about the chunk length or the burn-in"
            )
        return tree.index(self.states, self.state_steps.index(step))

    def tensors(self) -> dict[str, Tree]:
        """All tensors except the finals, by name; without values that were not needed."""
        found = {name: getattr(self, name) for name in ROW_DIMENSION}
        return {name: value for name, value in found.items() if value is not None}

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
            name: tree.index(value, (slice(None),) * ROW_DIMENSION[name] + (slice(begin, end),))
            for name, value in self.tensors().items()
        }
        finals = self.finals
        if finals is not None:
            own = (finals.row >= begin) & (finals.row < end)
            finals = finals.map(lambda leaf: leaf[own]) if own.any() else None
        if finals is not None:
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

        tensors = {name: joined(name, ROW_DIMENSION[name]) for name in one.tensors()}
        actors = tuple(rollout.actor for rollout in rollouts)
        return replace(one, **tensors, finals=_join_finals(rollouts), version=versions[0], joined=actors)

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
        rest: dict[str, Any] = vars(header) | {"finals": finals}
        return cls(**slot["rollout"], **rest)


def _join_finals(rollouts: Sequence[Rollout]) -> Finals | None:
    offset, found = 0, []
    for rollout in rollouts:
        if rollout.finals is not None:
            found.append((rollout.finals.time, rollout.finals.row + offset, rollout.finals.obs))
        offset += rollout.rows
    if not found:
        return None
    times, rows, obs = zip(*found)
    time = torch.cat(times)
    order = time.argsort(stable=True)  # in order of time, as one actor records them
    return Finals(time[order], torch.cat(rows)[order], tree.index(tree.cat(obs), order))


class RolloutSize(NamedTuple):
    """The memory that acting takes: the rollout, and the live state of the rows."""

    total: int
    """Bytes, without the final observations of envs that list them, which are few."""
    states: int
    """Bytes of ``total`` that are stored states."""


def rollout_size(policy: Policy, rows: int, acting: Acting, *, steps: int, slots: int = 0) -> RolloutSize:
    """The size of a rollout of ``steps`` x ``rows`` for an algorithm, before it is allocated.

    ``slots`` is the number of truncations per row whose observation and state are kept
    (``acting.truncation.truncation_slots``).
    """
    obs = tree.size_bytes(spaces.zeros(policy.observation_space, 1))
    action = tree.size_bytes(spaces.zeros(policy.action_space, 1))
    memory = tree.size_bytes(policy.initial_state(1))
    fields = named_fields(policy.head, acting.record).values()
    record = sum(math.prod(field.shape) * field.dtype.itemsize for field in fields)
    value = 4 if acting.needs_values else 0  # of final_value and bootstrap
    flags = 4  # first, terminated, truncated, valid
    per_row = steps * (obs + action + record + 4 + value + flags) + obs + 1 + value  # and obs[T], first[T]
    stored = len(acting.state_steps)
    live = obs + 1 + memory
    kept = slots * (obs + memory + 8 + 2)  # and its time, whether it is used, and its ``first``
    return RolloutSize((per_row + live + kept + stored * memory) * rows, stored * memory * rows)
