"""What Recollect reaches in other people's worlds: the files configs/NAME.yaml, three seeds each.

    python bench/worlds.py [--only minigrid] [--seeds 1 2 3] [--jobs 2] [--out bench/results/worlds.json]

The settings were chosen with seeds 100 and 101. Each run is a process with one torch thread, `--jobs` of them
at a time. It trains as `recollect train --config configs/NAME.yaml --seed SEED` does, and then evaluates the
agent greedily and by sampling. A world whose package is not installed is skipped. A bar that a seed misses is
printed and written as missed. Flags of the settings, such as `--steps 1000`, go to every run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import common

import recollect as rc
from recollect.training.parse_config import parse_config

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class World:
    """One env with the config file for it."""

    config: str
    package: str
    env: str | None = None
    """Instead of the file's."""
    least: float | None = None
    """The mean greedy return that every seed should reach."""
    flags: tuple[str, ...] = ()
    """Beside the file."""


POPGYM = "popgym:popgym-"
WORLDS = {
    "MiniGrid-MemoryS7": World("minigrid_memory.yaml", "minigrid", least=0.9),
    "CountRecallEasy": World("popgym_cards.yaml", "popgym", least=0.9),
    "AutoencodeEasy": World("popgym_cards.yaml", "popgym", f"{POPGYM}AutoencodeEasy-v0"),
    "ConcentrationEasy": World("popgym_cards.yaml", "popgym", f"{POPGYM}ConcentrationEasy-v0"),
    "PositionOnlyPendulumEasy": World("popgym_pendulum.yaml", "popgym"),
    "Pong": World("atari.yaml", "ale_py"),
    "HalfCheetah, positions only": World("mujoco_positions.yaml", "mujoco"),
    "HalfCheetah, no memory": World("mujoco_positions.yaml", "mujoco", flags=("--core", "none")),
}


def run(name: str, seed: int, episodes: int, flags: list[str]) -> dict[str, Any]:
    """Train one agent by its file and evaluate it, in this process."""
    world = WORLDS[name]
    file = str(ROOT / "configs" / world.config)
    parsed = parse_config(["--config", file, "--seed", str(seed), *world.flags, *flags])
    started = time.perf_counter()
    agent = rc.train(world.env or parsed.env, progress=False, **parsed.given)
    seconds = time.perf_counter() - started
    greedy = agent.evaluate(episodes=episodes, eval_mode="both")
    found = {"greedy": greedy, "sampled": greedy.sampled}
    return {
        "name": name,
        "seed": seed,
        "config": world.config,
        "steps": agent.steps,
        "seconds": round(seconds, 1),
        **{by: round(evaluation.mean, 3) for by, evaluation in found.items()},
        **{f"{by}_interval": [round(x, 3) for x in evaluation.interval] for by, evaluation in found.items()},
        "bar": world.least,
        "reached": world.least is None or greedy.mean >= world.least,
        "curve": common.curve(agent.history, 30),
    }


def child(name: str, seed: int, args: argparse.Namespace) -> dict[str, Any] | None:
    """``run`` in a process of its own; None if it failed."""
    command = [
        sys.executable,
        __file__,
        "--one",
        name,
        str(seed),
        "--episodes",
        str(args.episodes),
        *args.flags,
    ]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        print(f"{name}, seed {seed}: failed\n{done.stderr}", flush=True)
        return None
    row = json.loads(done.stdout.splitlines()[-1])
    missed = "" if row["reached"] else f"   MISSED {row['bar']:g}"
    print(
        f"{name}, seed {seed}: greedy {row['greedy']:g}, sampled {row['sampled']:g} after "
        f"{row['steps']:,} steps in {row['seconds']:.0f} s{missed}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="only the worlds whose name contains this")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--episodes", type=int, default=200, help="of each evaluation")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--out", help="write JSON here; runs of other worlds in it are kept")
    parser.add_argument("--one", nargs=2, metavar=("WORLD", "SEED"), help=argparse.SUPPRESS)
    args, args.flags = parser.parse_known_args()
    if args.one:
        name, seed = args.one
        print(json.dumps(run(name, int(seed), args.episodes, ["--threads", "1", *args.flags])))
        return
    names = [name for name in WORLDS if args.only.lower() in name.lower()]
    for name in [name for name in names if find_spec(WORLDS[name].package) is None]:
        print(f"{name}: skipped, {WORLDS[name].package} is not installed")
        names.remove(name)
    with ThreadPoolExecutor(args.jobs) as pool:
        waiting = [pool.submit(child, name, seed, args) for name in names for seed in args.seeds]
        rows = [row for row in (each.result() for each in waiting) if row]
    if args.out:
        path = Path(args.out)
        old = json.loads(path.read_text())["results"] if path.exists() else []
        done = {row["name"] for row in rows}
        common.write(path, "worlds", [row for row in old if row["name"] not in done] + rows)


if __name__ == "__main__":
    main()
