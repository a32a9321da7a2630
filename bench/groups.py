"""What a second policy costs: two groups beside one group with as many rows.

    python bench/groups.py [--rounds 5] [--out bench/results/groups.json]

The env is a trivial one on tensors with two agents of equal spaces, so that acting and learning are all of
the time. Both ways train with one torch thread, in alternating rounds. The bar: two groups take at most 1.15
times as long. They make twice as many calls of half the size.
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
SETTINGS: dict[str, Any] = {"rollout": 128, "threads": 1, "progress": False, "eval_every": 0}


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


def seconds(env: Any, num_envs: int, steps: int) -> float:
    """The time of training, without its start."""
    with rc.train(env, steps=num_envs * 2 * 128, num_envs=num_envs, **SETTINGS) as agent:
        started = time.perf_counter()
        agent.train(steps, progress=False)
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 64, 256], help="of both agents together")
    parser.add_argument("--out", default=str(ROOT / "bench/results/groups.json"))
    args = parser.parse_args()
    results = []
    for rows in args.rows:
        times = [
            [seconds(env, rows // 2, rows * 128 * 8) for env in (Pair, SplitPair)] for _ in range(args.rounds)
        ]
        ratios = [two / one for one, two in times]
        row = {
            "rows": rows,
            "one_group_steps_per_s": round(rows * 128 * 8 / statistics.median(one for one, _ in times)),
            "two_groups_of_one": round(statistics.median(ratios), 3),
            "range": [round(min(ratios), 3), round(max(ratios), 3)],
            "reached": statistics.median(ratios) <= BAR,
        }
        print(row, flush=True)
        results.append(row)
    common.write(args.out, "groups", {"bar": BAR, "rows": results})


if __name__ == "__main__":
    main()
