"""Mech arena: agent steps per second of the simulation, and of training with an LSTM.

    python bench/mech.py [--rounds 5] [--device cpu] [--out bench/results/mech.json]

Simulation: both teams, partial sensing, played by the bot, so that there are fights; its own time is left
out. On the CPU with one thread, and in two processes of one thread each; on a GPU a step is a CUDA graph, as
it is in training. The bar for 10 v 10: 50,000 agent steps per second on two cores, 5 million on a GPU.
Training: valid rows of learners per second, with self-play, so that all rows learn. The bar: 6,000 on two
cores, 1 million on a GPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
from typing import Any

import common
import gpu_common
import torch
from torch import Tensor

import recollect as rc
from recollect.base import tree
from recollect.base.cuda_graphs import Graphs
from recollect.tasks import make_task
from recollect.tasks.mech.bot import MechBot

GAME = 240
SIZES = {"cpu": {"duel": 256, "5v5": 128, "10v10": 128}, "cuda": {"duel": 65536, "5v5": 16384, "10v10": 8192}}
"""Envs of each size."""
TRAININGS = {"cpu": {"duel": 128, "10v10": 32}, "cuda": {"duel": 16384, "5v5": 4096, "10v10": 2048}}
"""Envs of the trainings."""
ROLLOUT = 32


def simulation_speed(size: str, num_envs: int, device: str, rounds: int, threads: int = 1) -> int:
    """Agent steps per second: the median of all rounds of a quarter of a game."""
    torch.set_num_threads(threads)
    arena = make_task("mech", num_envs, device, size=size)
    bot = MechBot(arena)
    arena.reset(0)
    graphs = Graphs(torch.device(device))
    play = graphs.captured(bot.play, "the bot", torch.nn.Module())
    action = tree.map(torch.clone, play())
    step = graphs.captured(lambda: arena.step(action), "the arena", torch.nn.Module())
    found: list[float] = []
    for round_ in range(rounds + 4):
        seconds = 0.0
        for _ in range(GAME // 4):
            tree.map(Tensor.copy_, action, play())
            started = gpu_common.now(device)
            step()
            seconds += gpu_common.now(device) - started
        if round_ >= 4:  # after a whole game
            found.append(num_envs * arena.agents * (GAME // 4) / seconds)
    assert not graphs.notes, graphs.notes
    return round(statistics.median(found))


def two_processes(size: str, num_envs: int, rounds: int) -> int:
    """The sum of two processes at the same time."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        return sum(pool.starmap(simulation_speed, [(size, num_envs, "cpu", rounds)] * 2))


def training_speed(size: str, num_envs: int, device: str, updates: int) -> dict[str, int]:
    """Valid agent steps per second, and what acting, envs and learning alone would make: medians of updates
    after the first few, in which a GPU captures its graphs."""
    rows: list[dict[str, float]] = []
    agents = 2 * {"duel": 1, "5v5": 5, "10v10": 10}[size]
    rc.train(
        "mech",
        steps=updates * ROLLOUT * num_envs * agents,
        num_envs=num_envs,
        env_kwargs={"size": size},
        core="lstm",
        rollout=ROLLOUT,
        chunk=ROLLOUT,
        device=device,
        precision="tf32" if device == "cuda" else "fp32",
        progress=False,
        eval_every=0,
        callbacks=[lambda _, metrics: rows.append(metrics)],
    )
    parts = [part for part in ("total", "env", "act", "learn") if f"speed/{part}" in rows[-1]]
    return {part: round(statistics.median(row[f"speed/{part}"] for row in rows[6:])) for part in parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu", choices=tuple(SIZES))
    parser.add_argument("--out")
    args = parser.parse_args()
    on_gpu = args.device == "cuda"
    results: dict[str, Any] = {"simulation": {}, "training": {}}
    for size, num_envs in SIZES[args.device].items():
        found = {
            "envs": num_envs,
            "agent_steps_per_second": simulation_speed(size, num_envs, args.device, args.rounds),
        }
        if not on_gpu:
            found["in_two_processes"] = two_processes(size, num_envs, args.rounds)
        results["simulation"][size] = found
        print(size, found, flush=True)
    torch.set_num_threads(2)
    for size, num_envs in TRAININGS[args.device].items():
        found = {"envs": num_envs, **training_speed(size, num_envs, args.device, 16)}
        results["training"][size] = found
        print("training", size, found, flush=True)
    if args.out:
        common.write(args.out, "mech", results)


if __name__ == "__main__":
    main()
