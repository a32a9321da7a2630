"""Tickets: who collects what, so that nothing is lost or learned from twice and the lag stays bounded.

N actors. Update k learns from the tickets k N to k N + N - 1. In async mode a free actor gets the next
ticket n as soon as ``n < (version + 1 + max_lag) * N`` and acts with the newest weights v that it finds: then
``n // N - v <= max_lag``, always. A ticket whose actor died is given to that actor's next life, before any
other: so an actor's rollouts are learned from in the order in which it made them, and the sums over episodes
that run through several of them are right. In lockstep ticket k N + a is actor a's, and opens when version k
is published.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from recollect.errors import RecollectError


@dataclass(slots=True)
class Tickets:
    """The tickets of a run with ``actors`` actors, from update ``version`` on."""

    actors: int
    max_lag: int
    """0 with every ticket bound to its actor: lockstep. Else how far actors may run ahead."""
    is_bound: bool
    """Lockstep: ticket k N + a is actor a's."""
    version: int = 0
    _next: int = -1
    _returned: dict[int, int] = field(default_factory=dict)
    """Tickets to be given out again, and to whom."""
    _held: dict[int, int] = field(default_factory=dict)
    """Who has which ticket, by ticket."""
    _done: set[int] = field(default_factory=set)
    _learned: int = 0
    """All tickets below it were learned from."""

    def __post_init__(self) -> None:
        self._next = self._learned = self.version * self.actors

    def publish(self, version: int) -> None:
        """New weights: more tickets may be given out."""
        self.version = max(self.version, version)

    def take(self, actor: int) -> int | None:
        """The next ticket for this actor, if there is one that may be begun now."""
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
        """The rollout of this ticket is there."""
        if self._held.pop(ticket, None) != actor:
            raise RecollectError(
                f"actor {actor} brought ticket {ticket}, which is not its own: "
                "a rollout would be lost or doubled"
            )
        self._done.add(ticket)

    def give_back(self, actor: int) -> list[int]:
        """The actor died: its next life will have its tickets, lowest first. Returns them."""
        mine = sorted(ticket for ticket, holder in self._held.items() if holder == actor)
        for ticket in mine:
            del self._held[ticket]
        if not self.is_bound:
            self._returned |= dict.fromkeys(mine, actor)
        return mine

    def is_next(self, update: int) -> bool:
        """Whether all before this update were learned from, and its weights are published."""
        return self.version == update and self._learned == update * self.actors

    def wanted(self, update: int) -> range:
        """The tickets that an update learns from."""
        return range(update * self.actors, (update + 1) * self.actors)

    def missing(self, update: int) -> list[int]:
        """Those of them that are not done."""
        return [ticket for ticket in self.wanted(update) if ticket not in self._done]

    def learn(self, update: int) -> None:
        """The update takes its tickets: each once."""
        if self.missing(update):
            raise RecollectError(f"update {update} lacks the tickets {self.missing(update)}")
        self._done.difference_update(self.wanted(update))
        self._learned = self.wanted(update).stop

    @property
    def waiting(self) -> int:
        """Rollouts that are done and not learned from."""
        return len(self._done)

    @property
    def running(self) -> int:
        """Tickets given out whose rollouts are not there yet."""
        return len(self._held)
