"""Metrics and episodes of several groups of agents: of each as ``group/NAME/METRIC``, and of all together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain

import numpy as np

from recollect.experience.group_rollout import AnyRollout, by_group
from recollect.training.episodes import Episodes, EpisodeTracker

SUMMED = ("episodes", "sequences")
"""Metrics whose value for all groups is the sum; of any other it is the mean, the highest or the lowest."""


def merged(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The metrics of all groups. With one group, named "", they are its own."""
    if list(found) == [""]:
        return dict(found[""])
    every = {f"group/{group}/{name}": value for group, own in found.items() for name, value in own.items()}
    names = dict.fromkeys(chain.from_iterable(found.values()))
    return {
        name: _of_all(name, [own[name] for own in found.values() if name in own]) for name in names
    } | every


def metrics_of(group: str, merged: Mapping[str, float]) -> dict[str, float]:
    """The metrics of one group in those of all groups; with one group, named "", they are its own."""
    prefix = f"group/{group}/" if group else ""
    return {name.removeprefix(prefix): x for name, x in merged.items() if name.startswith(prefix)}


def _of_all(name: str, values: list[float]) -> float:
    if name in SUMMED:
        return sum(values)
    if name.startswith("deviation") or name.endswith("/max"):
        return max(values)
    return min(values) if name.endswith("/min") else sum(values) / len(values)


class GroupEpisodes:
    """The episodes of each group's agents; with one group, named "", an ``EpisodeTracker``."""

    def __init__(self, rows: Mapping[str, int], window: int = 100):
        """``rows``: of each group; ``window``: the last episodes of each that are kept."""
        self.trackers = {name: EpisodeTracker(count, window) for name, count in rows.items()}

    @property
    def count(self) -> int:
        """The number of episodes so far."""
        return sum(tracker.count for tracker in self.trackers.values())

    @property
    def recent(self) -> list[tuple[float, int]]:
        """Returns and lengths of the last episodes of each group."""
        return list(chain.from_iterable(tracker.recent for tracker in self.trackers.values()))

    def add(self, *rollouts: AnyRollout, restarted: Collection[int] = ()) -> Episodes:
        """The episodes that ended in these rollouts, group by group."""
        parts = [by_group(rollout) for rollout in rollouts]
        found = [
            tracker.add(*(part[name] for part in parts), restarted=restarted)
            for name, tracker in self.trackers.items()
        ]
        if len(found) == 1:
            return found[0]
        returns, lengths = (
            np.concatenate([getattr(one, column) for one in found]) for column in ("returns", "lengths")
        )
        return Episodes(returns, lengths, sum(one.steps for one in found))

    def metrics(self) -> dict[str, float]:
        """Count, return and length of the last episodes, of all groups and of each."""
        return merged({name: tracker.metrics() for name, tracker in self.trackers.items()})

    def snapshot(self) -> dict[str, np.ndarray]:
        """Copies of all state, as GROUP/NAME if there are several groups."""
        return {
            f"{group}/{name}" if group else name: value
            for group, tracker in self.trackers.items()
            for name, value in tracker.snapshot().items()
        }

    def restore(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Restore a ``snapshot`` of the same groups."""
        for group, tracker in self.trackers.items():
            prefix = f"{group}/" if group else ""
            tracker.restore(
                {name.removeprefix(prefix): v for name, v in snapshot.items() if name.startswith(prefix)}
            )
