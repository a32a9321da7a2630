"""Mech arena: what is learned against the bot, and whether memory pays.

    python bench/mech_learning.py bot --size duel [--out bench/results/mech_bot_duel.json]
    python bench/mech_learning.py memory --steps 2000000 [--device cuda] [--out FILE]

``bot``: trains against the fair bot at lethality 1 and plays 200 games of other seeds, half on each side. The
bars: duel 90% after 30 minutes on two cores; 5 v 5 80% after 5 minutes on a GPU, 10 v 10 70% after 8.

``memory``: 5 v 5 with partial sensing in self-play, with an LSTM and without memory, three seeds each, equal
steps; then each LSTM plays each of the others head to head, half of the games on each side.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import common
import torch

import recollect as rc
from recollect.acting.policy_player import PolicyPlayer
from recollect.acting.versus_games import play_games, wilson
from recollect.envs.versus import Versus
from recollect.tasks import make_task

GAMES = 200
SEEDS = (1, 2, 3)
SETTINGS: dict[str, Any] = {
    "encoder": {"hidden": (128,)},
    "rollout": 32,
    "learning_rate": 7e-4,
    "gamma": 0.995,
    "entropy": 0.004,
    "preset": False,
    "progress": False,
    "eval_every": 0,
}
REWARDS = {
    "shaping_gamma": 0.995,
    "zone_reward": 1.5,
    "zone_combat": 1.0,
    "damage_reward": 0.1,
    "kill_reward": 5.0,
    "death_reward": -5.0,
}
"""What pays is to win fights, not to stay in the zone for long."""
OF_TEAMS = {"zone_reward": 2.0, "death_reward": -2.0}
"""With 5 taken for being destroyed, mechs leave the fight to others."""
ENVS = {
    "cpu": {"duel": 256, "5v5": 64, "10v10": 32},
    "cuda": {"duel": 8192, "5v5": 4096, "10v10": 4096},
}
ON_GPU = {
    "minibatches": 8,
    "learning_rate": 8e-4,
    "learning_rate_schedule": "cosine",
    "precision": "tf32",
}


def settings(device: str, size: str) -> dict[str, Any]:
    """Those of configs/mech_duel.yaml and mech_league.yaml, and on a GPU more envs.

    What a mech of a team does is a small part of what happens to it: with 1,024 envs the gradient of 5 v 5
    was noise after 600 updates, with 4,096 it went on learning.
    """
    rewards = REWARDS | ({} if size == "duel" else OF_TEAMS)
    world = {"env_kwargs": {"size": size} | rewards, "num_envs": ENVS[device][size]}
    return SETTINGS | world | ({} if device == "cpu" else ON_GPU)


def stages(steps: int) -> dict[int, dict[str, float]]:
    """The reward of a win: none at first, when it teaches to keep away from the fight."""
    return {steps // 12: {"win_reward": 10.0}}


def against_bot(
    size: str, steps: int, minutes: float, device: str, seed: int, threads: int, folder: str, games: int
) -> dict[str, Any]:
    """Train for so many steps, or minutes if they are over before, if the agent is not in the folder; then
    play, on the CPU.
    """
    path, notes = Path(folder, f"{size}_{seed}"), Path(folder, f"{size}_{seed}.json")
    if not path.exists():
        started = time.monotonic()
        agent = rc.train(
            "mech",
            vs="bot",
            curriculum=stages(steps),
            steps=steps,
            max_seconds=60 * minutes,
            seed=seed,
            device=device,
            threads=threads,
            **settings(device, size),
        )
        seconds, cpu_seconds = time.monotonic() - started, time.process_time()
        agent.save(path)
        rows = {"size": size, "seed": seed, "threads": threads, "steps": agent.steps}
        spent = {"seconds": round(seconds), "cpu_seconds": round(cpu_seconds)}
        more = {"trained on": common.context(), "curve": common.curve(agent.history)}
        notes.write_text(json.dumps(rows | spent | more))
    results = json.loads(notes.read_text())
    if games == 0:
        return results
    torch.set_num_threads(1)
    found = rc.load(path, device="cpu").against("bot", games, eval_mode="both")
    return results | {mode: _short(one) for mode, one in (("greedy", found), ("sampled", found.sampled))}


def _short(games: Any) -> dict[str, Any]:
    found = games.to_json()
    return {key: found[key] for key in ("games", "win", "draw", "loss", "sides", "mean", "info")}


def self_play(core: str, seed: int, steps: int, device: str) -> rc.Agent:
    """An agent of 5 v 5, on one thread."""
    torch.set_num_threads(1)
    chosen = settings(device, "5v5")
    return rc.train(
        "mech",
        core=core,
        curriculum=stages(steps),
        steps=steps,
        seed=seed,
        device=device,
        threads=1,
        **chosen | {"num_envs": chosen["num_envs"] // 2},  # both sides learn
    )


def _trained(core: str, seed: int, steps: int, device: str, folder: str) -> str:
    path = Path(folder, f"{core}_{seed}")
    if not path.exists():
        self_play(core, seed, steps, device).save(path)
    return str(path)


def head_to_head(one: str, other: str, games: int) -> dict[str, int]:
    """Games of ``one`` against ``other``, both with sampled actions: how many ``one`` won."""
    torch.set_num_threads(1)
    first, second = rc.load(one), rc.load(other)
    env = Versus(make_task("mech", 16, size="5v5"), PolicyPlayer(second.policy.eval(), "cpu"))
    result = play_games(first.policy, env, opponent=other, games=games, seed=7, deterministic=False)
    return {name: getattr(result.total, name) for name in ("win", "draw", "loss")}


def memory(steps: int, device: str, folder: str, workers: int) -> dict[str, Any]:
    """Trains six agents, ``workers`` at a time, if they are not in the folder, and lets them play."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = [
            pool.submit(_trained, core, seed, steps, device, folder)
            for seed in SEEDS
            for core in ("lstm", "none")
        ]
        paths = [job.result() for job in jobs]
        ours, others = paths[::2], paths[1::2]
        pairs = list(itertools.product(ours, others))
        played = list(pool.map(head_to_head, *zip(*pairs), [GAMES // 4] * len(pairs)))
    total = {name: sum(one[name] for one in played) for name in ("win", "draw", "loss")}
    count = sum(total.values())
    return {
        "steps": steps,
        "games": count,
        "lstm": total,
        "share of wins": total["win"] / count,
        "interval (95% Wilson)": wilson(total["win"], count),
        "pairs": [{"lstm": SEEDS[i // 3], "none": SEEDS[i % 3], **one} for i, one in enumerate(played)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["bot", "memory"])
    parser.add_argument("--size", default="duel", choices=["duel", "5v5", "10v10"])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2, help="agents trained at a time, for memory")
    parser.add_argument("--games", type=int, default=GAMES, help="against the bot; 0: only train")
    parser.add_argument("--folder", default="runs/mech", help="for the agents")
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.what == "bot":
        results = against_bot(
            args.size,
            args.steps,
            args.minutes,
            args.device,
            args.seed,
            args.threads,
            args.folder,
            args.games,
        )
    else:
        results = memory(args.steps, args.device, args.folder, args.workers)
    print(results)
    if args.out:
        common.write(args.out, f"mech_{args.what}", results)


if __name__ == "__main__":
    main()
