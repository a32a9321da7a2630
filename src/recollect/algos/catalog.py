"""The algorithms by name: ``train(env, algo="impala", rho_clip=1.0)``, ``--algo impala --rho-clip 1``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from recollect.algos import impala, ppo
from recollect.config.impala import ImpalaConfig
from recollect.config.learner import LearnerConfig
from recollect.config.ppo import PPOConfig
from recollect.errors import ConfigError, nearest
from recollect.learning.algorithm import Acting, Algorithm
from recollect.learning.captured import CapturedUpdate
from recollect.learning.learner import Learner
from recollect.policy.policy import Policy

AlgoConfig = PPOConfig | ImpalaConfig
ALGORITHMS: dict[str, tuple[type[AlgoConfig], Algorithm]] = {
    "ppo": (PPOConfig, ppo),
    "impala": (ImpalaConfig, impala),
}
"""The config class and the algorithm of every name."""
ALGOS = {name: kind for name, (kind, _) in ALGORITHMS.items()}


def named_algo(algo: Any) -> AlgoConfig:
    """The default config of a name; a config is returned as it is."""
    if isinstance(algo, AlgoConfig):
        return algo
    if not isinstance(algo, str) or algo not in ALGOS:
        near = nearest(algo, ALGOS) if isinstance(algo, str) else ""
        kinds = " or ".join(kind.__name__ for kind in ALGOS.values())
        raise ConfigError(f"algo = {algo!r}{near}: choose {' or '.join(ALGOS)}, or give a {kinds}")
    return ALGOS[algo]()


def algo_name(config: LearnerConfig) -> str:
    """The name of the algorithm of a config."""
    return next(name for name, kind in ALGOS.items() if type(config) is kind)


def algo_fields() -> dict[str, list[str]]:
    """Every setting of an algorithm, and the names of the algorithms that have it."""
    found: dict[str, list[str]] = {}
    for name, kind in ALGOS.items():
        for field in fields(kind):
            found.setdefault(field.name, []).append(name)
    return found


def check_has(algo: str, setting: str, where: str, fix: str) -> None:
    """Raise if only other algorithms have a setting; ``fix``: how to choose one, with {} for its name."""
    having = algo_fields()[setting]
    if algo not in having:
        raise ConfigError(
            f"{where}: {algo} has no such setting, {' and '.join(having)} has: leave it out, or choose "
            f"{fix.format(having[0])}"
        )


def acting(config: LearnerConfig) -> Acting:
    """What actors must record for the algorithm of ``config``."""
    return ALGORITHMS[algo_name(config)][1].acting(config)


def make_learner(policy: Policy, config: LearnerConfig, *, seed: int = 0, graphs: bool = False) -> Learner:
    """A learner for the algorithm of ``config``; ``graphs``: whether it captures optimiser steps."""
    _, algorithm = ALGORITHMS[algo_name(config)]
    return Learner(policy, algorithm, config, seed=seed, graphs=graphs, captured=CapturedUpdate)
