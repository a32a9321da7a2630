"""A small learner and actor on a world with every kind of end."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from recollect.acting.actor import Actor
from recollect.algos.catalog import make_learner
from recollect.base import tree
from recollect.config.algo_choice import ALGOS
from recollect.cores import LSTMConfig
from recollect.experience.rollout import Rollout
from recollect.learning.learner import Learner
from recollect.policy.policy import Policy
from tests.support.helpers import TensorWorld, make_policy

SMALL = LSTMConfig(hidden=12)


def learner(
    env: Any = None,
    core: Any = SMALL,
    *,
    seed: int = 0,
    policy: dict[str, Any] | None = None,
    algo: str = "ppo",
    **settings: Any,
) -> tuple[Any, Actor]:
    """A learner and the actor that feeds it; 23 steps, chunks of 7 (so the last one is padded)."""
    env = TensorWorld(4) if env is None else env
    defaults: dict[str, Any] = {"rollout": 23, "chunk": 7, "minibatches": 3, "epochs": 2}
    config = ALGOS[algo](**(defaults | settings))
    network = make_policy(env, core, seed=seed, **(policy or {}))
    config.check(network, env.num_envs * env.agents)
    actor = Actor(env, network, rollout=config.rollout, state_steps=config.state_steps, seed=seed)
    return make_learner(network, config, seed=seed), actor


def weights(ppo: Learner) -> dict[str, Tensor]:
    """A copy of all weights and statistics."""
    return {name: value.clone() for name, value in ppo.policy.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Bitwise."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def gradients(ppo: Learner) -> dict[str, Tensor]:
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in ppo.policy.named_parameters()}


def nudge(ppo: Learner, size: float = 0.1) -> None:
    """Move all weights, as updates would."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in ppo.policy.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator)


def doubled(ours: Any, rollout: Rollout) -> Rollout:
    """Everything in float64."""
    ours.policy.double()

    def wide(value: Any) -> Any:
        return tree.map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, value)

    parts = ("obs", "action", "record", "reward", "final_value", "bootstrap", "states")
    finals = replace(rollout.finals, obs=wide(rollout.finals.obs))
    return replace(rollout, finals=finals, **{part: wide(getattr(rollout, part)) for part in parts})


def epochs(ours: Any, rollout: Rollout) -> list[tuple[Any, Policy]]:
    """What every epoch of an update learned from, and the policy that it began with."""
    seen, make_update = [], ours.make_update

    def spied() -> Any:
        update = make_update()
        epoch = update.epoch

        def watched(sequences: Any) -> bool:
            seen.append((sequences, deepcopy(ours.policy)))
            return epoch(sequences)

        update.epoch = watched
        return update

    ours.make_update = spied
    ours.update(rollout)
    return seen


def run(updates: int = 2, **kwargs: Any) -> tuple[Learner, list[dict[str, float]]]:
    """Collect and learn a few times."""
    ppo, actor = learner(**kwargs)
    return ppo, [ppo.update(actor.collect(), i / updates) for i in range(updates)]
