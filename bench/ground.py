"""A process that plays many actors: it speaks their messages and stubs out what they compute.

Each actor has a line, shared memory and a lifeline of its own, as a process would have. It reads the weights
whenever it begins a rollout, waits as long as env and policy would take, writes the slot, and reports. No
core is busy meanwhile, so that one process can play hundreds.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import pickle
import random
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import stubs
import torch

from recollect.base import tree
from recollect.base.child_process import Child, HungUpError, Line
from recollect.base.shared_memory import Segment
from recollect.base.types import Tree
from recollect.runtimes.actor_server import Report, rollout_of
from recollect.runtimes.process.server import Place
from recollect.runtimes.process.weights import WeightBoard


@dataclass(slots=True)
class Task:
    """One actor on the ground."""

    line: Line
    memory: list[Tree]
    lifeline: int
    sequence: int = 0
    idle_since: float = 0.0


class Ground:
    """The near end: starts the process and gives it actors."""

    def __init__(self, seconds: float, jitter: float):
        """``seconds``: what acting takes for a rollout; ``jitter``: the part of it that is drawn."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fd = theirs.fileno()
            self.child = Child(play, fd, seconds, jitter, name="ground", fds=(fd,))
        self._control = ours

    def settle(self, place: Place, fds: Sequence[int]) -> None:
        """Give it an actor: its place, and line, slots, board and lifeline as descriptors."""
        socket.send_fds(self._control, [pickle.dumps(place)], list(fds))

    def close(self) -> None:
        """End it."""
        self._control.close()
        self.child.stop()


class TaskChild:
    """Looks to ``ProcessCrew`` like the process of an actor; lives on one of the grounds."""

    grounds: ClassVar[list[Ground]] = []
    made = 0

    def __init__(
        self,
        target: Any,
        blueprint: Any,
        place: Place,
        life: int,
        sequence: int,
        *,
        name: str,
        fds: Sequence[int],
        log: Path | None,
    ):
        ground = self.grounds[TaskChild.made % len(self.grounds)]
        TaskChild.made += 1
        self.name, self.pid = name, ground.child.pid
        near, far = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        with far:
            ground.settle(place, (far.fileno(), *fds, lifeline))
        os.close(lifeline)
        self.line = Line(Connection(near.detach()))
        self._is_stopped = False

    def send(self, message: Any) -> None:
        """As ``Child``."""
        self.line.send(message)

    def receive(self, timeout: float | None = None) -> Any:
        """As ``Child``."""
        if not self.line.poll(timeout):
            raise TimeoutError(self.name)
        return self.line.recv()

    @property
    def is_alive(self) -> bool:
        """As ``Child``."""
        return not self._is_stopped

    def stop(self, grace: float = 2.0) -> None:
        """As ``Child``."""
        if not self._is_stopped:
            self._is_stopped = True
            self.line.close()
            os.close(self._lifeline)


def play(line: Line, control_fd: int, seconds: float, jitter: float) -> None:
    """The life of the process."""
    torch.set_num_threads(1)
    Stage(socket.socket(fileno=control_fd), seconds, jitter).run()


class Stage:
    """All actors of this process, and what is due when."""

    def __init__(self, control: socket.socket, seconds: float, jitter: float):
        self._control, self._seconds, self._jitter = control, seconds, jitter
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, None)
        self._due: list[tuple[float, int, Task, int, int, float, float]] = []
        self._board: WeightBoard | None = None
        self._weights: dict[str, torch.Tensor] = {}
        self._source: Tree = None
        self._draw = random.Random(0)
        self._count = 0

    def run(self) -> None:
        """Until the control line ends."""
        while True:
            timeout = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            for key, _ in self._selector.select(timeout):
                if key.data is not None:
                    self._hear(key.data)
                elif not self._welcome():
                    return
            while self._due and self._due[0][0] <= time.monotonic():
                self._finish(heapq.heappop(self._due))

    def _welcome(self) -> bool:
        """A new actor; False: there are no more."""
        data, fds, _, _ = socket.recv_fds(self._control, 1 << 20, 4)
        if not data:
            return False
        place: Place = pickle.loads(data)
        line_fd, slots_fd, board_fd, lifeline = fds
        segment = Segment.attach(slots_fd, place.slots_bytes)
        memory = [place.layout.view(segment, i * place.layout.size) for i in range(place.slots)]
        if self._board is None:
            self._board = WeightBoard.attach(board_fd, place.board)
            self._weights = {
                name: torch.zeros(leaf.shape, dtype=leaf.dtype) for name, leaf in place.board.leaves.items()
            }
            self._source = stubs.filled(rollout_of(memory[0]["rollout"], place.state_steps, 0))
        else:
            os.close(board_fd)
        task = Task(Line(Connection(line_fd)), memory, lifeline, idle_since=time.monotonic())
        self._selector.register(task.line.fileno(), selectors.EVENT_READ, task)
        return True

    def _hear(self, task: Task) -> None:
        """A ticket, or the end."""
        try:
            kind, *rest = task.line.recv()
        except HungUpError:
            self._selector.unregister(task.line.fileno())
            task.line.close()
            os.close(task.lifeline)
            return
        assert kind == "collect", kind
        ticket, slot, version = rest
        assert self._board is not None
        began = time.monotonic()
        found = self._board.read(self._weights, version=version)
        loaded = time.monotonic() - began
        acting = self._seconds * (1 + self._jitter * (self._draw.random() - 0.5))
        self._count += 1
        self._selector.unregister(task.line.fileno())  # the next ticket waits until this rollout is done
        entry = (began + acting, self._count, task, ticket, slot, found, loaded)
        heapq.heappush(self._due, entry)

    def _finish(self, entry: tuple[float, int, Task, int, int, float, float]) -> None:
        """Write the slot and say so."""
        due, _, task, ticket, slot, version, loaded = entry
        tree.copy_(task.memory[slot]["rollout"], self._source)
        steps = int(self._source["valid"].numel())
        seconds = {
            "env": 0.0,
            "act": self._seconds,
            "weights": loaded,
            "idle": max(0.0, due - task.idle_since),
        }
        report = Report(ticket, int(version), task.sequence, steps, {}, seconds, task.sequence == 0)
        task.sequence, task.idle_since = task.sequence + 1, time.monotonic()
        with contextlib.suppress(HungUpError):
            task.line.send((report, 0))
        self._selector.register(task.line.fileno(), selectors.EVENT_READ, task)
