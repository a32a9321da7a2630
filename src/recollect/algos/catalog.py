"""The algorithm of a config, and its learner."""

from __future__ import annotations

from recollect.base.parts import part_of
from recollect.config.algo_shared import LearnerConfig
from recollect.errors import ConfigError
from recollect.learning.algorithm import Acting, Algorithm
from recollect.learning.learner import Learner
from recollect.policy.policy import Policy


def algorithm(config: LearnerConfig) -> Algorithm:
    """The algorithm that ``config`` belongs to."""
    part = part_of("algo", config)
    if part is None:
        raise ConfigError(f"{type(config).__name__} is the config of no algorithm: see recollect.register")
    return part.load()


def acting(config: LearnerConfig) -> Acting:
    """The parts of a rollout that actors must record for the algorithm of ``config``."""
    return algorithm(config).acting(config)


def make_learner(policy: Policy, config: LearnerConfig, *, seed: int = 0, graphs: bool = False) -> Learner:
    """A learner for the algorithm of ``config``; ``graphs``: whether it captures optimiser steps."""
    return Learner(policy, algorithm(config), config, seed=seed, graphs=graphs)
