"""The processes runtime: every actor server is an OS process on this machine.

Rollouts are recorded in shared memory, in slots allocated at the start; only the index of a slot and a header
cross the socket to the learner's process. Weights are on a board (``weights.py``) from which a server copies
whole versions.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recollect.acting.group_actor import allocate_all, empty_header
from recollect.algos.catalog import acting
from recollect.base.child_process import Child, Hung, Line, allow_open_files, stop_all
from recollect.base.shared_memory import Layout, Segment
from recollect.base.types import Tree
from recollect.config.train import TrainConfig
from recollect.experience.group_rollout import AnyHeader, read
from recollect.policy.policies import Network
from recollect.runtimes.actor_server import ActorServer, Blueprint, Report, Watchdog
from recollect.runtimes.learner_group import MakePeer
from recollect.runtimes.process.weights import WeightBoard
from recollect.runtimes.transport import Delivery

FILES_PER_ACTOR = 4
"""File descriptors of this process per actor: its socket, its lifeline, its slots (twice)."""


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The shared memory of an actor: its slots for rollouts, and the weights."""

    count: int
    """The number of slots."""
    layout: Layout
    """Of one slot."""
    fd: int
    board_fd: int
    board: Layout

    def slots(self, segment: Segment) -> list[Tree]:
        """The tensors of every slot."""
        return [self.layout.view(segment, i * self.layout.size) for i in range(self.count)]


class ProcessActorServer:
    """An actor server whose rollouts and weights are in shared memory."""

    def __init__(self, line: Line, blueprint: Blueprint, memory: SharedMemory):
        self._board = WeightBoard.attach(memory.board_fd, memory.board)
        self._slots = memory.slots(Segment.attach(memory.fd, memory.layout.size * memory.count))
        header = empty_header(blueprint.policy, acting(blueprint.config.algo), blueprint.index)
        self.server = ActorServer(blueprint, [read(slot, header) for slot in self._slots])
        heartbeat = self._slots[0]["heartbeat"]

        def give_up(text: str) -> None:
            line.send(Hung(text))
            os._exit(1)

        Watchdog(self.server, give_up, lambda: heartbeat.fill_(time.monotonic()))

    def collect(self, ticket: int, slot: int, version: int | None) -> tuple[Report, AnyHeader]:
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


class ProcessChannel:
    """The connection to one actor's process, over all its restarts. See ``remote_collector.py``."""

    start_failure = "it hangs while its env is made"

    def __init__(
        self, index: int, layout: Layout, slots: int, board: WeightBoard, ready: selectors.BaseSelector
    ):
        """Allocate the slots; ``ready``: the selector of all sockets, each with its actor's index."""
        self._index, self._board, self._ready = index, board, ready
        self._segment = Segment.create(layout.size * slots, f"the rollouts of actor {index}")
        self._memory = SharedMemory(slots, layout, self._segment.fd, board.fd, board.handle)
        self._slots: list[Tree] = self._memory.slots(self._segment)
        self._free = list(range(slots))
        self._taken: dict[int, int] = {}
        """The slot of every requested ticket."""
        self._started = 0.0
        self.child: Child | None = None

    @property
    def _process(self) -> Child:
        assert self.child is not None
        return self.child

    @property
    def pid(self) -> int | None:
        """The server's process."""
        return None if self.child is None else self.child.pid

    @property
    def is_started(self) -> bool:
        """Whether the server has opened its env."""
        return self._heartbeat > self._started

    @property
    def has_room(self) -> bool:
        """Whether a slot is free."""
        return bool(self._free)

    @property
    def _heartbeat(self) -> float:
        return float(self._slots[0]["heartbeat"])

    def start(self, blueprint: Blueprint) -> None:
        """Start a process."""
        run = blueprint.config.run
        self._started = time.monotonic()
        self.child = Child(
            serve,
            blueprint,
            self._memory,
            name=f"actor {self._index}",
            fds=(self._segment.fd, self._board.fd),
            log=None if run is None else Path(run) / "logs" / f"actor-{self._index}.log",
        )
        self._ready.register(self.child.line, selectors.EVENT_READ, self._index)

    def collect(self, ticket: int, version: int | None) -> None:
        """Request a rollout in a free slot."""
        slot = self._taken[ticket] = self._free.pop(0)
        self.call("collect", ticket, slot, version)

    def call(self, method: str, *arguments: Any) -> None:
        """Request a call of a method."""
        self._process.send((method, *arguments))

    def receive(self) -> Any:
        """The next reply."""
        reply = self._process.receive(0)
        if not isinstance(reply, tuple):
            return reply
        report, header = reply
        slot = self._taken.pop(report.ticket)
        return Delivery(report, header, self._slots[slot], partial(self._free.append, slot))

    def silence(self) -> float:
        """Seconds since the server's last heartbeat."""
        return time.monotonic() - self._heartbeat

    def kill(self) -> None:
        """End the process at once; its half-written slots become free."""
        self._ready.unregister(self._process.line)
        self._process.stop(grace=0)
        self._free.extend(self._taken.values())
        self._taken.clear()

    def close(self) -> None:
        """Release the memory."""
        self._segment.close()

    def __str__(self) -> str:
        return str(self.child)


class ProcessTransport:
    """Starts actor servers in processes and carries weights to them."""

    host = "127.0.0.1"
    make_peer: MakePeer | None = None

    def __init__(self, policy: Network, config: TrainConfig, rows: int):
        """``rows``: of all actors together."""
        self._policy, self._config, self._rows = policy, config, rows
        # In async mode one for every ticket that an actor may hold, and one that is being learned from.
        self._slots = 1 if config.mode == "lockstep" else config.lag_limit + 2
        self._ready = selectors.DefaultSelector()
        self._board: WeightBoard | None = None
        self.channels: list[ProcessChannel] = []
        self.notes: list[str] = []

    def open(self) -> None:
        """Allocate the shared memory of all actors."""
        actors = self._config.actors
        allow_open_files(FILES_PER_ACTOR * actors)
        board = self._board = WeightBoard.create(self._policy.state_dict())
        self._ready = selectors.DefaultSelector()
        algo = self._config.algo
        empty = allocate_all(self._policy, self._rows // actors, algo.rollout, acting(algo))
        layout = Layout.of({**empty.slot(), "heartbeat": torch.zeros((), dtype=torch.float64)})
        for index in range(actors):
            self.channels.append(ProcessChannel(index, layout, self._slots, board, self._ready))

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Copy the weights to the board."""
        assert self._board is not None
        self._board.publish(version, weights)

    def wait(self, timeout: float) -> list[int]:
        """The actors with a reply to receive."""
        return [key.data for key, _ in self._ready.select(timeout)]

    def end_servers(self) -> None:
        """End all processes and release the shared memory."""
        self._ready.close()
        stop_all([channel.child for channel in self.channels if channel.child is not None])
        for channel in self.channels:
            channel.close()
        self.channels.clear()
        if self._board is not None:
            self._board.close()
            self._board = None

    close = end_servers
