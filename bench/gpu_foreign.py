"""Foreign envs on the CPU, the policy on the GPU: env steps per second of CartPole-v1 from Gymnasium.

    python bench/gpu_foreign.py --out bench/results/gpu_foreign.json
    python bench/gpu_foreign.py --device cpu --tiny --out /tmp/gpu_foreign.json

PPO with an LSTM of 128, rollouts of 64 steps, 4 epochs of 4 minibatches, in five ways: all on the CPU; on the
GPU with one transfer for every tensor, as it was (``OneByOne``); with one transfer each way per step
(``HostEnv``); so with two actors, of which one is stepped while the GPU acts for the other; and so with 8
env workers for each of the two. Repetitions are interleaved: every way runs once before any runs again, in an
order that turns round. Ratios are of the medians. ``training`` is collecting and learning, ``acting`` is
collecting alone; the device is waited for at the two ends of a repetition only. Starting is left out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import gpu_common as gpu
import gymnasium
import torch

from recollect.agent import Agent
from recollect.base import tree
from recollect.base.types import Step, Tree
from recollect.envs import BatchedEnv, make_env

ENV, ROLLOUT, HIDDEN = "CartPole-v1", 64, 128
CPU, BEFORE, NOW = "cpu", "cuda, a transfer per tensor", "cuda"
WAYS: dict[str, dict[str, Any]] = {
    CPU: {},
    BEFORE: {},
    NOW: {},
    "cuda, 2 actors": {"actors": 2},
    "cuda, 2 actors with 8 env workers each": {"actors": 2, "env_workers": 8},
}
WARM = 5


class OneByOne:
    """The way that it was: every tensor of a step moved by itself, from memory that is not pinned."""

    def __init__(self, env: BatchedEnv, device: str) -> None:
        self.env, self.device = env, torch.empty(0, device=device).device
        self.num_envs, self.agents = env.num_envs, env.agents
        self.observation_space: gymnasium.Space = env.observation_space
        self.action_space: gymnasium.Space = env.action_space

    def reset(self, seed: int) -> Tree:
        return tree.to(self.env.reset(seed), self.device)

    def step(self, action: Tree) -> Step:
        step = self.env.step(tree.to(action, "cpu"))
        obs = tree.to(step.obs, self.device)
        ended = bool(step.terminated.any() or step.truncated.any())
        return Step(
            obs=obs,
            first=step.first.to(self.device),
            reward=step.reward.to(self.device),
            terminated=step.terminated.to(self.device),
            truncated=step.truncated.to(self.device),
            final_obs=tree.to(step.final_obs, self.device) if ended else obs,
            valid=step.valid.to(self.device),
        )

    def close(self) -> None:
        self.env.close()


class Way:
    """An agent that is kept, so that it is started once."""

    def __init__(self, name: str, num_envs: int, args: Any):
        self.device = "cpu" if name == CPU else args.device
        rollout, hidden = (8, 16) if args.tiny else (ROLLOUT, HIDDEN)
        workers = {"env_workers": 1} if args.tiny and "env_workers" in WAYS[name] else {}
        env: Any = OneByOne(make_env(ENV, num_envs), self.device) if name == BEFORE else ENV
        began = time.perf_counter()
        self.agent: Agent = gpu.make(
            env,
            device=self.device,
            num_envs=num_envs,
            rollout=rollout,
            chunk=rollout,
            core=gpu.core("lstm", hidden),
            epochs=4,
            minibatches=4,
            **WAYS[name] | workers,
        )
        self.trainer = gpu.trainer_of(self.agent)
        self.trainer.begin(10**12)
        self.steps = num_envs * rollout
        with self.trainer.working():
            slow = gpu.iterate(self.trainer, 1 if name == CPU else WARM, self.device)
        self.start_s = round(time.perf_counter() - began, 2)
        self._training, self._acting = slow[-1], slow[-1]

    def training(self, seconds: float) -> float:
        """Steps per second, for about so long."""
        return self._timed(lambda: self.trainer.iterate(), seconds, "_training")

    def acting(self, seconds: float) -> float:
        """Without learning."""
        version = self.trainer.learner.updates
        return self._timed(lambda: self.trainer.collector.collect(version), seconds, "_acting")

    def _timed(self, once: Callable[[], Any], seconds: float, kind: str) -> float:
        count = max(2, round(seconds / getattr(self, kind)))
        with self.trainer.working():
            began = gpu.now(self.device)
            for _ in range(count):
                once()
            each = (gpu.now(self.device) - began) / count
        setattr(self, kind, each)  # for the next repetition
        return self.steps / each


def compare(num_envs: int, args: Any, deadline: gpu.Deadline) -> Iterator[dict[str, Any]]:
    """All ways with so many envs, in turn, over and over; what is known after each time."""
    ways: dict[str, Way] = {}
    found: dict[str, dict[str, list[float]]] = {name: {"training": [], "acting": []} for name in WAYS}
    try:
        for name in WAYS:
            ways[name] = Way(name, num_envs, args)
            print(f"{num_envs} envs, {name}: started in {ways[name].start_s:.1f} s", flush=True)
        seconds = 0.05 if args.tiny else args.seconds
        for repeat in range(args.repeats):
            for name in list(WAYS)[:: 1 if repeat % 2 == 0 else -1]:
                if deadline.is_over and repeat > 0:
                    continue
                found[name]["training"].append(ways[name].training(seconds))
                found[name]["acting"].append(ways[name].acting(seconds / 2))
            yield {
                "num_envs": num_envs,
                "ways": {
                    name: {"start_s": ways[name].start_s}
                    | {kind: summed(found, name, kind) for kind in speeds}
                    for name, speeds in found.items()
                },
            }
    finally:
        for way in ways.values():
            way.agent.close()


def summed(found: dict[str, dict[str, list[float]]], name: str, kind: str) -> dict[str, Any]:
    """The median speed of a way, its ratios to others and all its repetitions."""
    middle = {way: statistics.median(speeds[kind]) for way, speeds in found.items()}
    return {
        "steps_per_s": round(middle[name]),
        "of_cpu": round(middle[name] / middle[CPU], 3),
        "of_before": round(middle[name] / middle[BEFORE], 3),
        "of_one_actor": round(middle[name] / middle[NOW], 3),
        "all_steps_per_s": [round(speed) for speed in sorted(found[name][kind])],
    }


def show(results: list[dict[str, Any]]) -> None:
    """The table."""
    heads = ["envs, way", "training steps/s", "of cpu", "of before", "acting steps/s", "of cpu", "of before"]
    lines = []
    for result in results:
        for name, way in result["ways"].items():
            line = [f"{result['num_envs']}, {name}"]
            for kind in ("training", "acting"):
                one = way[kind]
                line += [f"{one['steps_per_s']:,}", f"{one['of_cpu']:.2f}", f"{one['of_before']:.2f}"]
            lines.append(line)
    gpu.table(heads, lines)


def main() -> None:
    parser = gpu.arguments(__doc__, "gpu_foreign.json")
    parser.add_argument("--envs", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a repetition")
    args = parser.parse_args()
    args.repeats = 1 if args.quick else args.repeats
    deadline, book = gpu.Deadline(args.minutes), gpu.Book(args.out, "gpu_foreign", args.commit)
    results: list[dict[str, Any]] = []
    for num_envs in [4] if args.tiny else args.envs:
        results.append({})
        for results[-1] in compare(num_envs, args, deadline):
            book.write(results)
        gpu.clear()
    show(results)


if __name__ == "__main__":
    main()
