"""Do the defaults hold on tasks that they were not tuned on? Ten seeds each, and where they end.

    python bench/robust.py --jobs 16 [--folder /tmp/robust] [--seeds 10] [--scale 1.0] [--only popgym ...]
    python bench/robust.py --table [--folder /tmp/robust]        # of the runs that are there

Worlds: popgym-HigherLowerEasy, popgym-MineSweeperEasy, MiniGrid-RedBlueDoors-6x6 and Acrobot without
velocities. Variants: the defaults, ``chunk=16``, and an async run with two actors. Every run is a process of
its own with one thread. Its result is a file in the folder; runs whose file is there are not repeated, so
that a study may be interrupted and continued, and its parts may be made on several machines.

======  ==========================================================================================
number  meaning
======  ==========================================================================================
start   mean return of the first training episodes, as many as ``World.episodes``
best    the highest mean return of so many successive training episodes, read after every update
end     the mean return of the last so many
kept    (end - start) / (best - start): 1 for a run that ends at its best; of a run that has never
        been better than at its start, 1 too
chance  by how much best may exceed end by luck alone, with 95% confidence: twice the standard error
        of their difference
======  ==========================================================================================

The best of many noisy means lies above the true best, so a run counts as stable if its end lacks at most 5%
of the way from start to best, or no more than chance explains. The table shows the interquartile mean over
seeds with its 95% bootstrap interval, and how many seeds are stable.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import common
import gymnasium as gym
import numpy as np

from recollect.reports.statistics import bootstrap_interval, iqm

KEPT = 0.95
POINTS = 20
"""Of a curve in the results."""


class NoVelocities(gym.ObservationWrapper):
    """Acrobot's angles, without the two angular velocities."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)

    def observation(self, observation):
        return observation[:4]


def acrobot() -> gym.Env:
    """Acrobot without velocities."""
    return NoVelocities(gym.make("Acrobot-v1", disable_env_checker=True))


def doors() -> gym.Env:
    """MiniGrid: open the red door first, then the blue one."""
    from minigrid.wrappers import ImgObsWrapper

    return ImgObsWrapper(gym.make("MiniGrid-RedBlueDoors-6x6-v0", disable_env_checker=True))


def higher_lower() -> gym.Env:
    """POPGym: is the next card of the deck higher or lower?"""
    import popgym  # noqa: F401  # registers its envs

    return gym.make("popgym-HigherLowerEasy-v0", disable_env_checker=True)


def mine_sweeper() -> gym.Env:
    """POPGym: sweep a field of 4 x 4 cells without seeing what was swept before."""
    import popgym  # noqa: F401  # registers its envs

    return gym.make("popgym-MineSweeperEasy-v0", disable_env_checker=True)


@dataclass(frozen=True)
class World:
    """An env, and the env steps of a run."""

    make: Callable[[], gym.Env]
    episodes: int
    """In a mean: about a twentieth of those of a run."""
    steps: int = 500_000
    settings: dict[str, Any] = field(default_factory=dict)
    """What belongs to the task, the same for all variants."""


WORLDS = {
    "popgym-higher-lower": World(higher_lower, 500, settings={"last_action_reward": True}),
    "popgym-mine-sweeper": World(mine_sweeper, 2000, settings={"last_action_reward": True}),
    "minigrid-red-blue-doors": World(doors, 100),
    "acrobot": World(acrobot, 200),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "chunk16": {"chunk": 16},
    "async": {"mode": "async", "runtime": "processes", "actors": 2},
}


def train(world: str, variant: str, seed: int, scale: float, set_: dict[str, Any]) -> dict[str, Any]:
    """One run; its numbers and about 40 points of its curve."""
    import recollect as rc

    chosen = WORLDS[world]
    curve: list[list[float]] = []

    def after(_: Any, metrics: dict[str, float]) -> None:
        if metrics["episodes"] >= chosen.episodes:
            curve.append([float(metrics[name]) for name in ("steps", "return", "return_spread")])

    started = time.perf_counter()
    with rc.train(
        chosen.make,
        steps=int(chosen.steps * scale),
        seed=seed,
        threads=1,
        target_episodes=chosen.episodes,
        progress=False,
        callbacks=[after],
        **(chosen.settings | VARIANTS[variant] | set_),
    ) as agent:
        steps = agent.steps
    if not curve:
        raise SystemExit(f"{world}, {variant}: fewer than {chosen.episodes} episodes ended; raise --scale")
    return {
        "world": world,
        "variant": variant,
        "seed": seed,
        "steps": steps,
        "seconds": round(time.perf_counter() - started, 1),
        "settings": {name: repr(value) for name, value in set_.items()},
        "curve": curve,
        "on": common.context(),
    }


def thinned(curve: list[list[float]]) -> list[list[float]]:
    """At most ``POINTS`` points, rounded."""
    return [[float(f"{value:.4g}") for value in point] for point in curve[:: -(-len(curve) // POINTS)]]


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    """Those of a run."""
    returns = [value for _, value, _ in row["curve"]]
    top = max(range(len(returns)), key=returns.__getitem__)
    start, best, end = returns[0], returns[top], returns[-1]
    spreads = row["curve"][top][2], row["curve"][-1][2]
    chance = 2 * math.hypot(*spreads) / math.sqrt(WORLDS[row["world"]].episodes)
    kept = (end - start) / (best - start) if best > start else 1.0
    is_stable = kept >= KEPT or best - end <= chance
    return {"start": start, "best": best, "end": end, "kept": kept, "chance": chance, "stable": is_stable}


def table(folder: Path) -> dict[str, Any]:
    """Print and return the summary of all runs in the folder."""
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    rows = [row | numbers(row) | {"curve": thinned(row["curve"])} for row in rows]
    summary: dict[str, Any] = {}
    print(f"{'world':<24} {'variant':<9} {'seeds':>5}  {'end: IQM (interval)':<30} {'best':>9} {'kept':>6}")
    for world in WORLDS:
        for variant in VARIANTS:
            own = [row for row in rows if (row["world"], row["variant"]) == (world, variant)]
            if not own:
                continue
            end, best, kept = (float(iqm([row[name] for row in own])) for name in ("end", "best", "kept"))
            low, high = map(float, bootstrap_interval([row["end"] for row in own]))
            stable = sum(row["stable"] for row in own)
            summary[f"{world}, {variant}"] = {
                "seeds": len(own),
                "end": end,
                "interval": [low, high],
                "best": best,
                "kept": kept,
                "stable": stable,
            }
            shown = f"{end:.4g} ({low:.4g} to {high:.4g})"
            print(
                f"{world:<24} {variant:<9} {len(own):>5}  {shown:<30} {best:>9.4g} {kept:>6.3f}  "
                f"{stable} of {len(own)} seeds"
            )
    machines = [dict(one) for one in sorted({tuple(row.pop("on").items()) for row in rows}, key=str)]
    return {"machines of the runs": machines, "summary": summary, "runs": rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--scale", type=float, default=1.0, help="of the env steps of every run")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of WORLD--VARIANT")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=JSON", help="settings of all runs")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/robust"), help="of the results of runs")
    parser.add_argument("--max-seconds", type=float, help="start no run later than this")
    parser.add_argument("--table", action="store_true", help="only show what is there")
    parser.add_argument(
        "--one", nargs=3, metavar=("WORLD", "VARIANT", "SEED"), help="one run, in this process"
    )
    parser.add_argument("--out", default="bench/results/robust.json")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.one:
        world, variant, seed = args.one
        chosen = {name: json.loads(value) for name, value in (pair.split("=", 1) for pair in args.set)}
        row = train(world, variant, int(seed), args.scale, chosen)
        path = args.folder / f"{world}--{variant}--{seed}.json"
        path.with_suffix(".part").write_text(json.dumps(row))
        path.with_suffix(".part").replace(path)
        return
    started = time.monotonic()

    def run(name: str) -> None:
        if (args.folder / f"{name}.json").exists():
            return
        if args.max_seconds is not None and time.monotonic() - started > args.max_seconds:
            return
        command = [sys.executable, __file__, "--one", *name.split("--"), "--scale", str(args.scale)]
        command += ["--folder", str(args.folder), *(["--set", *args.set] if args.set else [])]
        done = subprocess.run(
            command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
        )
        last = "done" if done.returncode == 0 else "FAILED: " + " ".join(done.stderr.splitlines()[-1:])
        print(f"{name}: {last}, {time.monotonic() - started:.0f} s since the start", flush=True)

    # Seed by seed, so that an interrupted study has all variants.
    names = [f"{w}--{v}--{seed}" for seed in range(args.seeds) for w in WORLDS for v in VARIANTS]
    if not args.table:
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(run, [name for name in names if any(part in name for part in args.only)]))
    found = table(args.folder)
    if found["runs"]:
        common.write(args.out, "robust", found)


if __name__ == "__main__":
    main()
