"""Treasure hunt: agent steps per second of the env alone, and of training with one policy or two.

    python bench/treasure.py [--rounds 5] [--device cpu] [--out bench/results/treasure.json]

Random actions, one torch thread. The bar: 200,000 agent steps per second in 64 envs of the size large on a
CPU. A training of repeat previous with as many rows stands beside those of treasure hunt.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import common
import torch

import recollect as rc
from recollect.tasks import make_task

ROOT = Path(__file__).resolve().parents[1]
BAR = 200_000
CASES: list[dict[str, Any]] = [{}, {"size": "small"}, {"order": "random"}, {"obs": "rgb"}]
TRAININGS = {
    "one policy": ("treasure-hunt", {"num_envs": 32}),
    "two policies": ("treasure-hunt", {"num_envs": 32, "policies": "independent"}),
    "repeat-previous": ("repeat-previous", {"num_envs": 64}),
}


def env_speed(num_envs: int, device: str, rounds: int, options: dict[str, Any]) -> int:
    """Agent steps per second, the median of all rounds of 200 steps."""
    task = make_task("treasure-hunt", num_envs, device, **options)
    rows, found = num_envs * task.agents, []
    actions = torch.randint(0, 4, (50, rows), generator=torch.Generator().manual_seed(0)).to(device)
    task.reset(0)
    for _ in range(rounds + 1):
        started = time.perf_counter()
        for step in range(200):
            reward = task.step(actions[step % 50]).reward
        reward.sum().item()  # waits for the device
        found.append(rows * 200 / (time.perf_counter() - started))
    return round(statistics.median(found[1:]))


def training_speed(env: str, settings: dict[str, Any], updates: int) -> dict[str, int]:
    """Steps per second: of all, and of the env alone."""
    rows: list[dict[str, float]] = []
    steps = updates * 64 * 128
    quiet: dict[str, Any] = {"preset": False, "progress": False, "eval_every": 0, "threads": 1}
    rc.train(env, steps=steps, callbacks=[lambda _, metrics: rows.append(metrics)], **quiet, **settings)
    parts = ("total", "env", "act", "learn")
    return {part: round(statistics.median(row[f"speed/{part}"] for row in rows[2:])) for part in parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--envs", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--updates", type=int, default=12, help="of each training; 0: none")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default=str(ROOT / "bench/results/treasure.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    alone = []
    for options in CASES:
        for num_envs in args.envs:
            speed = env_speed(num_envs, args.device, args.rounds, options)
            row: dict[str, Any] = {"envs": num_envs, "options": options, "agent_steps_per_s": speed}
            if num_envs == 64 and not options and args.device == "cpu":
                row |= {"bar": BAR, "reached": speed >= BAR}
            print(row, flush=True)
            alone.append(row)
    trained = {}
    for name, (env, settings) in TRAININGS.items() if args.updates else ():
        trained[name] = training_speed(env, settings | {"device": args.device}, args.updates)
        print(name, trained[name], flush=True)
    common.write(args.out, "treasure", {"device": args.device, "env": alone, "training": trained})


if __name__ == "__main__":
    main()
