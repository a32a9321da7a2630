"""The contract between the trainer and the collector of its experience, in every runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, SupportsFloat

from torch import Tensor

from recollect.base.devices import Mean
from recollect.base.seeds import stream
from recollect.experience.group_rollout import AnyRollout

if TYPE_CHECKING:
    from recollect.runtimes.learner_group import MakePeer


@dataclass(slots=True)
class Batch:
    """The experience for one update. The next ``collect`` may overwrite its rollouts."""

    rollouts: Sequence[AnyRollout]
    """In the order of actors in lockstep, of tickets in async mode."""
    seconds: Mapping[str, SupportsFloat]
    """Wall-clock time of collecting, by activity. Reading a value may synchronise the device."""
    info: Mapping[str, SupportsFloat] = field(default_factory=dict)
    """Means of the numbers in ``Step.info``, as ``info/NAME``. Reading one may synchronise the device."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the collector, by the names of the glossary."""
    restarted: set[int] = field(default_factory=set)
    """Actors whose (first) rollout in the batch starts new episodes."""
    notes: list[str] = field(default_factory=list)
    """Messages to the user, such as restarts of actors."""


class Collector(Protocol):
    """Actors with their envs, in this process or in others.

    The trainer calls ``collect(k)`` for the experience of update k, updates the weights, and calls
    ``publish(k + 1)``. In lockstep, version k acted in the whole batch; in async mode, versions from
    k - max_lag on. Each rollout names its version.
    """

    rows: int
    """The rows of a batch with one rollout per actor."""
    is_exact: bool
    """Whether a run resumes bit for bit from ``snapshot``, if its envs can: false in async mode."""
    host: str
    """The address of this machine for other learners."""
    make_peer: MakePeer | None
    """Starts another learner on the machines of this collector; None: in a process on this machine."""

    def collect(self, version: int) -> Batch:
        """The experience for update ``version``."""
        ...

    def restore_counters(self, metrics: Mapping[str, float]) -> None:
        """Continue the counters from the last metrics of a resumed run."""
        ...

    def publish(self, version: int) -> None:
        """Give the actors the policy's present weights as ``version``."""
        ...

    def adjust(self, settings: dict[str, Any]) -> None:
        """Change settings of all envs (``envs.Adjustable``), each at the next reset of a slot.

        Called between two batches. In async mode rollouts that were begun may still have the old ones.
        """
        ...

    def restart_episodes(self) -> None:
        """Start new episodes at the next ``collect``."""
        ...

    def snapshot(self) -> dict[str, Tensor] | None:
        """The state that determines the next rollouts, under the same names in every runtime.

        None if an env has no snapshots.
        """
        ...

    def restore(self, snapshot: dict[str, Tensor], version: int) -> bool:
        """Resume from a snapshot. If it does not fit, return False and start new episodes."""
        ...

    def close(self) -> None:
        """Close all envs and end all processes."""
        ...


def actor_stream(seed: int, updates: int, index: int, restarts: int = 0, resets: int = 0) -> int:
    """The seed of an actor that starts new episodes after ``updates``.

    ``restarts``: of its process so far; ``resets``: how often it lost its episodes since the last one.
    """
    key = [index, restarts, resets] if resets else [index, restarts] if restarts else [index] if index else []
    return stream(seed, 1, updates, *key)


def merge_snapshots(parts: Sequence[dict[str, Tensor] | None]) -> dict[str, Tensor] | None:
    """The snapshots of all actors as one, with names ``INDEX/NAME`` if there are several."""
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    if len(found) == 1:
        return found[0]
    return {f"{index}/{name}": tensor for index, part in enumerate(found) for name, tensor in part.items()}


def split_snapshot(snapshot: dict[str, Tensor], actors: int) -> list[dict[str, Tensor]]:
    """The inverse of ``merge_snapshots``; the part of an actor without a snapshot is empty."""
    if actors == 1:
        return [snapshot]
    parts: list[dict[str, Tensor]] = [{} for _ in range(actors)]
    for name, tensor in snapshot.items():
        index, _, rest = name.partition("/")
        if index.isdecimal() and int(index) < actors:
            parts[int(index)][rest] = tensor
    return parts


def mean_info(infos: Sequence[tuple[Mapping[str, SupportsFloat], int]]) -> dict[str, Mean]:
    """The means over several rollouts, weighted by their rows."""
    found: dict[str, Mean] = {}
    for info, rows in infos:
        for name, value in info.items():
            found.setdefault(name, Mean()).add(value, rows)
    return dict(sorted(found.items()))
