"""What a display says of actors in other processes: how fast they are, and what they spend their time on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from recollect.display import words

PARTS = ("env", "policy", "transport", "learner")
"""What an actor's time goes into; the last is waiting for the learner."""
SMOOTHED = ("actors/slowest", "actors/fastest", *(f"time/{part}" for part in PARTS))
"""Metrics that jump from update to update."""
PLACES = {"processes": "in processes", "ray": "on Ray"}


@dataclass(frozen=True, slots=True)
class RemoteActors:
    """The actors of a run that do not live in its own process; None where nothing is known yet."""

    count: int
    runtime: str
    mode: str
    metrics: Mapping[str, float]
    """Of the last update, with ``SMOOTHED`` ones smoothed."""
    waits: float | None
    """The share of its time that the learner waits for rollouts."""

    @property
    def who(self) -> str:
        """Such as "4 in processes, async"."""
        return f"{self.count:,} {PLACES.get(self.runtime, self.runtime)}, {self.mode}"

    @property
    def range(self) -> str:
        """The speeds from the slowest to the fastest."""
        slowest, fastest = (
            words.count(self.metrics.get(f"actors/{name}")) for name in ("slowest", "fastest")
        )
        return slowest if slowest == fastest else f"{slowest} to {fastest}"

    @property
    def restarts(self) -> int:
        """Actors that were started anew."""
        return int(self.metrics.get("restarts", 0))

    @property
    def shares(self) -> dict[str, float]:
        """What the actors' time goes into; NaN before the first update."""
        return {part: self.metrics.get(f"time/{part}", math.nan) for part in PARTS}

    def queue(self) -> list[str]:
        """What waits for whom, and the weights that lag most."""
        ready, running = (words.count(self.metrics.get(f"queue/{name}")) for name in ("ready", "running"))
        lag = (
            [f"lag at most {self.metrics['lag/max']:g}"]
            if self.mode == "async" and "lag/max" in self.metrics
            else []
        )
        return [f"{ready} rollouts ready", f"{running} running", *lag]

    def trouble(self) -> list[str]:
        """Restarts, if there were any."""
        return [f"{self.restarts:,} restart{'s' if self.restarts > 1 else ''}"] if self.restarts else []


def bar(shares: Mapping[str, float], width: int, shades: str) -> str:
    """The shares as one bar of ``width`` characters, a shade for each; empty if nothing is known."""
    total = sum(shares.values())
    if not total > 0:
        return ""
    drawn, before = "", 0.0
    for shade, share in zip(shades, shares.values()):
        before += share
        drawn += shade * (round(width * before / total) - len(drawn))
    return drawn
