"""The actors of the Ray runtime as the learner's process sees them."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from recollect.errors import LostError
from recollect.runtimes import limits
from recollect.runtimes.ray.cluster import Cluster, Lookout, Remote, close_all


@dataclass(frozen=True, slots=True)
class Call:
    """Something that an actor was asked for and has not answered."""

    what: Literal["begin", "collect", "ask"]
    answer: Any
    """Ray's reference to it."""
    ticket: int = -1
    """Of the rollout."""
    weights: Any = None
    """Ray's reference to them, which keeps them while they may be needed."""


@dataclass(slots=True)
class Seat:
    """One actor as the learner's process sees it."""

    index: int
    remote: Remote | None = None
    key: str = ""
    """What the lookout knows its present life by."""
    life: int = 0
    deaths: int = 0
    """In a row."""
    sequence: int = 0
    """Of its next rollout."""
    calls: deque[Call] = field(default_factory=deque)
    """In the order in which they will be answered."""
    since: float = 0.0
    """When it last answered or began, by ``time.monotonic``."""

    @property
    def actor(self) -> Remote:
        """Its Ray actor."""
        assert self.remote is not None
        return self.remote

    @property
    def tickets(self) -> int:
        """How many it has."""
        return sum(call.what == "collect" for call in self.calls)

    def silence(self, limit: float | None, lookout: Lookout) -> LostError | None:
        """What there is to say of an actor that was not started, or is stuck where its watchdog is too.

        ``limit``: seconds that a step of its env may take; None: any time, once it has started.
        """
        if not self.calls:
            return None
        waited, is_begun = time.monotonic() - self.since, self.calls[0].what != "begin"
        patience = limits.patience(limit, is_begun=is_begun)
        if patience is None or waited <= patience:
            return None
        if not is_begun:
            why = "the cluster has no place for it, or it hangs where its env is made"
            return LostError(f"{self.actor} is not there after {waited:.0f} s: {why}")
        quiet, _ = lookout.look(self.key)
        if quiet is None or quiet <= patience:
            return None
        why = "it is stopped, or stuck in native code"
        return LostError(f"{self.actor} gave no sign of life for {quiet:.0f} s: {why}")

    def ask(self, what: Literal["collect", "ask"], message: tuple[Any, ...], **about: Any) -> None:
        """Call a method of it."""
        if not self.calls:
            self.since = time.monotonic()
        self.calls.append(Call(what, self.actor.call(*message), **about))


@dataclass(slots=True)
class Held:
    """What has to be ended."""

    seats: list[Seat] = field(default_factory=list)
    cluster: Cluster | None = None
    lookout: Lookout | None = None

    @property
    def watch(self) -> Lookout:
        """The lookout."""
        assert self.lookout is not None
        return self.lookout

    def dismiss(self) -> None:
        """End the actors; the cluster stays."""
        close_all([seat.remote for seat in self.seats if seat.remote is not None])
        self.seats.clear()

    def close(self) -> None:
        """End the actors, and the cluster if it is our own."""
        self.dismiss()
        if self.lookout is not None:
            self.lookout.kill()
            self.lookout = None
        if self.cluster is not None:
            self.cluster.close()
            self.cluster = None
