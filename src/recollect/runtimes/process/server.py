"""The process of an actor: what runs in it, and what it is told at the start."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from recollect.base.child_process import Hung, Line
from recollect.base.shared_memory import Layout, Segment
from recollect.runtimes.actor_server import Blueprint, Host, Watchdog, put_finals, rollout_of
from recollect.runtimes.process.weights import WeightBoard


@dataclass(frozen=True, slots=True)
class Place:
    """Where an actor's rollouts and weights are, as its process is told."""

    slots: int
    layout: Layout
    """Of one slot."""
    slots_fd: int
    slots_bytes: int
    board_fd: int
    board: Layout
    state_steps: tuple[int, ...]


def act(line: Line, blueprint: Blueprint, place: Place, life: int, sequence: int) -> None:
    """The life of an actor's process.

    Args:
        line: to the learner's process, which asks for rollouts, snapshots and the like.
        blueprint: what to make.
        place: where to write to.
        life: how often this actor died before.
        sequence: the number of its next rollout.
    """
    segment = Segment.attach(place.slots_fd, place.slots_bytes)
    board = WeightBoard.attach(place.board_fd, place.board)
    memory = [place.layout.view(segment, i * place.layout.size) for i in range(place.slots)]
    buffers = [rollout_of(slot["rollout"], place.state_steps, blueprint.index) for slot in memory]
    host = Host(blueprint, life=life, sequence=sequence, buffers=buffers)

    def give_up(text: str) -> None:
        line.send(Hung(text))
        os._exit(1)

    pulse = memory[0]["pulse"]
    Watchdog(host, give_up, lambda: pulse.fill_(time.monotonic()))
    try:
        while True:
            kind, *rest = line.recv()
            if kind == "collect":
                ticket, slot, version = rest
                rollout, report = host.collect(
                    ticket, lambda version=version: board.read(host.weights, version=version), slot
                )
                line.send((report, put_finals(memory[slot]["finals"], rollout.finals)))
            elif kind == "snapshot":
                line.send(host.snapshot())
            elif kind == "restore":
                line.send(host.restore(*rest))
            elif kind == "restart":
                host.restart_episodes()
    finally:
        host.close()
