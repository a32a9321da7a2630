"""Rollouts of several groups of agents, recorded together: runtimes pass them on like a ``Rollout``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from recollect.base.types import Tree
from recollect.experience.rollout import Header, Rollout


@dataclass(frozen=True, slots=True)
class GroupHeader:
    """The headers of a ``GroupRollout`` by group."""

    parts: dict[str, Header]

    @property
    def actor(self) -> int:
        """Index of the actor."""
        return next(iter(self.parts.values())).actor

    @property
    def sequence(self) -> int:
        """Index of the rollout within its actor."""
        return next(iter(self.parts.values())).sequence


@dataclass(frozen=True, slots=True)
class GroupRollout:
    """The rollouts of one actor by group. Their steps are those of the same envs."""

    parts: dict[str, Rollout]

    @property
    def version(self) -> int:
        """Version of the weights that acted."""
        return self._one.version

    @property
    def actor(self) -> int:
        """Index of the actor."""
        return self._one.actor

    @property
    def valid_steps(self) -> int:
        """The number of valid steps of all groups."""
        return sum(part.valid_steps for part in self.parts.values())

    def to(self, device: torch.device | str) -> GroupRollout:
        """The same rollouts on a device."""
        return GroupRollout({name: part.to(device) for name, part in self.parts.items()})

    @staticmethod
    def join(
        rollouts: Sequence[GroupRollout], *, is_mixed: bool = False, into: GroupRollout | None = None
    ) -> GroupRollout:
        """Concatenate the rows of each group; see ``Rollout.join``."""
        return GroupRollout(
            {
                name: Rollout.join(
                    [rollout.parts[name] for rollout in rollouts],
                    is_mixed=is_mixed,
                    into=None if into is None else into.parts[name],
                )
                for name in rollouts[0].parts
            }
        )

    def slot(self) -> dict[str, Tree]:
        """Tensors shaped like the memory that holds such rollouts; see ``Rollout.slot``."""
        return {f"group/{name}": part.slot() for name, part in self.parts.items()}

    def write_finals(self, slot: Tree) -> GroupHeader:
        """For rollouts whose tensors were recorded in the slot itself; see ``Rollout.write_finals``."""
        return GroupHeader(
            {name: part.write_finals(slot[f"group/{name}"]) for name, part in self.parts.items()}
        )

    @property
    def _one(self) -> Rollout:
        return next(iter(self.parts.values()))


AnyRollout = Rollout | GroupRollout
"""Of an actor with one group of agents, or with several."""
AnyHeader = Header | GroupHeader
"""Of an ``AnyRollout``."""


def by_group(rollout: AnyRollout) -> dict[str, Rollout]:
    """The rollouts by group; that of an env with one group has the name ""."""
    return rollout.parts if isinstance(rollout, GroupRollout) else {"": rollout}


def read(slot: Tree, header: AnyHeader) -> Any:
    """The rollout in a slot, or the rollouts of several groups. The tensors are the memory of the slot."""
    if isinstance(header, Header):
        return Rollout.read(slot, header)
    return GroupRollout(
        {name: Rollout.read(slot[f"group/{name}"], one) for name, one in header.parts.items()}
    )


def join(rollouts: Sequence[Any], *, is_mixed: bool = False, into: Any = None) -> Any:
    """Concatenate the rows of the rollouts of several actors, group by group."""
    return type(rollouts[0]).join(rollouts, is_mixed=is_mixed, into=into)
