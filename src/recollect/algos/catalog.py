"""The algorithm of a config, and its learner."""

from __future__ import annotations

from typing import Any

from recollect.base.parts import part_of
from recollect.config.algo_shared import AlgoConfig, LearnerConfig
from recollect.config.replay import ReplayConfig
from recollect.errors import ConfigError
from recollect.experience.rollout import Acting
from recollect.learning.learner import Learner
from recollect.learning.replay_learner import ReplayLearner
from recollect.policy.policy import Policy


def algorithm(config: AlgoConfig) -> Any:
    """The algorithm that ``config`` belongs to: an ``Algorithm`` or a ``ReplayAlgorithm``."""
    part = part_of("algo", config)
    if part is None:
        raise ConfigError(f"{type(config).__name__} is the config of no algorithm: see recollect.register")
    return part.load()


def acting(config: AlgoConfig) -> Acting:
    """The parts of a rollout that actors must record for the algorithm of ``config``."""
    return algorithm(config).acting(config)


AnyLearner = Learner | ReplayLearner
"""Of an algorithm that learns from rollouts, or that replays old steps."""


def make_learner(
    policy: Policy, config: AlgoConfig, *, rows: int = 1, seed: int = 0, graphs: bool = False
) -> Any:
    """A learner for the algorithm of ``config``.

    Args:
        policy: learns, in place.
        config: the settings of the algorithm.
        rows: the rows of all rollouts of a batch, for a replay.
        seed: of the learner's random stream.
        graphs: whether optimiser steps are captured.
    """
    if isinstance(config, ReplayConfig):
        return ReplayLearner(policy, algorithm(config), config, seed=seed, rows=rows)
    assert isinstance(config, LearnerConfig)
    return Learner(policy, algorithm(config), config, seed=seed, graphs=graphs)
