"""Training while actors are killed: no rollout lost or doubled, and nothing grows.

    python bench/soak_kills.py --minutes 1 --every 10 --out /tmp/soak.json
    python bench/soak_kills.py --mode async --out bench/results/soak_kills.json

S002-12, S003-18, S000-22, S000-25. An actor, drawn at random, is killed with SIGKILL every 20 seconds for 30
minutes. Tickets are counted where they are given out, brought back and learned from; what each rollout says
of itself (actor, number, version) where the trainer gets it. Resident memory and open files of the learner's
process are sampled; they are compared after the first fifth of the time and at the end. Exits with 1 if a
rollout was lost, doubled or out of order, a lag was above its limit, or memory or files grew. The modes asked
for are added to those that the file has.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import common
import torch

import recollect as rc
from recollect.runtimes import remote_collector
from recollect.runtimes.collector import Batch
from recollect.runtimes.remote_collector import RemoteCollector
from recollect.runtimes.tickets import Tickets

GROWTH_MB = 16.0
"""What the resident memory may differ between the two moments: the allocator's caches come and go."""


class Counted(Tickets):
    """Tickets that count themselves, in numbers that do not grow with the run."""

    count: ClassVar[Counter[str]] = Counter()
    under_way: ClassVar[set[int]] = set()
    ready: ClassVar[set[int]] = set()
    learned: ClassVar[int] = 0

    def take(self, actor: int) -> int | None:
        ticket = super().take(actor)
        if ticket is not None:
            kept = Counted
            kept.count["given"] += 1
            kept.count["doubled"] += ticket in kept.under_way | kept.ready or ticket < kept.learned
            kept.under_way.add(ticket)
        return ticket

    def give_back(self, actor: int) -> list[int]:
        found = super().give_back(actor)
        Counted.count["given_back"] += len(found)
        Counted.under_way -= set(found)
        return found

    def done(self, ticket: int, actor: int) -> None:
        super().done(ticket, actor)
        Counted.count["brought"] += 1
        Counted.under_way.remove(ticket)
        Counted.ready.add(ticket)

    def learn(self, update: int) -> None:
        super().learn(update)
        for ticket in self.wanted(update):
            Counted.count["learned"] += 1
            Counted.count["lost"] += ticket not in Counted.ready
            Counted.count["disordered"] += ticket != Counted.learned
            Counted.ready.discard(ticket)
            Counted.learned = ticket + 1


class Gate:
    """Stands between the collector and the trainer, and looks at every rollout."""

    def __init__(self, collector: RemoteCollector, max_lag: int):
        self._collect, self._max_lag, self._next = collector.collect, max_lag, Counter[int]()
        self.count, self.max_lag, self.restarts = Counter[str](), 0, 0.0
        self.by_actor: Counter[int] = Counter()
        collector.collect = self.collect

    def collect(self, version: int) -> Batch:
        batch = self._collect(version)
        for rollout in batch.rollouts:
            expected, actor = self._next[rollout.actor], rollout.actor
            self.count["rollouts"] += 1
            self.count["lost"] += rollout.sequence > expected
            self.count["doubled"] += rollout.sequence < expected
            self.count["late"] += not 0 <= version - rollout.version <= self._max_lag
            self.max_lag = max(self.max_lag, version - rollout.version)
            self._next[actor] = rollout.sequence + 1
            self.by_actor[actor] += 1
        self.restarts = batch.metrics["restarts"]
        return batch


class Trouble(rc.Callback):
    """Kills, samples, and stops when the time is up."""

    def __init__(self, collector: RemoteCollector, seconds: float, every: float):
        self._collector, self._draw, self._every = collector, random.Random(0), every
        self._began = time.monotonic()
        self._ends = self._began + seconds
        self.kills, self.samples = 0, list[tuple[float, float, int]]()
        self._next_sample = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._kill, daemon=True)
        self._thread.start()

    def _kill(self) -> None:
        while not self._over.wait(self._every):
            if pids := self._collector.pids:
                try:
                    os.kill(self._draw.choice(pids), signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self.kills += 1

    def on_iteration(self, training: Any, metrics: dict[str, float]) -> None:
        now = time.monotonic()
        if now >= self._next_sample:
            self._next_sample = now + 1.0
            self.samples.append((now - self._began, resident_mb(), len(os.listdir("/proc/self/fd"))))
        if now >= self._ends:
            training.stop("the time is up")

    def on_end(self, training: Any, reason: str) -> None:
        self._over.set()
        self._thread.join()

    def around(self, share: float) -> tuple[float, int]:
        """Resident memory and open files around a share of the time: medians of several samples."""
        moment = share * (self._ends - self._began)
        width = 0.05 * (self._ends - self._began)
        near = [sample for sample in self.samples if abs(sample[0] - moment) <= width] or self.samples[-1:]
        return round(median(mb for _, mb, _ in near), 1), int(median(files for *_, files in near))


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def soak(mode: str, minutes: float, every: float, actors: int) -> dict[str, Any]:
    remote_collector.Tickets = Counted
    Counted.count, Counted.under_way, Counted.ready, Counted.learned = Counter(), set(), set(), 0
    max_lag = 0 if mode == "lockstep" else 1
    settings: dict[str, Any] = {"num_envs": 4 * actors, "rollout": 64, "chunk": 16, "threads": 1}
    settings |= {"core": rc.LSTMConfig(hidden=32), "runtime": "processes", "actors": actors, "mode": mode}
    agent = rc.Agent.create("CartPole-v1", rc.TrainConfig().override(**settings))
    assert agent._trainer is not None
    collector = agent._trainer.collector
    assert isinstance(collector, RemoteCollector)
    gate = Gate(collector, max_lag)
    trouble = Trouble(collector, 60 * minutes, every)
    with agent:
        agent.train(10**12, progress=False, callbacks=[trouble])
        updates = agent._trainer.learner.updates
        outstanding = len(Counted.under_way) + len(Counted.ready)
    (early_mb, early_files), (end_mb, end_files) = trouble.around(0.2), trouble.around(0.97)
    count = Counted.count
    found = {
        "minutes": minutes,
        "updates": updates,
        "actors": actors,
        "killed": trouble.kills,
        "restarted": int(gate.restarts),
        "tickets": {name: count[name] for name in ("given", "given_back", "brought", "learned")},
        "not_learned_at_the_end": outstanding,
        "rollouts": gate.count["rollouts"],
        "rollouts_by_actor": [gate.by_actor[actor] for actor in range(actors)],
        "lost": count["lost"] + gate.count["lost"],
        "doubled": count["doubled"] + gate.count["doubled"],
        "out_of_order": count["disordered"],
        "beyond_max_lag": gate.count["late"],
        "max_lag_seen": gate.max_lag,
        "resident_mb": {"after_a_fifth": early_mb, "at_the_end": end_mb},
        "open_files": {"after_a_fifth": early_files, "at_the_end": end_files},
    }
    wrong = [name for name in ("lost", "doubled", "out_of_order", "beyond_max_lag") if found[name]]
    sums = count["given"] - count["given_back"] - outstanding, count["learned"], gate.count["rollouts"]
    if len({*sums, updates * actors}) > 1:
        wrong.append(f"the counts do not add up: {sums}, {updates} updates of {actors}")
    if end_mb > early_mb + GROWTH_MB:
        wrong.append("memory grew")
    if end_files > early_files:
        wrong.append("open files grew")
    if gate.restarts < trouble.kills - actors:
        wrong.append("kills were not noticed")
    return found | {"wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two kills")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--mode", choices=["lockstep", "async"], default="lockstep")
    parser.add_argument("--out", type=Path, default=Path("bench/results/soak_kills.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    before = json.loads(args.out.read_text())["results"] if args.out.exists() else {}
    found = soak(args.mode, args.minutes, args.every, args.actors)
    print(json.dumps(found, indent=1))
    common.write(args.out, "soak_kills", before | {args.mode: found})
    sys.exit(1 if found["wrong"] else 0)


if __name__ == "__main__":
    main()
