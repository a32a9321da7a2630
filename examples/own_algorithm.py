"""Your own algorithm: REINFORCE with memory, registered by a name, with settings of its own.

Williams 1992, *Simple statistical gradient-following algorithms for connectionist reinforcement learning*::

    G = r + gamma r' + gamma^2 r'' + ...           to the end of the episode, or of the rollout
    L = -E[(G - b) log pi(a | o, h)] - entropy E[H]

The command line finds it by --import, with its flags and its help:

    recollect train delayed-cue --import examples/own_algorithm.py --algo reinforce --run runs/reinforce
    recollect resume runs/reinforce --steps 50k
    recollect eval runs/reinforce
    recollect report runs/reinforce
    recollect train --import examples/own_algorithm.py --help reinforce

    python examples/own_algorithm.py    # the same from Python, in about half a minute
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Literal

import torch

import recollect as rc
from recollect.experience.returns import gae
from recollect.learning import diagnostics
from recollect.learning.actor_critic import normalise, scaled_reward
from recollect.learning.algorithm import Acting, Targets
from recollect.learning.recompute_activations import evaluate


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforceConfig(rc.LearnerConfig):
    """Settings of REINFORCE beside those that all algorithms share."""

    epochs: int = 1
    """Passes over each rollout; log pi is that of the acting policy in the first one only."""
    minibatches: int = 1
    """Optimiser steps in each pass."""
    value_coef: float = 0.0
    """There is no critic to train."""
    baseline: Literal["mean", "none"] = "mean"
    """b: the mean return of the batch, or none. With "mean" returns are also scaled to a spread of 1."""


@rc.register("algo", "reinforce", config=ReinforceConfig)
class Reinforce:
    """The three functions of an algorithm: see ``recollect.learning.algorithm.Algorithm``."""

    def acting(self, config):
        """Actors store the states at chunk starts; no value is needed at truncations."""
        return Acting(config.state_steps, keeps_finals=False)

    def targets(self, policy, rollout, config, ranks, *, lag=0, outputs=None):
        """G - b [T, B]. With values of 0 and lambda 1, GAE is the discounted sum of rewards."""
        nothing = torch.zeros_like(rollout.reward)
        _, returns = gae(
            reward=scaled_reward(rollout, config),
            value=nothing,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            final_value=nothing,
            bootstrap=nothing[0],
            gamma=config.gamma,
            gae_lambda=1.0,
            valid=rollout.valid,
        )
        weight = normalise(returns, rollout.valid, ranks) if config.baseline == "mean" else returns
        metrics = {} if outputs is not None else diagnostics.describe(rollout, weight, returns, ranks)
        return Targets(rollout, {"weight": weight}, metrics)

    def loss(self, policy, batch, config, entropy_coef, count, features=None):
        """L of a minibatch of chunks, each unrolled from its stored state."""
        log_prob, entropy, value = evaluate(policy, batch, config.recompute_activations, features)
        gain = (log_prob * batch.data["weight"]).masked_fill(~batch.valid, 0).sum() / count
        spread = entropy.masked_fill(~batch.valid, 0).sum() / count
        stats = {"loss/policy": -gain.detach(), "entropy": spread.detach()}
        stats |= diagnostics.deviation({"log_prob": log_prob, "value": value}, batch)
        return -gain - entropy_coef * spread, stats


def main(argv: list[str] | None = None) -> None:
    """Train an agent by its name, and evaluate it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200_000, help="env steps (%(default)s)")
    args = parser.parse_args(argv)
    agent = rc.train("delayed-cue", algo=ReinforceConfig(), steps=args.steps, progress=False)
    print("REINFORCE:", agent.evaluate(episodes=200))


if __name__ == "__main__":
    main()
