"""How speed grows with actors: runs with 1 to 8, and the model of docs/scale.md fitted to some of them.

    python bench/scaling.py --quick
    python bench/scaling.py --out bench/results/scaling.json

CartPole-v1 under the processes runtime, lockstep and async, 8 rows for each actor (and 32 for a few numbers
of actors), rollout 128, the default PPO. Costs are fitted to the runs with up to 4 actors (of 32 rows: up to
2); the others were not looked at, and their error says what the model is worth.

The model, for N actors of R rows on C cores, S = N R T steps an update:

    a = a0 + a1 R             seconds of a core that one rollout of one actor takes
    l = l0 + l1 S             seconds of the clock that learning takes, with all cores to itself
    c = c0 + c1 S             seconds of cores that the learner's process takes for an update
    lockstep: seconds of an update = N a / min(N, C) + l + h0 + h1 N
    async:    seconds of an update = e max(a, l + h0 + h1 N, (N a + c) / C)

h0 + h1 N is what handing out, waiting and joining take beside. e is what sharing the cores costs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import common
import gymnasium as gym
import measured
import numpy as np
import torch

from recollect.acting.actor import allocate
from recollect.base import tree
from recollect.config.train import TrainConfig
from recollect.experience.rollout import Rollout
from recollect.runtimes.process.weights import WeightBoard

STEPS = 128
CORES = len(os.sched_getaffinity(0))
PLAN = [(actors, 8) for actors in range(1, 9)] + [(actors, 32) for actors in (1, 2, 4)]
"""Actors and rows of each."""
SPEED = 10_000
"""Steps per second, about: how long a run is chosen by it."""


def is_fitted(actors: int, rows: int) -> bool:
    """Whether the model may look at it."""
    return actors <= (4 if rows == 8 else 2)


def runs(plan: Sequence[tuple[int, int]], repeats: int, seconds: float) -> list[dict[str, Any]]:
    """All of the plan in both modes, in turn, over and over."""
    found: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for repeat in range(repeats):
        for actors, rows in plan[:: 1 if repeat % 2 == 0 else -1]:
            for mode in ("lockstep", "async"):
                batch = actors * rows * STEPS
                result = measured.run(
                    "CartPole-v1",
                    updates=max(4, round(seconds * SPEED / batch)),
                    num_envs=actors * rows,
                    actors=actors,
                    rollout=STEPS,
                    runtime="processes",
                    mode=mode,
                )
                found.setdefault((actors, rows, mode), []).append(result)
                print(
                    f"{actors} actors of {rows} rows, {mode:8} {result['steps_per_s']:>9,.0f} steps/s",
                    flush=True,
                )
    return [
        {"actors": actors, "rows": rows, "mode": mode, "fitted": is_fitted(actors, rows)}
        | measured.middle(results)
        for (actors, rows, mode), results in sorted(found.items())
    ]


# The model -----------------------------------------------------------------------------------------------


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """``y = p + q x`` with p and q not negative, by least squares of the relative errors."""
    xs, ys = np.array(points, dtype=float).T
    weights = 1 / ys
    best = (0.0, float((ys * xs * weights**2).sum() / (xs**2 * weights**2).sum()))
    if len(set(xs.tolist())) > 1:
        slope, start = np.polyfit(xs, ys, 1, w=weights)
        if slope >= 0 and start >= 0:
            best = (float(start), float(slope))
        elif slope < 0:
            best = (float(np.average(ys, weights=weights**2)), 0.0)
    return best


def fit(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The costs, from the runs that may be looked at."""
    seen = [row for row in rows if row["fitted"]]
    lockstep = [row for row in seen if row["mode"] == "lockstep"]
    size = {id(row): row["actors"] * row["rows"] * STEPS for row in seen}
    a0, a1 = line([(row["rows"], row["actors_cpu_per_update"] / row["actors"]) for row in seen])
    l0, l1 = line([(size[id(row)], row["learn_share"] * row["seconds_per_update"]) for row in lockstep])
    c0, c1 = line([(size[id(row)], row["learner_cpu_per_update"]) for row in seen])
    costs: dict[str, Any] = {"a": (a0, a1), "l": (l0, l1), "c": (c0, c1), "h": (0.0, 0.0), "e": 1.0}
    left = [(row["actors"], row["seconds_per_update"] - seconds(costs, row)) for row in lockstep]
    costs["h"] = line([(actors, max(rest, 1e-5)) for actors, rest in left])
    ahead = [row for row in seen if row["mode"] == "async"]
    costs["e"] = max(1.0, statistics.median(row["seconds_per_update"] / seconds(costs, row) for row in ahead))
    return costs


def seconds(costs: dict[str, Any], row: dict[str, Any]) -> float:
    """Of an update, by the model."""
    actors, size = row["actors"], row["actors"] * row["rows"] * STEPS

    def at(name: str, x: float) -> float:
        start, slope = costs[name]
        return start + slope * x

    act, learn, used, beside = at("a", row["rows"]), at("l", size), at("c", size), at("h", actors)
    if row["mode"] == "lockstep":
        return actors * act / min(actors, CORES) + learn + beside
    return costs["e"] * max(act, learn + beside, (actors * act + used) / CORES)


def errors(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of the predicted speeds, relative: median and largest."""
    found = [abs(row["predicted_steps_per_s"] / row["steps_per_s"] - 1) for row in rows]
    return {"runs": len(found), "median": round(statistics.median(found), 4), "largest": round(max(found), 4)}


# What moves ----------------------------------------------------------------------------------------------


def timed(work: Callable[[], object], repeats: int = 20) -> float:
    """The median seconds."""
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def moving() -> dict[str, Any]:
    """Bytes of a step and of a version, and what a byte costs to join, publish and read."""
    torch.set_num_threads(1)
    env, config = gym.make("CartPole-v1"), TrainConfig()
    policy = config.policy.build(env.observation_space, env.action_space)
    rollouts = [allocate(policy, 8, STEPS, config.algo.state_steps, actor) for actor in range(8)]
    size = tree.size_bytes(rollouts[0].tensors())
    weights = dict(policy.state_dict())
    into, board = tree.clone(weights), WeightBoard.create(weights)
    published = timed(lambda: board.publish(0, weights))
    read = timed(lambda: board.read(into))
    board.close()
    count = tree.size_bytes(weights)
    return {
        "bytes_per_step": round(size / (8 * STEPS), 1),
        "weights_bytes": count,
        "join_ns_per_byte": round(timed(lambda: Rollout.join(rollouts)) / (8 * size) * 1e9, 4),
        "publish_ns_per_byte": round(published / count * 1e9, 4),
        "read_ns_per_byte": round(read / count * 1e9, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few actors for a moment")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0, help="of a run, about")
    parser.add_argument("--out", help="write JSON here")
    args = parser.parse_args()
    plan = [(1, 8), (2, 8), (5, 8)] if args.quick else PLAN
    busy = measured.busy()
    rows = runs(plan, 1 if args.quick else args.repeats, 2.0 if args.quick else args.seconds)
    costs = fit(rows)
    for row in rows:
        row["predicted_steps_per_s"] = round(row["actors"] * row["rows"] * STEPS / seconds(costs, row), 1)
        print(
            f"{row['actors']} actors of {row['rows']} rows, {row['mode']:8} "
            f"{row['steps_per_s']:>9,.0f} measured, "
            f"{row['predicted_steps_per_s']:>9,.0f} predicted{'' if row['fitted'] else ', not fitted'}"
        )
    quality = {
        "fitted": errors([row for row in rows if row["fitted"]]),
        "not_fitted": errors([row for row in rows if not row["fitted"]]),
    }
    print(costs, quality, sep="\n")
    results = {
        "busy_before": busy,
        "cores": CORES,
        "rollout": STEPS,
        "moving": moving(),
        "costs": costs,
        "learner_steps_per_s": round(1 / costs["l"][1]) if costs["l"][1] else None,
        "quality": quality,
        "runs": rows,
    }
    print(results["moving"])
    if args.out:
        common.write(args.out, "scaling", results)


if __name__ == "__main__":
    main()
