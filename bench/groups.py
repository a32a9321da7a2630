"""What a second policy costs: two groups beside one group with as many rows.

    python bench/groups.py [--rounds 5] [--out bench/results/groups.json]

The env is a trivial one on tensors with two agents of equal spaces, so that acting and learning are all of
the time. Both ways train with equally many threads, in alternating rounds. The bar: two groups take at most
1.15 times as long. They make twice as many calls of half the size; with two threads they learn side by side,
while one group splits its rows. ``two_learner_processes``: with a process for the learner of each group.
``by_activity`` has milliseconds per iteration, also of half the rows alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from gymnasium import spaces

import recollect as rc
from recollect.base.types import Step
from recollect.envs.groups import Group

ROOT = Path(__file__).resolve().parents[1]
BAR = 1.15
SETTINGS: dict[str, Any] = {"rollout": 128, "progress": False, "eval_every": 0}
ACTIVITIES = ("act", "env", "learn")


class Pair:
    """Two agents in each slot that see noise for 25 steps, in one group or in two."""

    device = torch.device("cpu")
    split = False

    def __init__(self, num_envs: int):
        self.num_envs = num_envs
        box, act = spaces.Box(-np.inf, np.inf, (8,), np.float32), spaces.Discrete(4)
        names = [("a",), ("b",)] if self.split else [("a", "b")]
        self.groups = {"".join(agents): Group(agents, box, act) for agents in names}
        self._age = 0

    def reset(self, seed: int) -> dict[str, torch.Tensor]:
        """Restart all slots."""
        self._generator, self._age = torch.Generator().manual_seed(seed), 0
        return {name: self._noise(group) for name, group in self.groups.items()}

    def step(self, action: Mapping[str, torch.Tensor]) -> dict[str, Step]:
        """The reward is for action 0."""
        self._age = (self._age + 1) % 25
        made = {}
        for name, group in self.groups.items():
            obs, rows = self._noise(group), self.num_envs * len(group.agents)
            over, never = torch.full((rows,), self._age == 0), torch.zeros(rows, dtype=torch.bool)
            made[name] = Step(obs, over, (action[name] == 0).float(), over, never, obs, ~never)
        return made

    def close(self) -> None:
        """Do nothing."""

    def _noise(self, group: Group) -> torch.Tensor:
        return torch.randn(self.num_envs * len(group.agents), 8, generator=self._generator)


class SplitPair(Pair):
    """The same with a group for each agent."""

    split = True


class Half(Pair):
    """One of the two agents, alone."""

    def __init__(self, num_envs: int):
        super().__init__(num_envs)
        self.groups = {"a": next(iter(SplitPair(num_envs).groups.values()))}


def seconds(
    env: Any, num_envs: int, threads: int, iterations: int = 8, **more: Any
) -> tuple[float, dict[str, float]]:
    """The time of training, without its start; and milliseconds per iteration by activity, medians."""
    found: list[dict[str, float]] = []

    def look(training: Any, metrics: dict[str, float]) -> None:
        steps = metrics["steps"] - training.history.rows[-2]["steps"]
        found.append({name: 1000 * steps / metrics[f"speed/{name}"] for name in ACTIVITIES})

    agents = sum(len(group.agents) for group in env(1).groups.values())
    steps = num_envs * agents * 128
    with rc.train(env, steps=2 * steps, num_envs=num_envs, threads=threads, **SETTINGS, **more) as agent:
        started = time.perf_counter()
        agent.train(iterations * steps, progress=False, callbacks=look)
        took = time.perf_counter() - started
    return took, {name: statistics.median(row[name] for row in found) for name in ACTIVITIES}


def compared(rows: int, threads: int, rounds: int) -> dict[str, Any]:
    """One group of ``rows`` rows and two of half as many."""
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "one_group": (Pair, {}),
        "two_groups": (SplitPair, {}),
        "half_alone": (Half, {}),
    }
    if threads > 1:
        kinds["two_learner_processes"] = (SplitPair, {"learner_processes": True})
    made = [
        {name: seconds(env, rows // 2, threads, **more) for name, (env, more) in kinds.items()}
        for _ in range(rounds)
    ]

    def of_one(name: str) -> float | None:
        """The median of its time beside that of one group."""
        ratios = [found[name][0] / found["one_group"][0] for found in made if name in found]
        return round(statistics.median(ratios), 3) if ratios else None

    ratios = [found["two_groups"][0] / found["one_group"][0] for found in made]
    return {
        "rows": rows,
        "threads": threads,
        "one_group_steps_per_s": round(
            rows * 128 * 8 / statistics.median(found["one_group"][0] for found in made)
        ),
        "two_groups_of_one": round(statistics.median(ratios), 3),
        "two_learner_processes_of_one": of_one("two_learner_processes"),
        "range": [round(min(ratios), 3), round(max(ratios), 3)],
        "reached": statistics.median(ratios) <= BAR,
        "by_activity": {
            name: {part: round(statistics.median(f[name][1][part] for f in made), 1) for part in ACTIVITIES}
            for name in kinds
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 64, 256], help="of both agents together")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", default=str(ROOT / "bench/results/groups.json"))
    args = parser.parse_args()
    results = []
    for threads in args.threads:
        for rows in args.rows:
            results.append(compared(rows, threads, args.rounds))
            print(results[-1], flush=True)
    common.write(args.out, "groups", {"bar": BAR, "rows": results})


if __name__ == "__main__":
    main()
