"""The learning bars: three seeds of every task, greedy evaluation over 100 episodes.

    python bench/learning.py [--only PART-OF-A-NAME] [--seeds 3] [--jobs 2] [--out FILE]

Shows S001-27 and S004-17: what is solved with which budget, what stays at chance, and how far memory
reaches beyond the chunk. "preset" means the settings that `rc.train` picks for that task by itself;
"plain" the defaults that any env gets.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import common


@dataclass(frozen=True)
class Bar:
    """One line of the table."""

    env: str
    steps: int
    least: float | None = None
    """The mean greedy return that every seed must reach."""
    most: float | None = None
    """The mean greedy return that no seed may exceed: a control that must not learn."""
    settings: dict[str, Any] = field(default_factory=dict)
    agents: int = 1
    """The return counts for so many agents together."""


def cue(horizon: int) -> dict[str, Any]:
    return {"env_kwargs": {"cues": 4, "horizon": horizon}}


MEMORYLESS = {"core": "none", "recurrent_mode": "none"}
PLAIN = {"preset": False}

BARS = {
    "delayed cue 10": Bar("delayed-cue", 300_000, 0.99, None, cue(10)),
    "delayed cue 10, without memory": Bar("delayed-cue", 300_000, None, 0.4, cue(10) | MEMORYLESS),
    "delayed cue 100, preset": Bar("delayed-cue", 1_000_000, 0.99, None, cue(100)),
    "delayed cue 100, plain": Bar("delayed-cue", 1_000_000, None, None, cue(100) | PLAIN),
    "delayed cue 1000, preset": Bar("delayed-cue", 4_000_000, 0.99, None, cue(1000) | {"num_envs": 64}),
    "repeat previous (k = 4)": Bar("repeat-previous", 300_000, 0.9),
    "repeat previous, POPGym's env": Bar("popgym-RepeatPreviousEasy-v0", 300_000, 0.9),
    "T-maze 50, preset": Bar("t-maze", 1_000_000, 0.95, None, {"env_kwargs": {"length": 50}}),
    "T-maze 50, plain": Bar("t-maze", 1_000_000, None, None, {"env_kwargs": {"length": 50}} | PLAIN),
    "CartPole without velocities": Bar("position-cartpole", 150_000, 475),
    "replay: R2D2, T-maze 50": Bar(
        "t-maze", 300_000, 0.95, None, {"algo": "r2d2", "core": "mingru", "env_kwargs": {"length": 50}}
    ),
    "replay: R2D2, T-maze 50, LSTM": Bar(
        "t-maze", 300_000, None, None, {"algo": "r2d2", "env_kwargs": {"length": 50}}
    ),
    "replay: IQN, T-maze 50, 4 frames": Bar(
        "t-maze",
        300_000,
        None,
        0.55,
        {"algo": "iqn", "core": "frames", "states": "rebuilt", "burn_in_steps": 3, "chunk": 1, "batch": 64}
        | {"env_kwargs": {"length": 50}},
    ),
    "replay: R2D2, repeat previous (k = 4)": Bar("repeat-previous", 300_000, 0.9, None, {"algo": "r2d2"}),
    "replay: R2D2, CartPole without velocities": Bar(
        "position-cartpole", 500_000, 450, None, {"algo": "r2d2"}
    ),
    "replay: IQN, treasure hunt": Bar(
        "treasure-hunt", 1_000_000, 300, None, {"algo": "iqn", "policies": "independent"}, agents=2
    ),
    "replay: R2D2, treasure hunt": Bar(
        "treasure-hunt", 2_000_000, 340, None, {"algo": "r2d2", "policies": "independent"}, agents=2
    ),
    "Pendulum without velocities": Bar("position-pendulum", 1_000_000, -250, None, PLAIN),
}


def run(name: str, seed: int, limit: float | None = None) -> dict[str, Any]:
    """Train one agent, for at most ``limit`` seconds, and evaluate it greedily."""
    import torch

    import recollect as rc

    bar = BARS[name]
    if bar.env.startswith("popgym"):
        import popgym  # noqa: F401  (registers its envs)
    torch.set_num_threads(1)
    started = time.perf_counter()
    agent = rc.train(
        bar.env, steps=bar.steps, seed=seed, progress=False, threads=1, max_seconds=limit, **bar.settings
    )
    seconds = time.perf_counter() - started
    evaluation = agent.evaluate(episodes=100, eval_mode="greedy")
    return {
        "name": name,
        "seed": seed,
        "steps": agent.steps,
        "return": round(bar.agents * evaluation.mean, 3),
        "interval": [round(bar.agents * x, 3) for x in evaluation.interval],
        "seconds": round(seconds, 1),
        "curve": common.curve(agent.history),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="only the bars whose name contains this")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--limit", type=float, help="seconds of each training")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--out", help="write JSON here")
    parser.add_argument("--run", nargs=2, metavar=("NAME", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(args.run[0], int(args.run[1]), args.limit)))
        return
    names = [name for name in BARS if args.only in name]
    seeds = range(args.first, args.first + args.seeds)
    todo = [(name, seed, args.limit) for seed in seeds for name in names]
    with ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(_run_apart, todo))
    print(f"\n{'':36} {'bar':>8} {'greedy return of each seed'}")
    for name in names:
        bar = BARS[name]
        returns = [row["return"] for row in rows if row["name"] == name]
        wanted = f">= {bar.least:g}" if bar.least is not None else f"<= {bar.most:g}" if bar.most else "-"
        missed = [r for r in returns if (bar.least or -1e9) > r or r > (bar.most or 1e9)]
        print(f"{name:36} {wanted:>8} {'  '.join(f'{r:g}' for r in returns)}{'   MISSED' if missed else ''}")
    if args.out:
        common.write(args.out, "learning", rows)


def _run_apart(job: tuple[str, int, float | None]) -> dict[str, Any]:
    """One run in a process of its own."""
    command = [sys.executable, __file__, "--run", job[0], str(job[1])]
    command += [] if job[2] is None else ["--limit", str(job[2])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    if done.returncode:
        raise SystemExit(f"{job}: {done.stderr}")
    row = json.loads(done.stdout.splitlines()[-1])
    print(f"{row['name']:36} seed {row['seed']}: {row['return']:g} in {row['seconds']:.0f} s", flush=True)
    return row


if __name__ == "__main__":
    main()
