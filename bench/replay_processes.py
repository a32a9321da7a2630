"""Treasure hunt with two independent IQN learners: one process against a process for every part.

    python bench/replay_processes.py --quick
    python bench/replay_processes.py [--seeds 3] [--steps 200000] [--out bench/results/replay_processes.json]

Processes are one for the actor and one for each agent's learner, in lockstep and free-running (async), all
with the same replay ratio. Every seed runs once in every way before the next seed starts, in an order that
turns round. The bars on 2 cores: each way with processes makes at least as many agent steps and optimiser
steps per second as one process (medians over the seeds), and its return is the same within noise: the means
over the seeds differ by at most two standard errors of their difference. Speeds are after a warm-up; the
return is the team's, over the last quarter of the steps. ``seconds_per_update`` by activity is the trainer's.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from pathlib import Path
from typing import Any

import common
import measured

import recollect as rc

ROOT = Path(__file__).resolve().parents[1]
SETTINGS: dict[str, Any] = {
    "algo": "iqn",
    "policies": "independent",
    "core": "frames",
    "states": "rebuilt",
    "burn_in_steps": 3,
    "chunk": 1,
    "batch": 64,
    "num_envs": 16,
    "rollout": 16,
    "gamma": 0.9,
    "learning_rate": 1e-3,
    "replay_warmup": 1000,
}
WAYS: dict[str, dict[str, Any]] = {
    "one process": {},
    "learner processes": {"learner_processes": True},
    "processes, lockstep": {"learner_processes": True, "runtime": "processes"},
    "processes, async": {"learner_processes": True, "runtime": "processes", "mode": "async"},
}
BATCH = 16 * 16 * 2
"""Agent steps of an update."""
WARM = 12
"""Updates before the clock starts: the replay fills up, processes start."""
ACTIVITIES = ("learn", "wait", "env", "act", "total")


class Watch(rc.Callback):
    """Keeps the time and the metrics of every update."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, dict[str, float]]] = []

    def on_iteration(self, training: Any, metrics: dict[str, float]) -> None:
        """After an update."""
        self.rows.append((time.perf_counter(), metrics))


def gradient_steps(row: dict[str, float]) -> float:
    """Optimiser steps of both learners so far."""
    return sum(value for name, value in row.items() if name.endswith("/gradient_steps"))


def run(way: str, seed: int, steps: int) -> dict[str, Any]:
    """One training."""
    watch, began = Watch(), time.perf_counter()
    settings = SETTINGS | WAYS[way] | {"seed": seed, "steps": steps, "eval_every": 0}
    rc.train("treasure-hunt", progress=False, callbacks=[watch], **settings).close()
    rows = watch.rows[WARM:]
    (start, first), (end, last) = rows[0], rows[-1]
    each = [row for _, row in rows[1:]]
    late = [row["info/agent_0/team_return"] for _, row in watch.rows[-len(watch.rows) // 4 :]]
    return {
        "seed": seed,
        "steps_per_s": round((last["steps"] - first["steps"]) / (end - start), 1),
        "optimiser_steps_per_s": round((gradient_steps(last) - gradient_steps(first)) / (end - start), 2),
        "steps_of_each_sequence": round(gradient_steps(last) * 64 / last["steps"], 4),
        "first_update_after_s": round(watch.rows[0][0] - began, 2),
        "ms_per_update": {
            name: round(statistics.median(1000 * BATCH / row[f"speed/{name}"] for row in each), 2)
            for name in ACTIVITIES
            if f"speed/{name}" in last
        },
        "lag": round(statistics.fmean(row["lag"] for _, row in rows), 3),
        "team_return": round(statistics.fmean(late), 2),
    }


def compared(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Every way against one process."""
    base, found = runs["one process"], {}
    for way, own in runs.items():
        ratios = {
            f"{name}_of_one_process": round(
                statistics.median(r[name] for r in own) / statistics.median(r[name] for r in base), 3
            )
            for name in ("steps_per_s", "optimiser_steps_per_s")
        }
        ours, theirs = ([r["team_return"] for r in rs] for rs in (own, base))
        gap = statistics.fmean(ours) - statistics.fmean(theirs)
        error = None
        if len(ours) > 1:
            error = math.sqrt((statistics.variance(ours) + statistics.variance(theirs)) / len(ours))
        is_same = None if error is None else abs(gap) <= 2 * error
        found[way] = {
            **ratios,
            "is_as_fast": min(ratios.values()) >= 1,
            "team_return": round(statistics.fmean(ours), 2),
            "gap": round(gap, 2),
            "standard_error": None if error is None else round(error, 2),
            "is_same_return": is_same,
            "runs": own,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed of a few updates")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200_000, help="of both agents together")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", help="write JSON here")
    args = parser.parse_args()
    busy = measured.busy()
    ways = list(dict.fromkeys(["one process", *args.ways]))
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for seed in range(1 if args.quick else args.seeds):
        for way in ways[:: 1 if seed % 2 == 0 else -1]:
            result = run(way, seed, 60 * BATCH if args.quick else args.steps)
            runs[way].append(result)
            print(f"{way:22} {result}", flush=True)
    ways_found = compared(runs)
    for way, found in ways_found.items():
        print(way, {name: value for name, value in found.items() if name != "runs"}, flush=True)
    if args.out:
        common.write(args.out, "replay_processes", {"busy_before": busy, "ways": ways_found})


if __name__ == "__main__":
    main()
