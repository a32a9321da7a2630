"""What the handling of recurrent state costs: the same work with it and without.

    python bench/state_overhead.py [--cores lstm,gru,mingru,mamba] [--rounds 60]
                                   [--out bench/results/state_overhead.json]

Shows S004-11: with state handling a rollout takes at most 10% longer, an update at most 20%.

CartPole without velocities, 16 rows, rollouts of 128 steps in chunks of 32, the core at its default size, one
thread. "Without" computes the same layers on the same numbers, but

- acting neither checks nor resets states, and stores none;
- learning gathers no states at chunk starts and selects none for minibatches (all start from the same zeros),
  unrolls without resets, and measures neither norms nor staleness of states.

Episodes of an untrained policy are short, 20 steps or so, and every one is a reset inside of a chunk;
updates are also measured with one in 200 steps, as later in a training.

Rollouts and updates of both kinds alternate, one after the other, and the fastest tenth of each counts, by
CPU time of this process, so that other programs matter little. One update in 20 measures how stale states
are, as in any run; it is timed by itself and counts for a twentieth.
"""

from __future__ import annotations

import argparse
import copy
import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import common
import torch

import recollect as rc
from recollect.acting.actor import Actor
from recollect.algos.catalog import algorithm, make_learner
from recollect.base import row_threads, tree
from recollect.base.types import State
from recollect.config.policy import PolicyConfig
from recollect.config.ppo import PPOConfig
from recollect.learning import learner
from recollect.learning.learner import Learner
from recollect.policy.policy import Policy
from recollect.tasks import make_task

ROWS, LIMITS = 16, {"rollout": 0.10, "update": 0.20, "update later": 0.20}
RARE = 1 / 200
"""Resets in a step, later in a training."""
EVERY = PPOConfig().gauge_every


class Stateless(Learner):
    """PPO whose chunks have no states of their own: all start from the same zeros."""

    @functools.lru_cache  # noqa: B019
    def _zeros(self, rows: int) -> State:
        return self.policy.initial_state(rows)

    def update(self, *args: Any, **more: Any) -> Any:
        usual = learner.burn_in
        learner.burn_in = lambda _, batch: replace(batch, state=self._zeros(batch.count))
        try:
            return super().update(*args, **more)
        finally:
            learner.burn_in = usual


def without_state(policy: Policy) -> Policy:
    """A copy whose core takes every state as it comes."""
    bare = copy.deepcopy(policy)
    bare.core._check = lambda *args, **kwargs: None
    bare.core.reset = lambda state, first: state
    return bare


def times(pieces: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """CPU seconds of each piece, called in turn: the tenth of them that is the fastest, at its upper end."""
    found: dict[str, list[float]] = {name: [] for name in pieces}
    for _ in range(rounds + 3):
        for name, piece in pieces.items():
            began = time.process_time()
            piece()
            found[name].append(time.process_time() - began)
    return {name: statistics.quantiles(values[3:], n=10)[0] for name, values in found.items()}  # once warm


def overhead(with_it: float, without: float) -> dict[str, float]:
    return {
        "overhead": round(with_it / without - 1, 4),
        "with_ms": round(with_it * 1e3, 3),
        "without_ms": round(without * 1e3, 3),
    }


def measure(core: str, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    # Weights hardly move, so that every update is the same work; nothing is compared with what was recorded.
    config = PPOConfig(learning_rate=1e-9, tolerance=1e9, gauge_every=0)
    env = make_task("position-cartpole", ROWS)
    policy = PolicyConfig(core=core).build(env.observation_space, env.action_space)
    bare = without_state(policy)
    usual = Actor(env, policy, rollout=config.rollout, state_steps=config.state_steps, seed=0)
    plain = Actor(make_task("position-cartpole", ROWS), bare, rollout=config.rollout, state_steps=(), seed=0)
    rollout = copy.deepcopy(usual.collect())
    blank = replace(rollout, states=(), first=torch.zeros_like(rollout.first))
    later = replace(rollout, first=torch.rand(rollout.first.shape) < RARE)
    gauged, ungauged = make_learner(policy, replace(config, gauge_every=1)), make_learner(policy, config)
    other = Stateless(bare, algorithm(config), config)
    other.deviation_check.is_checked = True
    acting = times({"with": usual.collect, "without": plain.collect}, rounds)
    learning = times(
        {
            "gauged": lambda: gauged.update(rollout),
            "with": lambda: ungauged.update(rollout),
            "later": lambda: ungauged.update(later),
            "without": lambda: other.update(blank),
        },
        rounds,
    )
    measuring = (learning["gauged"] - learning["with"]) / EVERY
    return {
        "resets": round(float(rollout.first[: rollout.steps].float().mean()), 4),
        "state_bytes": tree.size_bytes(policy.initial_state(1)),
        "rollout": overhead(acting["with"], acting["without"]),
        "update": overhead(learning["with"] + measuring, learning["without"]),
        "update later": overhead(learning["later"] + measuring, learning["without"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cores", default="lstm,gru,mingru,mamba", help="names, with commas")
    parser.add_argument("--rounds", type=int, default=60, help="of each, one after the other")
    parser.add_argument("--out", help="write JSON here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {"limits": LIMITS, "recollect": rc.__version__, "cores": {}}
    with row_threads.threads(1), row_threads.intra_op_threads(1):
        for core in args.cores.split(","):
            results["cores"][core] = found = measure(core, args.rounds)
            for name, limit in LIMITS.items():
                one = found[name]
                print(
                    f"{core}: {name} {one['with_ms']:.1f} ms, without state handling "
                    f"{one['without_ms']:.1f}: {one['overhead']:+.1%} (limit {limit:.0%})"
                )
    if args.out:
        common.write(args.out, "state_overhead", results)


if __name__ == "__main__":
    main()
