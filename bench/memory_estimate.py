"""How far the estimate of a run's memory is from its peak.

    python bench/memory_estimate.py [--only lstm]

Each case trains two updates in a process of its own. The growth of its peak resident memory is compared with
``training.memory_estimate``, which knows it before. The bar: within a factor of 1.5 either way.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from typing import Any

from common import write

BAR = 1.5
CARTPOLE, CUE, IMAGES = "position-cartpole", "delayed-cue", "images"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm, 8,192 rows": (CUE, {"num_envs": 8192}),
    "lstm, 8,192 rows, accumulate 8": (CUE, {"num_envs": 8192, "accumulate": 8}),
    "lstm, 4,096 rows, 16 minibatches": (CARTPOLE, {"num_envs": 4096, "minibatches": 16}),
    "lstm of 512, 1,024 rows": (CARTPOLE, {"num_envs": 1024, "core": {"name": "lstm", "hidden": 512}}),
    "lstm of 3,000, 16 rows": (CARTPOLE, {"num_envs": 16, "core": {"name": "lstm", "hidden": 3000}}),
    "lstm, rollouts of 1,024, full": (
        CARTPOLE,
        {"num_envs": 512, "rollout": 1024, "recurrent_mode": "full"},
    ),
    "lstm, recomputed": (CARTPOLE, {"num_envs": 4096, "recompute_activations": True}),
    "lstm, episodes": (CARTPOLE, {"num_envs": 2048, "batching": "episodes"}),
    "lstm, burn-in": (CARTPOLE, {"num_envs": 4096, "recurrent_mode": "burn_in", "burn_in_steps": 16}),
    "gru, 4,096 rows": (CARTPOLE, {"num_envs": 4096, "core": "gru"}),
    "mlstm, 1,024 rows": (CARTPOLE, {"num_envs": 1024, "core": "mlstm"}),
    "mamba, 1,024 rows": (CARTPOLE, {"num_envs": 1024, "core": "mamba"}),
    "window, 512 rows": (CARTPOLE, {"num_envs": 512, "core": "window"}),
    "no memory, 8,192 rows": (CARTPOLE, {"num_envs": 8192, "core": "none", "recurrent_mode": "none"}),
    "impala, 4,096 rows": (CARTPOLE, {"num_envs": 4096, "algo": "impala"}),
    "4 actors, 4,096 rows": (CARTPOLE, {"num_envs": 4096, "actors": 4}),
    "encoder of 2,048, 512 rows": (CARTPOLE, {"num_envs": 512, "encoder_hidden": [2048, 2048]}),
    "images": (IMAGES, {"num_envs": 64}),
}
"""Env and settings by name."""


def images(num_envs: int) -> Any:
    """A batch of envs with images of 64 x 64 x 3."""
    import gymnasium as gym
    import numpy as np
    from gymnasium.vector import SyncVectorEnv

    class Noise(gym.Env):
        observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        action_space = gym.spaces.Discrete(3)

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
            super().reset(seed=seed)
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
            return self.observation_space.sample(), 0.0, False, False, {}

    return SyncVectorEnv([Noise] * num_envs)


def resident() -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(name: str) -> dict[str, Any]:
    """Train one case here. Returns estimate and growth of the peak, in bytes."""
    import recollect as rc
    from recollect.config.policy import EncoderConfig
    from recollect.training import memory_estimate

    env, settings = CASES[name]
    settings = dict(settings)
    if widths := settings.pop("encoder_hidden", None):
        settings["encoder"] = EncoderConfig(hidden=tuple(widths))
    config = rc.TrainConfig().override(epochs=1, **settings)
    rc.train("delayed-cue", steps=1, num_envs=4, rollout=32, progress=False)  # loads all libraries
    made: Any = images if env == IMAGES else env
    agent = rc.Agent.create(made, config)
    before = resident()
    measured = memory_estimate.trial(agent.policy, config.algo, config.num_envs)
    estimated = memory_estimate.estimate(agent.policy, config, config.num_envs, measured)
    agent.train(2 * config.num_envs * config.algo.rollout, progress=False)
    grown = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"estimated": estimated.new, "measured": grown, "parts": str(estimated)}


def main() -> None:
    """Measure every case, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--out", help="write JSON here, such as bench/results/memory_estimate.json")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(args.case)))
        return
    results, outside = [], []
    for name in (name for name in CASES if args.only in name):
        command = [sys.executable, __file__, "--case", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name}: {done.stderr[-2000:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        ratio = found["estimated"] / found["measured"]
        results.append({"case": name, **found, "ratio": round(ratio, 3)})
        outside += [name] if not 1 / BAR <= ratio <= BAR else []
        sizes = f"estimated {found['estimated'] / 1e9:6.2f} GB, measured {found['measured'] / 1e9:6.2f} GB"
        print(f"{name:36} {sizes}, ratio {ratio:.2f}  ({found['parts']})", flush=True)
    if args.out:
        write(args.out, "memory_estimate", results)
    if outside:
        sys.exit(f"outside a factor of {BAR}: {', '.join(outside)}")


if __name__ == "__main__":
    main()
