"""Tickets under any order of events: nothing lost, nothing doubled, the lag bounded, no standstill."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.errors import RecollectError
from recollect.runtimes.tickets import Tickets

KINDS = st.sampled_from(("take", "work", "work", "die", "learn", "publish"))
EVENTS = st.lists(st.tuples(KINDS, st.integers(0, 4)))


class World:
    """Actors that work off their tickets in order, and a learner, around ``Tickets``.

    A rollout is (ticket, version that acted). What an actor has done is kept when it dies; what it holds is
    given back.
    """

    def __init__(self, actors: int, max_lag: int, is_bound: bool, version: int):
        self.tickets = Tickets(actors, max_lag, is_bound, version)
        self.actors, self.max_lag, self.is_bound, self.start = actors, max_lag, is_bound, version
        self.held: dict[int, list[int]] = defaultdict(list)
        self.done: dict[int, tuple[int, int]] = {}
        self.made: dict[int, list[int]] = defaultdict(list)
        """The tickets of every actor's rollouts, in the order in which it made them."""
        self.learned: list[int] = []
        self.version = version
        """The newest that is published."""

    @property
    def update(self) -> int:
        return self.start + len(self.learned) // self.actors

    def take(self, actor: int) -> bool:
        ticket = self.tickets.take(actor)
        if ticket is None:
            return False
        assert not any(ticket in held for held in self.held.values()), "two have it"
        assert ticket not in self.done, "it is done already"
        assert ticket >= self.update * self.actors, "it was learned from already"
        assert not self.held[actor] or ticket > self.held[actor][-1], "in order"
        self.held[actor].append(ticket)
        return True

    def work(self, actor: int) -> bool:
        """It begins with the newest weights, and ends."""
        if not self.held[actor]:
            return False
        ticket, version = self.held[actor].pop(0), self.version
        lag = ticket // self.actors - version
        assert lag <= self.max_lag, f"ticket {ticket} was acted by version {version}"
        if self.is_bound:
            assert (lag, ticket % self.actors) == (0, actor)
        self.tickets.done(ticket, actor)
        self.done[ticket] = actor, version
        self.made[actor].append(ticket)
        return True

    def die(self, actor: int) -> bool:
        assert self.tickets.give_back(actor) == self.held[actor]
        self.held[actor] = []
        return True

    def learn(self, _: int = 0) -> bool:
        update = self.update
        if self.tickets.missing(update) or update > self.version:
            return False
        self.tickets.learn(update)
        for ticket in self.tickets.wanted(update):
            del self.done[ticket]
            self.learned.append(ticket)
        return True

    def publish(self, _: int = 0) -> bool:
        """The learner has made new weights of what it learned from."""
        is_new, self.version = self.update > self.version, self.update
        self.tickets.publish(self.update)
        return is_new

    def check(self) -> None:
        assert self.learned == list(range(self.start * self.actors, self.update * self.actors))
        for tickets in self.made.values():
            assert tickets == sorted(set(tickets)), "an actor's rollouts are learned from in its order"
        assert self.tickets.waiting == len(self.done)
        assert self.tickets.running == sum(map(len, self.held.values()))
        holders = list(self.tickets._held.values())
        for actor in range(self.actors):
            assert holders.count(actor) == len(self.held[actor])


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 5), st.integers(0, 3), st.booleans(), st.integers(0, 7), EVENTS)
def test_any_order_of_events(actors, max_lag, is_bound, version, events):
    """S000-22, S000-24, S003-19: then, with nobody dying any more, the learning goes on."""
    world = World(actors, 0 if is_bound else max_lag, is_bound, version)
    for kind, who in events:
        getattr(world, kind)(who % actors)
        world.check()
    goal = world.update + 3
    while world.update < goal:
        moved = [world.learn(), world.publish()]
        for actor in range(actors):
            moved += [world.take(actor), world.work(actor)]
        assert any(moved), "a standstill"
        world.check()


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 3), EVENTS)
def test_one_actor_can_do_the_work_of_all_but_that_of_the_dead(actors, max_lag, who, events):
    """Async: nobody has to wait for the slowest, unless it holds what is wanted."""
    world = World(actors, max_lag, False, 0)
    for kind, other in events:
        getattr(world, kind)(other % actors)
    for actor in range(actors):  # whoever holds something, brings it
        while world.take(actor) if actor in world.tickets._returned.values() else world.work(actor):
            pass
        while world.work(actor):
            pass
    who, goal = who % actors, world.update + 3
    while world.update < goal:
        moved = [world.take(who), world.work(who), world.learn(), world.publish()]
        assert any(moved), "it waits for somebody"
    world.check()


def test_the_run_ahead_is_bounded():
    """Exactly max_lag updates, and one more update's worth of tickets per version."""
    for max_lag in (0, 1, 3):
        world = World(2, max_lag, False, 5)
        while world.take(0):
            pass
        assert world.held[0] == list(range(10, 10 + 2 * (1 + max_lag)))
        for _ in range(2):
            world.work(0)
        world.learn()
        world.publish()
        assert [world.take(1) for _ in range(3)] == [True, True, False]


def test_a_ticket_of_somebody_else_is_refused():
    """S000-22: it would be lost or doubled."""
    tickets = Tickets(2, 1, False)
    assert tickets.take(0) == 0
    with pytest.raises(RecollectError, match=r"actor 1 .* ticket 0, which was not assigned"):
        tickets.done(0, 1)
    tickets = Tickets(2, 1, False)
    tickets.take(0)
    tickets.done(0, 0)
    with pytest.raises(RecollectError, match="lost or used twice"):
        tickets.done(0, 0)
    with pytest.raises(RecollectError, match=r"update 0 lacks .*\[1\]"):
        tickets.learn(0)
