"""What is known of actors elsewhere: where their time goes, how fast each is, what waits for whom."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from recollect.runtimes.actor_server import Report
from recollect.runtimes.collector import mean_info

SHOWN = 16
"""Actors whose own figures are logged; of more, only the slowest and the fastest."""


class Reports:
    """Sums over a run, and the metrics of every batch."""

    def __init__(self, actors: int):
        self.restarts = 0
        """Actors that were started anew so far."""
        self._steps = [0] * actors
        """Valid env steps of each so far."""
        self._last: list[tuple[float, int, float]] = [(time.monotonic(), 0, 0.0)] * actors
        """Of each: when it was last in a batch, how many valid steps it had there, and its speed."""

    def recall(self, metrics: Mapping[str, float]) -> None:
        """Go on counting from the last metrics of a run that is resumed."""
        self.restarts = int(metrics.get("restarts", 0))
        self._steps = [int(metrics.get(f"actor/{index}/steps", 0)) for index in range(len(self._steps))]

    def seconds(self, reports: Sequence[Report]) -> dict[str, float]:
        """What the batch took by the wall clock: actors work side by side, so the longest counts."""
        return {name: max(report.seconds[name] for report in reports) for name in ("env", "act")}

    def info(self, reports: Sequence[Report]) -> dict[str, float]:
        """The means over the batch of what the env reports."""
        return mean_info([(report.info, 1) for report in reports])

    def metrics(self, batch: Sequence[tuple[int, Report]], *, ready: int, running: int) -> dict[str, float]:
        """By the names of the glossary. ``batch``: who brought what."""
        reports = [report for _, report in batch]
        total = max(sum(_busy(report) for report in reports), 1e-9)
        names = {"env": "env", "act": "policy", "weights": "transport", "idle": "learner"}
        found = {
            f"time/{name}": sum(report.seconds[key] for report in reports) / total
            for key, name in names.items()
        }
        speeds = self._speeds(batch)
        for index, report in batch:
            self._steps[index] += report.steps
        found |= {"queue/ready": float(ready), "queue/running": float(running)}
        found |= {"restarts": float(self.restarts)}
        found |= {"actors/slowest": min(speeds), "actors/fastest": max(speeds)}
        if len(self._steps) <= SHOWN:
            found |= {f"actor/{index}/speed": speed for index, speed in enumerate(speeds)}
            found |= {f"actor/{index}/steps": float(steps) for index, steps in enumerate(self._steps)}
        return found

    def _speeds(self, batch: Sequence[tuple[int, Report]]) -> list[float]:
        """Of every actor. One that brought nothing is no faster than if it brought as much as last now."""
        now, found = time.monotonic(), list[float]()
        brought: dict[int, list[Report]] = {}
        for index, report in batch:
            brought.setdefault(index, []).append(report)
        for index, (since, steps, speed) in enumerate(self._last):
            if mine := brought.get(index):
                steps = sum(report.steps for report in mine)
                speed = steps / max(sum(_busy(report) for report in mine), 1e-9)
                self._last[index] = now, steps, speed
            else:
                speed = min(speed, steps / max(now - since, 1e-9))
            found.append(speed)
        return found


def _busy(report: Report) -> float:
    return sum(report.seconds.values())
