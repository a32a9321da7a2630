"""Actors in other processes, as displays show them: speed, time shares, queue."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from recollect.base import numbers

PARTS = ("env", "policy", "transport", "learner")
"""Parts of an actor's time; the last is waiting for the learner."""
SMOOTHED = ("actors/slowest", "actors/fastest", *(f"time/{part}" for part in PARTS))
"""Noisy metrics, which are smoothed."""
PLACES = {"processes": "in processes", "ray": "on Ray"}


@dataclass(frozen=True, slots=True)
class RemoteActors:
    """The actors of a run that do not live in its own process; None where nothing is known yet."""

    count: int
    runtime: str
    mode: str
    metrics: Mapping[str, float]
    """Metrics of the last update; those of ``SMOOTHED`` are smoothed."""
    waits: float | None
    """Share of its time that the learner waits for rollouts; None if unknown."""

    @property
    def who(self) -> str:
        """Such as "4 in processes, async"."""
        return f"{self.count:,} {PLACES.get(self.runtime, self.runtime)}, {self.mode}"

    @property
    def range(self) -> str:
        """The speeds of the slowest and the fastest actor, in env steps per second."""
        slowest, fastest = (
            numbers.count(self.metrics.get(f"actors/{name}")) for name in ("slowest", "fastest")
        )
        return slowest if slowest == fastest else f"{slowest} to {fastest}"

    @property
    def restarts(self) -> int:
        """Number of restarted actors."""
        return int(self.metrics.get("restarts", 0))

    @property
    def shares(self) -> dict[str, float]:
        """The parts of the actors' time; NaN before the first update."""
        return {part: self.metrics.get(f"time/{part}", math.nan) for part in PARTS}

    def queue(self) -> list[str]:
        """The rollouts that wait, and the largest lag."""
        ready, running = (numbers.count(self.metrics.get(f"queue/{name}")) for name in ("ready", "running"))
        lag = (
            [f"lag at most {self.metrics['lag/max']:g}"]
            if self.mode == "async" and "lag/max" in self.metrics
            else []
        )
        return [f"{ready} rollouts ready", f"{running} running", *lag]

    def trouble(self) -> list[str]:
        """Restarts, if there were any."""
        return [numbers.plural(self.restarts, "restart")] if self.restarts else []


def bar(shares: Mapping[str, float], width: int, shades: str) -> str:
    """The shares as one bar of ``width`` characters, a shade for each; empty if the sum is 0 or NaN."""
    total = sum(shares.values())
    if not total > 0:
        return ""
    drawn, before = "", 0.0
    for shade, share in zip(shades, shares.values()):
        before += share
        drawn += shade * (round(width * before / total) - len(drawn))
    return drawn
