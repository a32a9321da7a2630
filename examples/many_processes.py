"""One run, many processes: the same training with its actors and envs in other processes, and its speed.

The env waits for a millisecond in every step, as if it called a simulator. The first three ways give the
same weights, bit for bit. In async mode actors run ahead, so two runs differ.

    python examples/many_processes.py
    python examples/many_processes.py --steps 2048    # only to see that it runs
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import gymnasium as gym
import torch

import recollect as rc

WAYS: dict[str, dict[str, Any]] = {
    "one process": {},
    "env workers": {"env_workers": 2},
    "processes": {"runtime": "processes"},
    "processes, async": {"runtime": "processes", "mode": "async"},
}
"""Settings of each beside those that all have."""


class SlowEcho(gym.Env):
    """Say what you saw on the step before. Every step takes a millisecond."""

    observation_space, action_space = gym.spaces.Discrete(4), gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Start with a number from the env's own random stream."""
        super().reset(seed=seed)
        self.t, self.before, self.now = 0, 0, int(self.np_random.integers(4))
        return self.now, {}

    def step(self, action: int):
        """Wait, and draw the next number."""
        time.sleep(0.001)
        reward = float(action == self.before)
        self.t, self.before, self.now = self.t + 1, self.now, int(self.np_random.integers(4))
        return self.now, reward, False, self.t == 32, {}


def main(argv: list[str] | None = None) -> None:
    """Train in every way, and compare speed and weights with those of the first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=8192, help="env steps of each run (%(default)s)")
    args = parser.parse_args(argv)

    first: dict[str, torch.Tensor] = {}
    for way, settings in WAYS.items():
        shared = {"steps": args.steps, "actors": 2, "rollout": 32, "progress": False}
        with rc.train(SlowEcho, **shared | settings) as agent:
            speeds = agent.history.column("speed/total")[1][1:]  # processes start in the first update
            weights = {name: tensor.clone() for name, tensor in agent.policy.state_dict().items()}
        first = first or weights
        is_same = all(torch.equal(weights[name], tensor) for name, tensor in first.items())
        how = "as in one process" if is_same else "of its own"
        print(f"{way:>16}: {median(speeds):6,.0f} steps/s, weights {how}")


if __name__ == "__main__":
    main()
