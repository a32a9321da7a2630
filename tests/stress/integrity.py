"""What is done to shared memory under stress: by the tests here for seconds, by bench/integrity.py at length.

Weights: every element of every tensor is the version, so that a mixture shows in any read. Slots: every row
carries its number and a sum over itself, so that a torn or a stale one shows.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.children import Child, Line, stop_all
from recollect.shared import Layout, Segment
from recollect.weights import WeightBoard

SMALL = 1_500
"""Elements of the largest tensor of a small policy."""


class Careless(WeightBoard):
    """The mutant: it believes whatever it copied."""

    def _take(self, wanted: int | None) -> int | None:
        if self._copy is None:
            super()._take(wanted)
        assert self._copy is not None
        version, buffer = self.version, self._newest()
        self._copy[:] = self._words[buffer]
        return version


def encoded(version: int, size: int = SMALL) -> dict[str, Tensor]:
    """Weights whose every element is their version, of several dtypes and shapes."""
    return {
        "weight": torch.full((size,), float(version)),
        "bias": torch.full((7, 3), version, dtype=torch.int64),
        "scale": torch.tensor(float(version), dtype=torch.float64),
        "half": torch.full((11,), version % 256, dtype=torch.bfloat16),
    }


def is_mixed(named: dict[str, Tensor], version: int) -> bool:
    """Whether any element is not of this version."""
    return any(
        bool((tensor != (version % 256 if name == "half" else version)).any())
        for name, tensor in named.items()
    )


@dataclass(frozen=True, slots=True)
class Reads:
    """What one reader saw."""

    reads: int = 0
    mixed: int = 0
    """Reads with elements of two versions, or of another version than was said."""
    backwards: int = 0
    """Reads older than the one before."""
    again: int = 0
    """Copies that were found torn and thrown away."""
    versions: int = 0
    """Different ones."""

    def __add__(self, other: Reads) -> Reads:
        return Reads(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


def read_often(line: Line, kind: type[WeightBoard], fd: int, handle: Layout, size: int, reads: int) -> None:
    """A reader: says that it begins, reads and looks at every element, says what it saw; then waits."""
    torch.set_num_threads(1)
    board, into = kind.attach(fd, handle), encoded(-1, size)
    take, copies, mixed, backwards, seen = board._take, itertools.count(), 0, 0, [-1]

    def counted(wanted: int | None) -> int | None:
        next(copies)
        return take(wanted)

    board._take = counted
    line.send("begin")
    for _ in range(reads):
        version = board.read(into)
        mixed += is_mixed(into, version)
        backwards += version < seen[-1]
        if version != seen[-1]:
            seen.append(version)
    line.send(Reads(reads, mixed, backwards, next(copies) - reads, len(seen) - 1))
    line.recv()


def write_on(line: Line, fd: int, handle: Layout, size: int) -> None:
    """A writer that publishes until it is killed."""
    torch.set_num_threads(1)
    board = WeightBoard.attach(fd, handle)
    for version in itertools.count(board.version + 1):
        board.publish(version, encoded(version, size))
        if version % 100 == 0:
            line.send(version)


def stress_weights(
    reads: int,
    *,
    readers: int = 3,
    size: int = SMALL,
    victims: int = 0,
    kind: type[WeightBoard] = WeightBoard,
    patience: float = 600.0,
) -> tuple[Reads, int, int]:
    """Publish as fast as possible while all readers read.

    Args:
        reads: of all readers together.
        readers: processes.
        size: elements of the largest tensor.
        victims: readers without end, besides, that are killed one after another in the midst of reading.
        kind: of the readers' board.
        patience: seconds for it all.

    Returns:
        What the readers saw together, the versions published, and the readers killed.
    """
    board = WeightBoard.create(encoded(0, size))
    board.publish(0, encoded(0, size))

    def start(name: str, reads: int) -> Child:
        arguments = (kind, board.fd, board.handle, size, reads)
        return Child(read_often, *arguments, name=name, fds=(board.fd,))

    shares = [reads // readers + (i < reads % readers) for i in range(readers)]
    children = [start(f"reader {i}", share) for i, share in enumerate(shares)]
    doomed = [start(f"victim {i}", 10**12) for i in range(victims)]
    chance, ends, killed, version = random.Random(0), time.monotonic() + patience, 0, 0
    total, waiting, reading = Reads(), list(children), list(doomed)
    try:
        for child in [*children, *doomed]:
            child.receive(60.0)
        while waiting or reading:
            for _ in range(chance.randint(1, 200)):
                version += 1
                board.publish(version, encoded(version, size))
            if reading:
                os.kill(reading.pop().pid, signal.SIGKILL)
                killed += 1
            for child in [child for child in waiting if child.line.poll(0)]:
                total += child.receive(1.0)
                waiting.remove(child)
            if time.monotonic() > ends:
                raise TimeoutError(f"{len(waiting)} readers are not done after {patience:g} seconds")
    finally:
        stop_all([*children, *doomed])
        board.close()
    return total, version, killed


def kill_writers(writers: int, size: int = SMALL) -> list[tuple[int, int, bool]]:
    """Writers on one board, each killed in the midst of publishing.

    Returns:
        For each: the last version that it reported, the version read after its end, whether that was mixed.
    """
    board = WeightBoard.create(encoded(0, size))
    chance, found, into = random.Random(0), [], encoded(-1, size)
    try:
        for number in range(writers):
            child = Child(write_on, board.fd, board.handle, size, name=f"writer {number}", fds=(board.fd,))
            try:
                reported = child.receive(60.0)
                time.sleep(chance.random() * 0.05)
                os.kill(child.pid, signal.SIGKILL)
            finally:
                child.stop()
            version = board.read(into, patience=1.0)
            found.append((reported, version, is_mixed(into, version)))
    finally:
        board.close()
    return found


# Slots ---------------------------------------------------------------------------------------------------

STEPS, ROWS, WIDTH = 16, 8, 33


def row_numbers(actor: int, sequence: int) -> Tensor:
    """[STEPS, ROWS] unlike those of any other rollout of any actor."""
    first = (sequence * 64 + actor) * STEPS * ROWS
    return torch.arange(first, first + STEPS * ROWS).view(STEPS, ROWS)


def checksummed(actor: int, sequence: int) -> dict[str, Tensor]:
    """A rollout: every row has its number, numbers made of it, and their sum."""
    number = row_numbers(actor, sequence)
    data = number[..., None] * 2654435761 % 1000003 + torch.arange(WIDTH)
    return {"number": number, "data": data, "sum": data.sum(-1)}


def spoiled_rows(rollout: dict[str, Tensor], actor: int, sequence: int) -> Counter[str]:
    """How many rows are torn (the sum does not fit) and how many stale (of another rollout)."""
    torn = rollout["data"].sum(-1) != rollout["sum"]
    stale = rollout["number"] != row_numbers(actor, sequence)
    return Counter(torn=int(torn.sum()), stale=int(stale.sum()))


def slots(memory: Segment, layout: Layout, count: int) -> list[dict[str, Tensor]]:
    return [layout.view(memory, i * layout.size) for i in range(count)]


def fill_slots(
    line: Line, fd: int, size: int, layout: Layout, count: int, actor: int, is_early: bool
) -> None:
    """An actor: gets the index of a free slot, writes the next rollout into it, sends index and sequence.

    ``is_early`` is the mutant: it sends before it writes.
    """
    torch.set_num_threads(1)
    own = slots(Segment.attach(fd, size), layout, count)
    for sequence in itertools.count():
        index = line.recv()
        if is_early:
            line.send((index, sequence))
        rollout = checksummed(actor, sequence)
        for name, tensor in rollout.items():
            own[index][name].copy_(tensor)
        if not is_early:
            line.send((index, sequence))


def stress_slots(
    rollouts: int,
    *,
    actors: int = 2,
    count: int = 2,
    is_early: bool = False,
    is_enough: Callable[[Counter[str]], bool] = lambda _: False,
) -> Counter[str]:
    """Rollouts of several actors through shared slots that are used again and again.

    Returns:
        How many rollouts and rows were read, and how many rows were torn or stale, and how many rollouts were
        out of order (lost or doubled).
    """
    layout = Layout.of(checksummed(0, 0))
    memories = [Segment.create(count * layout.size, "the test") for _ in range(actors)]
    views = [slots(memory, layout, count) for memory in memories]
    children = [
        Child(
            fill_slots,
            *(memory.fd, memory.size, layout, count, i, is_early),
            name=f"actor {i}",
            fds=(memory.fd,),
        )
        for i, memory in enumerate(memories)
    ]
    seen: Counter[str] = Counter()
    try:
        for child, index in itertools.product(children, range(count)):
            child.send(index)
        for expected in range(rollouts):
            for actor, child in enumerate(children):
                index, sequence = child.receive(60.0)
                seen.update(spoiled_rows(views[actor][index], actor, expected))
                seen.update(rollouts=1, rows=STEPS * ROWS, disordered=sequence != expected)
                views[actor][index]["data"].fill_(-1)
                child.send(index)
            if is_enough(seen):
                break
    finally:
        stop_all(children)
        for memory in memories:
            memory.close()
    return seen
