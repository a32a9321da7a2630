"""An iteration beside its floor: the same work in the fewest operations, without anything around it.

    python bench/floor.py [--rounds 30] [--envs 4 16 64] [--cores lstm gru none mingru] [--threads 1]

CartPole without velocities through Gymnasium, rollout 128, 4 epochs, 4 minibatches, chunks of 32, an encoder
of 128 and a core of 128. After every iteration of one training run the bare parts are timed in the same
process, so that both see the same machine:

========  ==========================================================================================
part      the work of one iteration
========  ==========================================================================================
env       ``step`` of every env, with a reset at its end, and one array of the observations
act       a linear layer, the core's step, two linear heads, a sampled action, its log-prob
learn     the same over chunks, PPO's loss and ``backward``, with as many torch threads as cores
adam      the gradient's norm, the scaling, ``torch.optim.Adam(fused=True)``, ``zero_grad``
========  ==========================================================================================

Nothing is recorded, no reset reaches the core, returns and advantages are random numbers. ``nn.LSTM`` and
``nn.GRU`` stand for the cores of these names; ``mingru`` is Recollect's own core, ``none`` none. Medians over
the rounds; ``share`` is floor / iteration: 1 would be an iteration that takes no longer than its bare parts.
On a busy machine torch's threads wait for each other, and only CPU seconds (``cpu``) with ``--threads 1``
mean something.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import common
import numpy as np
import torch
from others.task import position_cartpole
from torch import Tensor, nn

import recollect as rc
from recollect.cores import make_core

ROLLOUT, CHUNK, EPOCHS, MINIBATCHES, HIDDEN, ACTIONS, SEEN = 128, 32, 4, 4, 128, 2, 2
CORES = ("lstm", "gru", "none", "mingru")


class Bare:
    """The bare parts of an iteration."""

    def __init__(self, core: str, envs: int, threads: int):
        self.core, self.rows, self.threads = core, envs, threads
        self.encoder, self.head, self.critic = (
            nn.Linear(SEEN, HIDDEN),
            nn.Linear(HIDDEN, ACTIONS),
            nn.Linear(HIDDEN, 1),
        )
        self.memory: Any = {
            "lstm": lambda: nn.LSTM(HIDDEN, HIDDEN),
            "gru": lambda: nn.GRU(HIDDEN, HIDDEN),
            "none": nn.Identity,
            "mingru": lambda: make_core("mingru", HIDDEN),
        }[core]()
        parts = (self.encoder, self.memory, self.head, self.critic)
        self.weights = [weight for part in parts for weight in part.parameters()]
        self.adam = torch.optim.Adam(self.weights, lr=1e-3, eps=1e-5, fused=True)
        self.envs = [position_cartpole() for _ in range(envs)]
        for number, env in enumerate(self.envs):
            env.reset(seed=number)
        self.obs = torch.randn(envs, SEEN)
        self.state = self._initial(envs)
        self.actions = np.random.default_rng(0).integers(ACTIONS, size=(ROLLOUT, envs))

    def _initial(self, rows: int) -> Any:
        zeros = torch.zeros(rows, HIDDEN)
        if self.core == "mingru":
            return self.memory.initial_state(rows)
        return (zeros, zeros) if self.core == "lstm" else zeros

    def env(self) -> None:
        """A rollout of env steps."""
        for actions in self.actions:
            seen = []
            for env, action in zip(self.envs, actions):
                obs, _, terminated, truncated, _ = env.step(action)
                seen.append(env.reset()[0] if terminated or truncated else obs)
            np.stack(seen)

    @torch.no_grad()
    def act(self) -> None:
        """A rollout of acting steps."""
        torch.set_num_threads(1)
        state, first, memory = self.state, torch.zeros(self.rows, dtype=torch.bool), self.memory
        for _ in range(ROLLOUT):
            x = self.encoder(self.obs).tanh_()
            if self.core == "lstm":
                weights = (memory.weight_ih_l0, memory.weight_hh_l0, memory.bias_ih_l0, memory.bias_hh_l0)
                x, _ = state = torch.lstm_cell(x, state, *weights)
            elif self.core == "gru":
                weights = (memory.weight_ih_l0, memory.weight_hh_l0, memory.bias_ih_l0, memory.bias_hh_l0)
                x = state = torch.gru_cell(x, state, *weights)
            elif self.core == "mingru":
                x, state = memory.step(x, state, first)
            log_probs = self.head(x).log_softmax(-1)
            self.critic(x)
            action = (log_probs - torch.empty_like(log_probs).exponential_().log_()).argmax(-1)
            log_probs.gather(-1, action.unsqueeze(-1))

    def _batch(self) -> dict[str, Tensor]:
        rows = self.rows * ROLLOUT // CHUNK // MINIBATCHES
        shape = (CHUNK, rows)
        numbers = {name: torch.randn(shape) for name in ("old", "advantage", "return")}
        return numbers | {"obs": torch.randn(*shape, SEEN), "action": torch.randint(ACTIONS, shape)}

    def learn(self) -> None:
        """The gradients of all minibatches."""
        torch.set_num_threads(self.threads)
        for _ in range(EPOCHS * MINIBATCHES):
            self._gradient(self._batch())
            self._clear()

    def _gradient(self, batch: dict[str, Tensor]) -> None:
        x = self.encoder(batch["obs"]).tanh()
        rows = x.shape[1]
        if self.core in ("lstm", "gru"):
            x, _ = self.memory(x)
        elif self.core == "mingru":
            x, _ = self.memory.unroll(x, self._initial(rows), torch.zeros(CHUNK, rows, dtype=torch.bool))
        log_probs, value = self.head(x).log_softmax(-1), self.critic(x).squeeze(-1)
        log_prob = log_probs.gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        ratio = (log_prob - batch["old"]).exp()
        gain = torch.minimum(ratio * batch["advantage"], ratio.clamp(0.8, 1.2) * batch["advantage"]).mean()
        (0.25 * (value - batch["return"]).square().mean() - gain - 0.01 * entropy).backward()

    def _clear(self) -> None:
        for weight in self.weights:
            weight.grad = None

    def optimise(self) -> None:
        """All optimiser steps."""
        torch.set_num_threads(1)
        for weight in self.weights:
            weight.grad = torch.zeros_like(weight)
        grads = [weight.grad for weight in self.weights if weight.grad is not None]
        for _ in range(EPOCHS * MINIBATCHES):
            norm = torch.linalg.vector_norm(torch.cat([grad.flatten() for grad in grads]))
            torch._foreach_mul_(grads, (0.5 / (norm + 1e-6)).clamp(max=1))
            self.adam.step()
        self._clear()

    def times(self) -> dict[str, tuple[float, float]]:
        """Seconds and CPU seconds of each part."""
        before = torch.get_num_threads()
        parts: dict[str, Callable[[], None]] = {
            "env": self.env,
            "act": self.act,
            "learn": self.learn,
            "adam": self.optimise,
        }
        found = {}
        for name, part in parts.items():
            wall, cpu = time.perf_counter(), time.process_time()
            part()
            found[name] = (time.perf_counter() - wall, time.process_time() - cpu)
        torch.set_num_threads(before)
        return found


def measure(core: str, envs: int, rounds: int, threads: int, settings: dict[str, Any]) -> dict[str, Any]:
    """One training run, with the bare parts after every iteration."""
    bare = Bare(core, envs, threads)
    floors: list[dict[str, tuple[float, float]]] = []
    whole: list[tuple[float, float]] = []
    ours: list[dict[str, float]] = []
    started = [0.0, 0.0]

    def after(_: Any, metrics: dict[str, float]) -> None:
        whole.append((time.perf_counter() - started[0], time.process_time() - started[1]))
        ours.append(metrics)
        floors.append(bare.times())
        started[:] = time.perf_counter(), time.process_time()

    rc.train(
        position_cartpole,
        steps=(rounds + 3) * envs * ROLLOUT,
        num_envs=envs,
        rollout=ROLLOUT,
        chunk=CHUNK,
        epochs=EPOCHS,
        minibatches=MINIBATCHES,
        encoder=rc.EncoderConfig(hidden=(HIDDEN,)),
        progress=False,
        callbacks=[after],
        **({"core": "none", "recurrent_mode": "none"} if core == "none" else {"core": core}),
        **settings,
    )
    steps = envs * ROLLOUT

    def median(numbers: list[float]) -> float:
        return statistics.median(numbers[3:])

    parts = {
        name: {
            "ms": round(1e3 * median([floor[name][0] for floor in floors]), 2),
            "cpu_ms": round(1e3 * median([floor[name][1] for floor in floors]), 2),
        }
        for name in floors[0]
    }
    floor = [median([sum(part[i] for part in one.values()) for one in floors]) for i in (0, 1)]
    iteration = [median([one[i] for one in whole]) for i in (0, 1)]
    return {
        "floor_ms": round(1e3 * floor[0], 1),
        "iteration_ms": round(1e3 * iteration[0], 1),
        "share": round(floor[0] / iteration[0], 3),
        "cpu_share": round(floor[1] / iteration[1], 3),
        "steps_per_second": round(steps / iteration[0]),
        "floor_parts": parts,
        "iteration_parts_ms": {
            name: round(1e3 * steps / median([row[f"speed/{name}"] for row in ours]), 2)
            for name in ("env", "act", "learn")
        },
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--envs", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--cores", nargs="+", choices=CORES, default=list(CORES))
    parser.add_argument("--threads", type=int, help="of both; by default as many as cores")
    parser.add_argument("--parallel", help="that setting of the runs; by default their own default")
    parser.add_argument("--out", default="bench/results/floor.json")
    args = parser.parse_args()
    threads = args.threads or len(os.sched_getaffinity(0))
    settings = {"threads": threads} | ({} if args.parallel is None else {"parallel": args.parallel})
    results: dict[str, Any] = {}
    print(f"{'core':>7} {'envs':>5} {'floor ms':>9} {'iteration':>9} {'share':>6} {'cpu':>5} {'steps/s':>8}")
    for core in args.cores:
        for envs in args.envs:
            row = results[f"{core}, {envs} envs"] = measure(core, envs, args.rounds, threads, settings)
            bare = "/".join(
                f"{row['floor_parts'][name]['ms']:.0f}" for name in ("env", "act", "learn", "adam")
            )
            own = "/".join(f"{ms:.0f}" for ms in row["iteration_parts_ms"].values())
            print(
                f"{core:>7} {envs:>5} {row['floor_ms']:>9} {row['iteration_ms']:>9} {row['share']:>6} "
                f"{row['cpu_share']:>5} {row['steps_per_second']:>8,}  {own} against {bare}",
                flush=True,
            )
    common.write(args.out, "floor", {"settings": settings, "rows": results})


if __name__ == "__main__":
    main()
