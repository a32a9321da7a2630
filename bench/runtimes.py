"""Where the actors live, and what it gains: env steps per second of whole training runs, against inline.

    python bench/runtimes.py --quick
    python bench/runtimes.py --repeats 3 --out bench/results/runtimes.json

Three envs with 16 slots and the default PPO (LSTM of 128, rollout 128): one that takes 1 ms a step and sleeps
meanwhile, one that takes 1 ms of its core, and CartPole-v1. The bars on 2 cores: with each slow env the best
of processes and env workers makes at least 1.8 times the steps of inline; with CartPole the best of processes
makes at least 0.9. Repetitions are interleaved: every way runs once before any runs again, in an order that
turns round; ratios are of the medians. Starting is left out, and told as the seconds until the first update.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from typing import Any

import common
import measured
from slow_env import Slow

WAYS: dict[str, dict[str, Any]] = {
    "inline": {},
    "inline, 2 actors": {"actors": 2},
    "inline, 2 env workers": {"env_workers": 2},
    "inline, 2 actors with 1 env worker each": {"actors": 2, "env_workers": 1},
    "inline, 2 actors with 8 env workers each": {"actors": 2, "env_workers": 8},
    "processes, 1 actor, async": {"runtime": "processes", "mode": "async"},
    "processes, 2 actors, lockstep": {"runtime": "processes", "actors": 2},
    "processes, 2 actors, async": {"runtime": "processes", "actors": 2, "mode": "async"},
    "processes, 8 actors, async": {"runtime": "processes", "actors": 8, "mode": "async"},
}
SLEEPING = ("inline, 2 actors with 8 env workers each", "processes, 8 actors, async")
"""More processes than cores: worth it only where they sleep."""
ENVS: dict[str, Any] = {
    "asleep 1 ms a step": functools.partial(Slow, "asleep"),
    "busy 1 ms a step": functools.partial(Slow, "busy"),
    "CartPole-v1": "CartPole-v1",
}
BARS = {"asleep 1 ms a step": 1.8, "busy 1 ms a step": 1.8, "CartPole-v1": 0.9}


def ways(env: str) -> list[str]:
    """What is tried with an env."""
    return [way for way in WAYS if way not in SLEEPING or env.startswith("asleep")]


def compare(env: str, repeats: int, updates: int) -> dict[str, Any]:
    """All ways with one env, in turn, over and over."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways(env)}
    for repeat in range(repeats):
        for way in list(found)[:: 1 if repeat % 2 == 0 else -1]:
            result = measured.run(ENVS[env], updates=updates, warm=2, **WAYS[way])
            found[way].append(result)
            print(f"{env:20} {way:42} {result['steps_per_s']:>9,.0f} steps/s", flush=True)
    base = statistics.median(result["steps_per_s"] for result in found["inline"])
    return {
        way: measured.middle(results)
        | {"of_inline": round(statistics.median(r["steps_per_s"] for r in results) / base, 3)}
        for way, results in found.items()
    }


def contends(env: str, way: str) -> bool:
    """Whether the bar is about it."""
    return way.startswith("processes") or ("env worker" in way and env != "CartPole-v1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one repetition of a few updates")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS))
    parser.add_argument("--out", help="write JSON here")
    args = parser.parse_args()
    busy, results = measured.busy(), {}
    for env in args.envs:
        few, many = (3, 10) if args.quick else (6, 60)
        ways_found = compare(env, 1 if args.quick else args.repeats, many if env == "CartPole-v1" else few)
        best = max(
            (way for way in ways_found if contends(env, way)), key=lambda w: ways_found[w]["of_inline"]
        )
        reached = ways_found[best]["of_inline"]
        results[env] = {"bar": BARS[env], "best": best, "reached": reached, "ways": ways_found}
        print(f"{env:20} best: {best}, {reached} of inline; the bar is {BARS[env]}", flush=True)
    if args.out:
        common.write(args.out, "runtimes", {"busy_before": busy, "envs": results})


if __name__ == "__main__":
    main()
