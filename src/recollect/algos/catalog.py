"""The algorithms by name: ``train(env, algo="impala", rho_clip=1.0)``, ``--algo impala --rho-clip 1``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch import Tensor

from recollect.algos import impala, ppo
from recollect.algos.impala import Impala, ImpalaConfig
from recollect.algos.ppo import PPO
from recollect.config.ppo import PPOConfig
from recollect.errors import ConfigError, nearest
from recollect.experience.chunks import Chunks
from recollect.learning.learner import Learner, Stats
from recollect.policy.policy import Policy

AlgoConfig = PPOConfig | ImpalaConfig
ALGOS: dict[str, type[PPOConfig] | type[ImpalaConfig]] = {"ppo": PPOConfig, "impala": ImpalaConfig}
"""The config of every algorithm."""


def named_algo(algo: Any) -> AlgoConfig:
    """The config of a name; a config comes back as it is."""
    if isinstance(algo, AlgoConfig):
        return algo
    if not isinstance(algo, str) or algo not in ALGOS:
        near = nearest(algo, ALGOS) if isinstance(algo, str) else ""
        kinds = " or ".join(kind.__name__ for kind in ALGOS.values())
        raise ConfigError(f"algo = {algo!r}{near}: choose {' or '.join(ALGOS)}, or give a {kinds}")
    return ALGOS[algo]()


def algo_name(config: AlgoConfig) -> str:
    """The name of the algorithm that a config is of."""
    return next(name for name, kind in ALGOS.items() if type(config) is kind)


def algo_fields() -> dict[str, list[str]]:
    """Every setting of an algorithm, and the names of those that have it."""
    found: dict[str, list[str]] = {}
    for name, kind in ALGOS.items():
        for field in fields(kind):
            found.setdefault(field.name, []).append(name)
    return found


def check_has(algo: str, setting: str, where: str, fix: str) -> None:
    """Refuse a setting that only other algorithms have; ``fix``: how to choose one, with {} for its name."""
    having = algo_fields()[setting]
    if algo not in having:
        raise ConfigError(
            f"{where}: {algo} has no such setting, {' and '.join(having)} has: leave it out, or choose "
            f"{fix.format(having[0])}"
        )


def loss(
    policy: Policy, batch: Chunks, config: AlgoConfig, entropy_coef: float, count: Tensor
) -> tuple[Tensor, Stats]:
    """The loss of the algorithm that ``config`` is of."""
    if isinstance(config, ImpalaConfig):
        return impala.loss(policy, batch, config, entropy_coef, count)
    return ppo.loss(policy, batch, config, entropy_coef, count)


def make_learner(policy: Policy, config: AlgoConfig, *, seed: int = 0) -> Learner[Any]:
    """The learner that ``config`` is of."""
    if isinstance(config, ImpalaConfig):
        return Impala(policy, config, seed=seed)
    return PPO(policy, config, seed=seed)
