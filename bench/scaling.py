"""How speed grows with the number of actors: training runs with 1 to 8, and the cost of moving bytes.

    python bench/scaling.py --quick
    python bench/scaling.py --out bench/results/scaling.json

CartPole-v1 under the processes runtime, lockstep and async, 8 rows for each actor (and 32 for a few numbers
of actors), rollout 128, the default PPO.
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
import torch

from recollect.acting.actor import allocate
from recollect.algos.catalog import acting
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
        {"actors": actors, "rows": rows, "mode": mode} | measured.middle(results)
        for (actors, rows, mode), results in sorted(found.items())
    ]


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
    rollouts = [allocate(policy, 8, STEPS, acting(config.algo), actor) for actor in range(8)]
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
    results = {
        "busy_before": busy,
        "cores": CORES,
        "rollout": STEPS,
        "moving": moving(),
        "runs": rows,
    }
    print(results["moving"])
    if args.out:
        common.write(args.out, "scaling", results)


if __name__ == "__main__":
    main()
