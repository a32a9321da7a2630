"""The contract between the trainer and those who collect for it, wherever they live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, SupportsFloat

import numpy as np
from torch import Tensor

from recollect.experience.rollout import Rollout

if TYPE_CHECKING:
    from recollect.runtimes.learners import MakePeer


@dataclass(slots=True)
class Batch:
    """What one update learns from. The rollouts hold until the next ``collect``."""

    rollouts: list[Rollout]
    """In order: of the actors in lockstep, of the tickets else."""
    seconds: Mapping[str, SupportsFloat]
    """What collecting it took of the wall clock, by what it was spent on. To read them may mean to wait."""
    info: dict[str, float] = field(default_factory=dict)
    """Means over it of what the env reports, as ``info/NAME``."""
    metrics: dict[str, float] = field(default_factory=dict)
    """About the crew itself, by the names of the glossary."""
    restarted: set[int] = field(default_factory=set)
    """Actors that died and began new episodes before their (first) rollout in it."""
    notes: list[str] = field(default_factory=list)
    """What the user should hear, such as who died."""


class Crew(Protocol):
    """Actors with their envs, in this process or in others.

    The trainer calls ``collect(k)`` for the experience that update k learns from, updates the weights,
    and calls ``publish(k + 1)``. In lockstep all of a batch was acted by version k; in async mode by
    versions from k - max_lag on, and every rollout says by which.
    """

    rows: int
    """Of a batch of one rollout per actor."""
    is_exact: bool
    """Whether ``snapshot`` can be gone on from bit for bit, envs permitting: not if actors run ahead."""

    @property
    def host(self) -> str:
        """The address of this machine for other learners."""
        ...

    @property
    def make_peer(self) -> MakePeer | None:
        """Starts another learner where this crew lives; None: in a process on this machine."""
        ...

    def collect(self, version: int) -> Batch:
        """The experience for update ``version``."""
        ...

    def recall(self, metrics: Mapping[str, float]) -> None:
        """Go on counting from the last metrics of a run that is resumed."""
        ...

    def publish(self, version: int) -> None:
        """The policy's weights are now ``version``."""
        ...

    def restart_episodes(self) -> None:
        """Begin new episodes at the next ``collect``."""
        ...

    def snapshot(self) -> dict[str, Tensor] | None:
        """All that decides the next rollouts, by the same names in every runtime; None: it cannot be told."""
        ...

    def restore(self, snapshot: dict[str, Tensor], version: int) -> bool:
        """Go on from what ``snapshot`` returned; False, and nothing is changed, if it does not fit."""
        ...

    def close(self) -> None:
        """End all envs and processes."""
        ...


def stream(*key: int) -> int:
    """A seed for one of the random streams of a run: distinct for every (seed, role, index)."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(2))


def actor_stream(seed: int, updates: int, index: int, life: int = 0, again: int = 0) -> int:
    """The seed of an actor that begins new episodes after ``updates``.

    ``life``: how often it died before; ``again``: how often it lost its episodes in this life.
    """
    key = [index, life, again] if again else [index, life] if life else [index] if index else []
    return stream(seed, 1, updates, *key)


def merged(parts: Sequence[dict[str, Tensor] | None]) -> dict[str, Tensor] | None:
    """The snapshots of all actors as one, ``INDEX/NAME`` if there are several."""
    if len(parts) == 1:
        return parts[0]
    found: dict[str, Tensor] = {}
    for index, part in enumerate(parts):
        if part is None:
            return None
        found |= {f"{index}/{name}": tensor for name, tensor in part.items()}
    return found


def parted(snapshot: dict[str, Tensor], actors: int) -> list[dict[str, Tensor]]:
    """What ``merged`` was given; empty parts where there is nothing for an actor."""
    if actors == 1:
        return [snapshot]
    parts: list[dict[str, Tensor]] = [{} for _ in range(actors)]
    for name, tensor in snapshot.items():
        index, _, rest = name.partition("/")
        if index.isdecimal() and int(index) < actors:
            parts[int(index)][rest] = tensor
    return parts


def mean_info(infos: Sequence[tuple[dict[str, float], int]]) -> dict[str, float]:
    """The means over several rollouts, each weighed by its rows."""
    found: dict[str, tuple[float, int]] = {}
    for info, rows in infos:
        for name, value in info.items():
            total, count = found.get(name, (0.0, 0))
            found[name] = total + value * rows, count + rows
    return {name: total / count for name, (total, count) in sorted(found.items())}
