"""Small learners on replay, actors that feed them, and minibatches with every kind of end."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from recollect.acting.actor import Actor
from recollect.algos.catalog import acting, make_learner
from recollect.base import tree
from recollect.config.algo_choice import ALGOS
from recollect.config.q_heads import QHeadConfig, QuantileHeadConfig
from recollect.cores import LSTMConfig
from recollect.learning.replay_algorithm import Windows, windows
from recollect.learning.replay_learner import ReplayLearner, importance
from recollect.policy.policy import Policy
from tests.support.helpers import TensorWorld, make_policy

SMALL = LSTMConfig(hidden=12, learned_initial_state=True)
HEADS: dict[str, Any] = {
    "r2d2": QHeadConfig(hidden=(8,), gain=1.0),
    "iqn": QuantileHeadConfig(hidden=(8,), base=8, embedding=6, quantiles=5, gain=1.0),
}
DEFAULTS: dict[str, Any] = {
    "rollout": 8,
    "chunk": 5,
    "burn_in_steps": 3,
    "n_step": 2,
    "stride": 2,
    "batch": 6,
    "replay_capacity": 400,
    "replay_warmup": 0,
    "replay_ratio": 2.0,
    "learning_rate": 1e-2,
}


def learner(
    algo: str = "r2d2",
    env: Any = None,
    core: Any = SMALL,
    *,
    head: Any = None,
    policy: dict[str, Any] | None = None,
    seed: int = 0,
    **settings: Any,
) -> tuple[ReplayLearner, Actor]:
    """A learner and the actor that feeds it."""
    env = TensorWorld(4) if env is None else env
    config = ALGOS[algo](**(DEFAULTS | settings))
    network = make_policy(env, core, seed=seed, **({"head": head or HEADS[algo]} | (policy or {})))
    rows = env.num_envs * env.agents
    config.check(network, rows)
    actor = Actor(env, network, rollout=config.rollout, seed=seed, **acting(config).keywords())
    return make_learner(network, config, rows=rows, seed=seed), actor


def weights(policy: Policy) -> dict[str, Tensor]:
    """Copies of all parameters."""
    return {name: p.detach().clone() for name, p in policy.named_parameters()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Bitwise."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@torch.no_grad()
def nudge(policy: Policy, size: float = 0.3, seed: int = 1) -> None:
    """Move all weights, as updates would."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in policy.parameters():
        parameter += size * torch.randn(parameter.shape, generator=generator)


def filled(algo: str = "r2d2", rollouts: int = 6, **given: Any) -> Any:
    """A learner whose replay holds some rollouts, in float64, and whose networks differ."""
    ours, actor = learner(algo, replay_warmup=300, **given)
    for _ in range(rollouts):
        ours.update(actor.collect())
    assert ours.gradient_steps == 0
    nudge(ours.policy)
    nudge(ours.target, seed=2)
    for network in (ours.policy, ours.target):
        network.double()
        if algo == "iqn":  # fractions are drawn in float32
            head: Any = network.head
            quantiles = head.quantiles
            head.quantiles = functools.partial(_wide, quantiles)
    return ours


def _wide(quantiles: Any, y: Tensor, fractions: Tensor, mask: Any = None) -> Tensor:
    return quantiles(y, fractions.double(), mask)


def batch_of(ours: Any, count: int = 64, seed: int = 3) -> tuple[Any, Windows]:
    """A sample in float64, and the minibatch made of it."""
    config = ours.config
    sample = ours.replay.sample(count, torch.Generator().manual_seed(seed))

    def wide(value: Any) -> Any:
        if value is None:
            return None
        return tree.map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf.clone(), value)

    sample.obs, sample.state, sample.reward = (
        wide(part) for part in (sample.obs, sample.state, sample.reward)
    )
    sample.action = wide(sample.action)
    weight = importance(sample, config.importance_exponent).double()
    return sample, windows(ours.policy, ours.target, sample, config, weight=weight)
