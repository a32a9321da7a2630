"""The algorithms by name, and the learner of a config."""

from __future__ import annotations

from recollect.algos import impala, ppo
from recollect.config.algo_choice import AlgoConfig, algo_name
from recollect.learning.algorithm import Acting, Algorithm
from recollect.learning.learner import Learner
from recollect.policy.policy import Policy

ALGORITHMS: dict[str, Algorithm] = {"ppo": ppo, "impala": impala}
"""The algorithm of every name in ``recollect.config.algo_choice.ALGOS``."""


def acting(config: AlgoConfig) -> Acting:
    """The parts of a rollout that actors must record for the algorithm of ``config``."""
    return ALGORITHMS[algo_name(config)].acting(config)


def make_learner(policy: Policy, config: AlgoConfig, *, seed: int = 0, graphs: bool = False) -> Learner:
    """A learner for the algorithm of ``config``; ``graphs``: whether it captures optimiser steps."""
    return Learner(policy, ALGORITHMS[algo_name(config)], config, seed=seed, graphs=graphs)
