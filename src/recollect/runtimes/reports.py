"""What is known of actors elsewhere: where their time goes, how fast each is, what waits for whom."""

from __future__ import annotations

from collections.abc import Sequence

from recollect.runtimes.crew import mean_info
from recollect.runtimes.host import Report

SHOWN = 16
"""Actors whose own figures are logged; of more, only the slowest and the fastest."""


class Reports:
    """Sums over a run, and the metrics of every batch."""

    def __init__(self, actors: int):
        self._steps = [0] * actors
        """Valid env steps of each so far."""

    def seconds(self, reports: Sequence[Report]) -> dict[str, float]:
        """What the batch took by the wall clock: actors work side by side, so the longest counts."""
        return {name: max(report.seconds[name] for report in reports) for name in ("env", "act")}

    def info(self, reports: Sequence[Report]) -> dict[str, float]:
        """The means over the batch of what the env reports."""
        return mean_info([(report.info, 1) for report in reports])

    def metrics(
        self, batch: Sequence[tuple[int, Report]], *, ready: int, running: int, restarts: int
    ) -> dict[str, float]:
        """By the names of the glossary. ``batch``: who brought what."""
        reports = [report for _, report in batch]
        total = max(sum(sum(report.seconds.values()) for report in reports), 1e-9)
        names = {"env": "env", "act": "policy", "weights": "transport", "idle": "learner"}
        found = {
            f"time/{name}": sum(report.seconds[key] for report in reports) / total
            for key, name in names.items()
        }
        speeds = {index: report.steps / max(sum(report.seconds.values()), 1e-9) for index, report in batch}
        for index, report in batch:
            self._steps[index] += report.steps
        found |= {"queue/ready": float(ready), "queue/running": float(running), "restarts": float(restarts)}
        found |= {"actors/slowest": min(speeds.values()), "actors/fastest": max(speeds.values())}
        if len(self._steps) <= SHOWN:
            found |= {f"actor/{index}/speed": speed for index, speed in sorted(speeds.items())}
            found |= {f"actor/{index}/steps": float(steps) for index, steps in enumerate(self._steps)}
        return found
