"""Mech arena: agent steps per second of the simulation, and of training with an LSTM.

    python bench/mech.py [--rounds 5] [--device cpu] [--out bench/results/mech.json]

Simulation: both teams of 10 v 10, partial sensing, played by the bot, so that there are fights; its own time
is left out. On the CPU with one thread, and in two processes of one thread each. The bar: 50,000 agent steps
per second on two cores, 5 million on a GPU. Training: valid rows of learners per second, with self-play, so
that all rows learn. The bar: 6,000 on two cores, 1 million on a GPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from typing import Any

import common
import torch

import recollect as rc
from recollect.tasks import make_task
from recollect.tasks.mech.bot import MechBot

GAME = 240
SIZES = {"duel": 256, "5v5": 128, "10v10": 128}
"""Envs of each size on the CPU; 32 times as many on a GPU."""
TRAININGS = {"duel": (128, 32), "10v10": (32, 32)}
"""Envs and rollout of the trainings on the CPU."""


def simulation_speed(size: str, num_envs: int, device: str, rounds: int, threads: int = 1) -> int:
    """Agent steps per second: the median of all rounds of a quarter of a game."""
    torch.set_num_threads(threads)
    arena = make_task("mech", num_envs, device, size=size)
    bot = MechBot(arena)
    arena.reset(0)
    found: list[float] = []
    for round_ in range(rounds + 4):
        seconds = 0.0
        for _ in range(GAME // 4):
            action = bot.play()
            _wait(device)
            started = time.perf_counter()
            arena.step(action)
            _wait(device)
            seconds += time.perf_counter() - started
        if round_ >= 4:  # after a whole game
            found.append(num_envs * arena.agents * (GAME // 4) / seconds)
    return round(statistics.median(found))


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def two_processes(size: str, num_envs: int, rounds: int) -> int:
    """The sum of two processes at the same time."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        return sum(pool.starmap(simulation_speed, [(size, num_envs, "cpu", rounds)] * 2))


def training_speed(size: str, num_envs: int, rollout: int, device: str, updates: int) -> dict[str, int]:
    """Valid agent steps per second, and what acting, envs and learning alone would make."""
    rows: list[dict[str, float]] = []
    agents = 2 * {"duel": 1, "5v5": 5, "10v10": 10}[size]
    rc.train(
        "mech",
        steps=updates * rollout * num_envs * agents,
        num_envs=num_envs,
        env_kwargs={"size": size},
        core="lstm",
        rollout=rollout,
        chunk=rollout,
        device=device,
        progress=False,
        eval_every=0,
        callbacks=[lambda _, metrics: rows.append(metrics)],
    )
    parts = ("total", "env", "act", "learn")
    return {part: round(statistics.median(row[f"speed/{part}"] for row in rows[2:])) for part in parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out")
    args = parser.parse_args()
    on_gpu = args.device == "cuda"
    results: dict[str, Any] = {"simulation": {}, "training": {}}
    for size, num_envs in SIZES.items():
        num_envs *= 32 if on_gpu else 1
        found = {
            "envs": num_envs,
            "agent_steps_per_second": simulation_speed(size, num_envs, args.device, args.rounds),
        }
        if not on_gpu:
            found["in_two_processes"] = two_processes(size, num_envs, args.rounds)
        results["simulation"][size] = found
        print(size, found, flush=True)
    torch.set_num_threads(2)
    for size, (num_envs, rollout) in TRAININGS.items():
        num_envs *= 32 if on_gpu else 1
        found = {"envs": num_envs, **training_speed(size, num_envs, rollout, args.device, 10)}
        results["training"][size] = found
        print("training", size, found, flush=True)
    if args.out:
        common.write(args.out, "mech", results)


if __name__ == "__main__":
    main()
