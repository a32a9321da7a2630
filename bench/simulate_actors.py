"""A thousand actors around one learner's process: where it saturates, and what breaks first.

    python bench/simulate_actors.py --quick
    python bench/simulate_actors.py --out bench/results/simulation.json

Stubbed out are the env and the policy's arithmetic (an actor waits as long as they would take: 32 steps of 4
rows, 1 ms a step) and the learner's (it sleeps as long as it would take, by ``--learner`` steps per second,
or not at all). The rest is real: the trainer's loop, the crew, its tickets, lines over sockets, slots and the
weight board in shared memory with real bytes, the join, the bookkeeping of episodes. The actors are tasks in
a few processes (``ground.py``), each with the line, the memory and the lifeline that a process would have.

For every number of actors: env steps per second, what the actors would make if nobody held them up
(``offered``), and the time on a core that the learner's process spends on everything but learning, by part.
Steps divided by that time (``most``) is what one process could handle with a learner that takes no time. It
does not depend on how fast the stubs are, which share the cores with it here; ``ground_busy`` says how busy
they were.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import common
import measured
from ground import Ground, TaskChild

import recollect as rc
import recollect.training.trainer
from recollect.base import tree
from recollect.config.train import TrainConfig
from recollect.errors import RecollectError
from recollect.runtimes.probe import staged
from recollect.runtimes.process import collector
from recollect.training.trainer import Trainer

ROWS, STEPS = 4, 32
ENV_SECONDS, ACT_SECONDS = 1e-3, 4e-4
"""Of one step of one row, and of one act of all rows."""
SECONDS = STEPS * (ROWS * ENV_SECONDS + ACT_SECONDS)
"""What an actor takes for a rollout."""
ACTORS = (1, 3, 10, 30, 100, 300, 1000)
USUAL_FILES = 1024
"""What a process may open on most Linux machines, unless somebody raised it."""


class Clock:
    """Time on a core and on the wall, by part."""

    def __init__(self) -> None:
        self.cpu: dict[str, float] = {}
        self.wall: dict[str, float] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its time added up under the name."""

        def call(*args: Any, **kwargs: Any) -> Any:
            cpu, wall = time.process_time(), time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.cpu[name] = self.cpu.get(name, 0.0) + time.process_time() - cpu
                self.wall[name] = self.wall.get(name, 0.0) + time.perf_counter() - wall

        return call


class Sleeper:
    """In place of a learner: it takes its time, and learns nothing."""

    def __init__(self, speed: float | None):
        """``speed``: env steps per second; None: no time at all."""
        self.updates, self._speed = 0, speed

    def update(self, whole: Any, progress: float, lag: int = 0) -> dict[str, float]:
        """As long as it would take."""
        if self._speed is not None:
            time.sleep(whole.valid.numel() / self._speed)
        self.updates += 1
        return {}

    def check(self, rollout: Any, policy: Any) -> dict[str, float]:
        """Nothing to look at."""
        return {}


@contextmanager
def actors(count: int, grounds: int, mode: str, learner: float | None) -> Iterator[Trainer]:
    """A trainer with so many actors on so many grounds."""
    config = TrainConfig().override(
        runtime="processes", mode=mode, actors=count, num_envs=count * ROWS, rollout=STEPS, env_timeout=None
    )
    TaskChild.grounds = [Ground(SECONDS, jitter=0.2) for _ in range(grounds)]
    try:
        with mock.patch.object(collector, "Child", TaskChild), staged("CartPole-v1", config) as stage:
            policy = config.policy.build(stage.observation_space, stage.action_space)
            crew = stage.crew(policy)
            try:
                with mock.patch.object(
                    recollect.training.trainer, "make_learner", return_value=Sleeper(learner)
                ):
                    trainer = Trainer(crew, policy, config)
                trainer.begin(10**12)
                yield trainer
            finally:
                crew.close()
    finally:
        for ground in TaskChild.grounds:
            ground.close()


def simulate(count: int, *, mode: str, learner: float | None, grounds: int, seconds: float) -> dict[str, Any]:
    """One number of actors, for so many seconds."""
    clock, files = Clock(), _open_files()
    with actors(count, grounds, mode, learner) as trainer:
        crew: Any = trainer.crew
        crew.collect = clock.timed("collect", crew.collect)
        crew.publish = clock.timed("publish", crew.publish)
        trainer.episodes.add = clock.timed("episodes", trainer.episodes.add)
        joined = mock.patch.object(
            recollect.training.trainer, "join", clock.timed("join", recollect.training.trainer.join)
        )
        with joined, trainer.working():
            started = time.perf_counter()
            trainer.iterate()
            starting = time.perf_counter() - started
            trainer.iterate()
            clock.cpu.clear()
            clock.wall.clear()
            pids = {ground.child.pid for ground in TaskChild.grounds}
            busy = sum(measured.cpu_seconds(pid) for pid in pids)
            steps, cpu, began, lags, updates = trainer.steps, time.process_time(), time.perf_counter(), [], 0
            while updates < 3 or (time.perf_counter() - began < seconds and updates < 200):
                lags.append(trainer.iterate().metrics["lag"])
                updates += 1
            wall = time.perf_counter() - began
            spent = time.process_time() - cpu
            busy = sum(measured.cpu_seconds(pid) for pid in pids) - busy
        made = trainer.steps - steps
        layout = crew._layout
        found = {
            "actors": count,
            "mode": mode,
            "learner_steps_per_s": learner,
            "steps_per_s": round(made / wall),
            "offered_steps_per_s": round(count * ROWS * STEPS / SECONDS),
            "most_steps_per_s": round(made / spent),
            "rollouts_per_core_second": round(count * updates / spent),
            "updates": updates,
            "lag": round(statistics.fmean(lags), 3),
            "first_update_after_s": round(starting, 2),
            "cpu_ms_per_update": {
                name: round(value / updates * 1e3, 3)
                for name, value in (clock.cpu | {"other": spent - sum(clock.cpu.values())}).items()
            },
            "wall_ms_per_update": round(wall / updates * 1e3, 3),
            "ground_busy": round(busy / wall / grounds, 3),
            "files": _open_files() - files,
            "slot_bytes": layout.size,
            "slots_megabytes": round(count * crew._slots * layout.size / 1e6, 1),
            "weights_bytes": tree.size_bytes(dict(trainer.policy.state_dict())),
        }
    return found


def profile(count: int, grounds: int) -> list[dict[str, Any]]:
    """Which functions of the learner's process the time goes to, learning left out."""
    with actors(count, grounds, "async", None) as trainer, trainer.working():
        for _ in range(4):  # the first ones are looked at more closely (gauge_every)
            trainer.iterate()
        profiler = cProfile.Profile(time.process_time)
        profiler.enable()
        for _ in range(3):
            trainer.iterate()
        profiler.disable()
    stats: dict[Any, Any] = pstats.Stats(profiler).stats  # pyright: ignore[reportAttributeAccessIssue]
    total = sum(own for _, _, own, _, _ in stats.values())
    rows = [
        {
            "function": f"{Path(file).name}:{name}",
            "calls": calls,
            "own": own / total,
            "with_callees": whole / total,
        }
        for (file, _, name), (_, calls, own, whole, _) in stats.items()
    ]
    rows.sort(key=lambda row: -row["own"])
    return [row | {key: round(row[key], 4) for key in ("own", "with_callees")} for row in rows[:25]]


def with_few_files(count: int, grounds: int) -> str:
    """What happens to so many actors where a process may open as many files as is usual."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with actors(count, grounds, "async", None) as trainer, trainer.working():
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(USUAL_FILES, hard), hard))
            trainer.iterate()
        return "all actors started"
    except (RecollectError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def real_actor() -> dict[str, float]:
    """What the process of a real actor takes of memory and, to start, of a core."""
    found: dict[str, float] = {}

    def look(training: Any, metrics: dict[str, float]) -> None:
        if found:
            return
        pid = training._trainer.crew.pids[0]
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        sizes = {line.split(":")[0]: int(line.split()[1]) / 1e3 for line in lines}
        found["private_megabytes"] = round(sizes["Private_Clean"] + sizes["Private_Dirty"], 1)
        found["proportional_megabytes"] = round(sizes["Pss"], 1)
        found["start_cpu_seconds"] = round(measured.cpu_seconds(pid), 2)

    settings = {"num_envs": 2 * ROWS, "rollout": STEPS, "actors": 2, "runtime": "processes"}
    rc.train("CartPole-v1", steps=2 * ROWS * STEPS, progress=False, callbacks=[look], **settings).close()
    return found


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few actors for a moment")
    parser.add_argument("--actors", type=int, nargs="+", default=list(ACTORS))
    parser.add_argument("--grounds", type=int, default=1, help="processes that play the actors")
    parser.add_argument(
        "--learner", type=float, default=20_000.0, help="env steps that it learns from in a second"
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="for each measurement")
    parser.add_argument("--out", help="write JSON here")
    args = parser.parse_args()
    counts = args.actors if not args.quick else [3, 30]
    seconds = 1.0 if args.quick else args.seconds
    busy, rows = measured.busy(), []
    for count in counts:
        for mode, learner in (("async", args.learner), ("async", None), ("lockstep", None)):
            row = simulate(count, mode=mode, learner=learner, grounds=args.grounds, seconds=seconds)
            rows.append(row)
            print(
                f"{count:>5} actors, {mode:8} learner {'sleeps' if learner else 'none':6} "
                f"{row['steps_per_s']:>9,} steps/s of {row['offered_steps_per_s']:>9,} offered, at most "
                f"{row['most_steps_per_s']:>9,}; lag {row['lag']}, ground {row['ground_busy']:.0%} busy, "
                f"ms {row['cpu_ms_per_update']}",
                flush=True,
            )
    most = max(counts)
    results = {
        "busy_before": busy,
        "rollout": {"rows": ROWS, "steps": STEPS, "seconds": SECONDS},
        "grounds": args.grounds,
        "rows": rows,
        "profile": {"actors": most, "functions": profile(most, args.grounds)},
        "few_files": {"limit": USUAL_FILES, "actors": most, "result": with_few_files(most, args.grounds)},
        "real_actor": real_actor(),
    }
    for one in results["profile"]["functions"][:12]:
        print(f"{one['own']:>8.1%} {one['with_callees']:>8.1%} {one['calls']:>9} {one['function']}")
    print(results["few_files"], results["real_actor"])
    if args.out:
        common.write(args.out, "simulation", results)


if __name__ == "__main__":
    main()
