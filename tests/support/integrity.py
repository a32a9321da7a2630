"""What is done to shared memory under stress: by the tests here for seconds, by bench/integrity.py at length.

Weights: every element of every tensor is the version, so that a mixture shows in any read. Slots: the actors
of a run fill them, from envs whose every observation carries its number and a sum over itself, so that a torn
or a stale one shows.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from recollect.base import tree
from recollect.base.child_process import Child, Line, stop_all
from recollect.base.shared_memory import Layout
from recollect.runtimes.process.weights import WeightBoard
from tests.support.process_runs import process_collector, say

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


def read_often(
    line: Line, kind: type[WeightBoard], fd: int, handle: Layout, size: int, reads: int, versions: int
) -> None:
    """A reader: says that it begins, reads and looks at every element, says what it saw; then waits.

    It reads so often, and on until it has seen so many versions: who publishes may be slow to be scheduled.
    """
    torch.set_num_threads(1)
    board, into = kind.attach(fd, handle), encoded(-1, size)
    take, copies, mixed, backwards, seen, done = board._take, itertools.count(), 0, 0, [-1], 0

    def counted(wanted: int | None) -> int | None:
        next(copies)
        return take(wanted)

    board._take = counted
    line.send("begin")
    while done < reads or len(seen) <= versions:
        done += 1
        version = board.read(into)
        mixed += is_mixed(into, version)
        backwards += version < seen[-1]
        if version != seen[-1]:
            seen.append(version)
    line.send(Reads(done, mixed, backwards, next(copies) - done, len(seen) - 1))
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
    versions: int = 0,
    victims: int = 0,
    kind: type[WeightBoard] = WeightBoard,
    patience: float = 300.0,
) -> tuple[Reads, int, int]:
    """Publish as fast as possible while all readers read.

    Args:
        reads: of all readers together, at least.
        readers: processes.
        size: elements of the largest tensor.
        versions: that each reader sees, at least.
        victims: readers without end, besides, that are killed one after another in the midst of reading.
        kind: of the readers' board.
        patience: seconds for it all.

    Returns:
        What the readers saw together, the versions published, and the readers killed.
    """
    board = WeightBoard.create(encoded(0, size))
    board.publish(0, encoded(0, size))

    def start(name: str, reads: int) -> Child:
        arguments = (kind, board.fd, board.handle, size, reads, versions)
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

STEPS, ROWS, WIDTH = 16, 4, 33


class Checksummed(gym.Env):
    """Every observation has the number of its env, its own number, numbers made of them, and their sum."""

    observation_space = gym.spaces.Box(0, 2**24, (WIDTH + 3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.env, self.number = int(self.np_random.integers(2**16)), -1
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self._observe(), 0.0, False, False, {}

    def _observe(self) -> np.ndarray:
        self.number += 1
        data = (self.number * 7919 + self.env + np.arange(WIDTH)) % 1009
        return np.array([self.env, self.number % 2**16, *data, data.sum()], np.float32)


def spoiled_rows(obs: Tensor, sequence: int, envs: Tensor) -> Counter[str]:
    """How many rows of obs [STEPS + 1, ROWS, ...] are torn (the sum does not fit), and how many stale.

    Stale ones are not of rollout ``sequence``, or not of the envs [ROWS].
    """
    torn = obs[..., 2:-1].sum(-1) != obs[..., -1]
    number = sequence * STEPS + torch.arange(STEPS + 1).unsqueeze(1)
    stale = (obs[..., 0] != envs) | (obs[..., 1] != number % 2**16)
    return Counter(torn=int(torn.sum()), stale=int(stale.sum()))


def stress_slots(rollouts: int, *, actors: int = 2) -> Counter[str]:
    """Rollouts of actors that run ahead, through the slots of a collector, which are used again and again.

    Returns:
        How many rollouts and rows were read, how many rows were torn or stale, how many rollouts were out of
        order (lost or doubled), and how many were acted by other weights than they say.
    """
    seen: Counter[str] = Counter()
    expected, envs = [0] * actors, dict[int, Tensor]()
    settings = {
        "rollout": STEPS,
        "chunk": STEPS,
        "num_envs": actors * ROWS,
        "actors": actors,
        "mode": "async",
    }
    with process_collector(Checksummed, **settings) as (collector, policy):
        for version in range(rollouts):
            say(policy, version)
            collector.publish(version)
            for rollout in collector.collect(version).rollouts:
                actor = rollout.actor
                seen.update(
                    spoiled_rows(
                        rollout.obs, expected[actor], envs.setdefault(actor, rollout.obs[0, :, 0].clone())
                    )
                )
                seen.update(rollouts=1, rows=STEPS * ROWS, disordered=rollout.sequence != expected[actor])
                seen.update(misnamed=rollout.record["value"].unique().tolist() != [rollout.version])
                expected[actor] += 1
                for leaf in tree.leaves(rollout.tensors()):
                    leaf.fill_(1)  # so that what was there before cannot pass for new
    return seen
