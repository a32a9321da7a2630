"""Tickets assign rollouts to actors, so that none is lost or used twice and the lag is bounded.

There are N actors. Update k learns from the tickets k N to k N + N - 1. In async mode a free actor gets the
next ticket n once ``n < (version + 1 + max_lag) * N`` and acts with the newest weights v, so that
``n // N - v <= max_lag`` always holds. If an actor dies, it gets its own tickets again after the restart,
before any other: its rollouts are learned from in the order in which it recorded them, and sums over episodes
that span several rollouts are right. In lockstep, ticket k N + a belongs to actor a and opens when version k
is published.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from recollect.errors import RecollectError


@dataclass(slots=True)
class Tickets:
    """The tickets of a run with ``actors`` actors, starting at update ``version``."""

    actors: int
    max_lag: int
    """The number of updates that actors may run ahead."""
    is_bound: bool
    """Lockstep: ticket k N + a belongs to actor a."""
    version: int = 0
    _next: int = -1
    _returned: dict[int, int] = field(default_factory=dict)
    """The actor of each ticket that has to be assigned again."""
    _held: dict[int, int] = field(default_factory=dict)
    """The actor of each assigned ticket."""
    _done: set[int] = field(default_factory=set)
    _learned: int = 0
    """All tickets below this one were learned from."""

    def __post_init__(self) -> None:
        self._next = self._learned = self.version * self.actors

    def publish(self, version: int) -> None:
        """Note new weights: more tickets may be assigned."""
        self.version = max(self.version, version)

    def take(self, actor: int) -> int | None:
        """Assign the next ticket to this actor; None: there is none for it now."""
        if self.is_bound:
            ticket = self.version * self.actors + actor
            if ticket < self._learned or ticket in self._done or ticket in self._held:
                return None
        elif mine := [ticket for ticket, holder in self._returned.items() if holder == actor]:
            ticket = min(mine)
            del self._returned[ticket]
        elif self._next < (self.version + 1 + self.max_lag) * self.actors:
            ticket = self._next
            self._next += 1
        else:
            return None
        self._held[ticket] = actor
        return ticket

    def done(self, ticket: int, actor: int) -> None:
        """Note that the rollout of a ticket has arrived."""
        if self._held.pop(ticket, None) != actor:
            raise RecollectError(
                f"actor {actor} delivered ticket {ticket}, which was not assigned to it: "
                "a rollout would be lost or used twice"
            )
        self._done.add(ticket)

    def give_back(self, actor: int) -> list[int]:
        """Take back the tickets of an actor that died, for its restart. Returns them in order."""
        mine = sorted(ticket for ticket, holder in self._held.items() if holder == actor)
        for ticket in mine:
            del self._held[ticket]
        if not self.is_bound:
            self._returned |= dict.fromkeys(mine, actor)
        return mine

    def is_next(self, update: int) -> bool:
        """Whether this update is the next one, and its weights are published."""
        return self.version == update and self._learned == update * self.actors

    def wanted(self, update: int) -> range:
        """The tickets of an update."""
        return range(update * self.actors, (update + 1) * self.actors)

    def missing(self, update: int) -> list[int]:
        """The tickets of an update whose rollouts have not arrived."""
        return [ticket for ticket in self.wanted(update) if ticket not in self._done]

    def learn(self, update: int) -> None:
        """Use up the tickets of an update."""
        if self.missing(update):
            raise RecollectError(f"update {update} lacks the rollouts of the tickets {self.missing(update)}")
        self._done.difference_update(self.wanted(update))
        self._learned = self.wanted(update).stop

    @property
    def waiting(self) -> int:
        """The number of rollouts that wait for their update."""
        return len(self._done)

    @property
    def running(self) -> int:
        """The number of assigned tickets whose rollouts have not arrived."""
        return len(self._held)
