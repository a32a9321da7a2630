"""The loss and the learner that belong to an algorithm's config."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from recollect.algos import impala, ppo
from recollect.algos.impala import Impala
from recollect.algos.ppo import PPO
from recollect.config.algo import AlgoConfig
from recollect.config.impala import ImpalaConfig
from recollect.experience.rollout import Chunks
from recollect.learning.learner import Learner, Stats
from recollect.policy.policy import Policy


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
