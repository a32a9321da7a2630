"""The process of an actor server."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from recollect.algos.catalog import acting
from recollect.base.child_process import Hung, Line
from recollect.base.shared_memory import Layout, Segment
from recollect.base.types import Tree
from recollect.experience.rollout import Header, Rollout
from recollect.runtimes.actor_server import ActorServer, Blueprint, Report, Watchdog
from recollect.runtimes.process.weights import WeightBoard


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The shared memory of an actor: its slots for rollouts, and the weights."""

    count: int
    """The number of slots."""
    layout: Layout
    """Of one slot."""
    fd: int
    size: int
    """Bytes of all slots."""
    board_fd: int
    board: Layout

    def slots(self, segment: Segment) -> list[Tree]:
        """The tensors of every slot."""
        return [self.layout.view(segment, i * self.layout.size) for i in range(self.count)]


class ProcessActorServer:
    """An actor server whose rollouts and weights are in shared memory."""

    def __init__(self, line: Line, blueprint: Blueprint, memory: SharedMemory):
        self._board = WeightBoard.attach(memory.board_fd, memory.board)
        self._slots = memory.slots(Segment.attach(memory.fd, memory.size))
        header = Header(acting(blueprint.config.algo).state_steps, blueprint.index)
        self.server = ActorServer(blueprint, [Rollout.read(slot, header) for slot in self._slots])
        heartbeat = self._slots[0]["heartbeat"]

        def give_up(text: str) -> None:
            line.send(Hung(text))
            os._exit(1)

        Watchdog(self.server, give_up, lambda: heartbeat.fill_(time.monotonic()))

    def collect(self, ticket: int, slot: int, version: int | None) -> tuple[Report, Header]:
        """Record a rollout in a slot, with the weights of this version, or the newest if None."""

        def load() -> int:
            return self._board.read(self.server.weights, version=version)

        rollout, report = self.server.collect(ticket, load, slot)
        return report, rollout.write_finals(self._slots[slot])


def serve(line: Line, blueprint: Blueprint, memory: SharedMemory) -> None:
    """Answer requests until the parent closes the socket: a method and its arguments, each with one reply."""
    process = ProcessActorServer(line, blueprint, memory)
    try:
        while True:
            method, *arguments = line.recv()
            owner: Any = process if method == "collect" else process.server
            line.send(getattr(owner, method)(*arguments))
    finally:
        process.server.close()
