"""What a league of 100 snapshots costs to open, beside one of 5.

    python bench/league_pool.py [--out bench/results/league_pool.json]

Each is a league of the mech arena, 5 v 5, whose snapshots have networks of the preset. In a process of its
own each: ``open`` reads the index; ``play`` draws the first games, which loads the opponents, at most eight,
and plays a step; ``check`` hashes all files. Seconds, and the peak of memory above that of the process
before. The bar is 10 s for ``open`` and ``play`` together.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import common
import torch

from recollect.config.league import LeagueConfig
from recollect.config.train import TrainConfig
from recollect.envs.versus import Versus
from recollect.league.cast import Cast
from recollect.league.matchmaking import choose
from recollect.league.pool import Pool, signature
from recollect.policy.policy import Policy
from recollect.tasks import make_task
from recollect.training.presets import preset

KWARGS = {"size": "5v5"}
SLOTS = 32
SIZES = (5, 100)


def network(env: Any) -> Policy:
    """That of the preset."""
    config = TrainConfig().override(**preset("mech", {"env_kwargs": KWARGS}), env_kwargs=KWARGS)
    return config.policy.build(env.observation_space, env.action_space)


def make(folder: Path, snapshots: int) -> int:
    """A league with so many snapshots, each with weights of its own. Returns the bytes of one."""
    env = make_task("mech", 1, **KWARGS)
    pool, policy = Pool(folder), network(env)
    pool.create(signature(env, KWARGS), env.opponents)
    for number in range(snapshots):
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter += 0.01 * torch.randn_like(parameter)
        pool.add(policy.state_dict(), 1000 * number)
    return pool.path("s0").stat().st_size


def measure(folder: Path) -> dict[str, float]:
    """Open it and play a step."""
    torch.set_num_threads(1)
    env = make_task("mech", SLOTS, **KWARGS)
    build = partial(network, env)
    build()  # what the first network costs is no part of the league
    env.reset(0)
    found: dict[str, float] = {}
    before = peak()
    pool = timed(found, "open", lambda: Pool(folder))
    config = LeagueConfig()
    cast = Cast(env, config, folder, make=build, seed=1)
    roster = choose(pool.playing, {}, config, number=0, steps=0, seed=1)
    cast.adjust(league=asdict(roster))
    versus = Versus(env, cast)
    policy = build().eval()

    def play() -> None:
        obs, first = versus.reset(0), torch.ones(SLOTS * versus.agents, dtype=torch.bool)
        with torch.no_grad():
            acted, _ = policy.act(obs, policy.initial_state(len(first)), first)
            versus.step(policy.to_env(acted.action))

    timed(found, "play", play)
    found["megabytes"] = round(peak() - before, 1)
    timed(found, "check", lambda: [pool.verify(member.name) for member in pool.members])
    found["opponents"] = len(roster.members)
    return found


def timed(found: dict[str, float], name: str, call: Callable[[], Any]) -> Any:
    """Call, and keep the seconds."""
    started = time.perf_counter()
    result = call()
    found[name] = round(time.perf_counter() - started, 3)
    return result


def peak() -> float:
    """Megabytes of this process at their highest."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="bench/results/league_pool.json")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure is not None:
        print(json.dumps(measure(args.measure)))
        return
    results = []
    for snapshots in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            size = make(Path(folder), snapshots)
            command = [sys.executable, __file__, "--measure", folder]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            row = {"snapshots": snapshots, "snapshot_bytes": size, **json.loads(done.stdout)}
        results.append(row)
        print(row)
    common.write(args.out, "league_pool", results)


if __name__ == "__main__":
    main()
