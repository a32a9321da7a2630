"""Metrics of remote actors: how they spend their time, the speed of each, and the queues."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from recollect.runtimes.actor_server import Report

SHOWN = 16
"""The number of actors up to which each has metrics of its own; of more, the slowest and the fastest."""


class Reports:
    """Counters of a run, and the metrics of each batch."""

    def __init__(self, actors: int):
        self.restarts = 0
        """Restarts of actors so far."""
        self._steps = [0] * actors
        """Valid env steps of each actor so far."""
        self._last: list[tuple[float, int, float]] = [(time.monotonic(), 0, 0.0)] * actors
        """Of each actor: when it was last in a batch, its valid steps in that batch, and its speed."""

    def restore_counters(self, metrics: Mapping[str, float]) -> None:
        """Continue the counters from the last metrics of a resumed run."""
        self.restarts = int(metrics.get("restarts", 0))
        self._steps = [int(metrics.get(f"actor/{index}/steps", 0)) for index in range(len(self._steps))]

    def metrics(self, batch: Sequence[tuple[int, Report]], *, ready: int, running: int) -> dict[str, float]:
        """The metrics by the names of the glossary. ``batch``: (actor, report) of each rollout."""
        total = max(sum(_busy(report) for _, report in batch), 1e-9)
        parts = {"env": "env", "act": "policy", "weights": "transport", "idle": "learner"}
        found = {f"time/{name}": sum(r.seconds[key] for _, r in batch) / total for key, name in parts.items()}
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
        """The speed of each actor. Without a rollout in the batch, the speed falls as time passes."""
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
