"""A user's Q head without log-prob or value, heads that lie, and a toy Q-learning on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from recollect.acting.actor import Actor
from recollect.config.algo_shared import LearnerConfig
from recollect.config.policy import EncoderConfig, PolicyConfig
from recollect.learning import diagnostics
from recollect.learning.algorithm import Acting, Targets
from recollect.learning.learner import Learner
from recollect.policy.head_contract import Field, Head
from recollect.policy.policy import Policy
from tests.support.helpers import TensorWorld

ACTIONS, ROWS, T = 3, 4, 24


class QHead(Head):
    """Action values; the record has the chosen one, all of them, and whether the choice was greedy."""

    record_spec: Mapping[str, Field] = {
        "q": Field(),
        "every_q": Field((ACTIONS,)),
        "is_greedy": Field(dtype=torch.bool, is_compared=False),
    }

    def __init__(self, space: Any, features: int):
        super().__init__()
        self.linear = nn.Linear(features, int(space.n))

    def forward(self, y, mask=None):
        return (self.linear(y),)

    def choose(self, outputs, generator=None, deterministic=False, exploration=None):
        """Epsilon-greedy; ``exploration`` [B] is epsilon."""
        best = outputs[0].argmax(-1)
        if deterministic or exploration is None:
            return best
        drawn, other = (torch.rand(best.shape, generator=generator) for _ in range(2))
        return torch.where(drawn < exploration, (other * ACTIONS).long(), best)

    def record(self, outputs, action) -> dict[str, Tensor]:
        (q,) = outputs
        chosen = q.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return {"q": chosen, "every_q": q, "is_greedy": action == q.argmax(-1)}


class QLearning:
    """L = E[(Q(o, h, a) - r - gamma max Q(o', h'))^2], without the steps that were truncated."""

    def __init__(self, record: tuple[str, ...] | None = None):
        self.record = record

    def acting(self, config):
        return Acting(config.state_steps, keeps_finals=True, record=self.record, needs_values=False)

    def targets(self, policy, rollout, config, ranks, *, lag=0, outputs=None):
        with torch.no_grad():
            q, _ = policy.unroll(rollout.obs, rollout.state_at(0), rollout.first)
        future = q[1:].amax(-1).masked_fill(rollout.terminated | rollout.truncated, 0)
        target = rollout.reward + config.gamma * future
        return Targets(rollout, {"target": target, "is_known": ~rollout.truncated}, {})

    def loss(self, policy, batch, config, entropy_coef, count, features=None):
        *outputs, _ = policy.unroll(batch.obs, batch.state, batch.first, features)
        made = policy.head.record(outputs, batch.action)
        error = (made["q"] - batch.data["target"]).square()
        total = error.masked_fill(~(batch.valid & batch.data["is_known"]), 0).sum() / count
        stored = {name: made[name] for name in ("q", "every_q") if name in batch.data}
        return total, {"loss/q": total.detach()} | diagnostics.deviation(stored, batch)


def q_policy(head: type[Head] = QHead) -> Policy:
    torch.manual_seed(0)
    env, config = TensorWorld(ROWS), PolicyConfig(core="gru", encoder=EncoderConfig(hidden=(16,)))
    return Policy(env.observation_space, env.action_space, config, head=head)


def q_learner(
    head: type[Head] = QHead, record: tuple[str, ...] | None = None, **settings: Any
) -> tuple[Learner, Actor]:
    """A learner, and the actor that records for it; its rows explore from not at all to always."""
    policy, algorithm = q_policy(head), QLearning(record)
    defaults = {"rollout": T, "chunk": 8, "epochs": 1, "minibatches": 2, "gamma": 0.5, "learning_rate": 1e-2}
    config = LearnerConfig(**(defaults | settings))
    actor = Actor(
        TensorWorld(ROWS),
        policy,
        rollout=config.rollout,
        seed=0,
        exploration=torch.linspace(0, 1, ROWS),
        **algorithm.acting(config).keywords(),
    )
    return Learner(policy, algorithm, config), actor
