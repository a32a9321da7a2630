"""A user's own algorithm: REINFORCE, held by the same learner as PPO and IMPALA."""

from __future__ import annotations

import pytest
import torch

from recollect.base import devices, tree
from recollect.config.algo_shared import LearnerConfig
from recollect.experience.returns import gae
from recollect.learning import diagnostics
from recollect.learning.algorithm import Acting, Targets
from recollect.learning.learner import Learner
from recollect.learning.recompute_activations import evaluate
from tests.support.helpers import ArenaWorld, keep, make_actor, make_policy


class Reinforce:
    """Discounted returns without a critic: L = -E[R log pi]."""

    def acting(self, config):
        return Acting(config.state_steps, keeps_finals=False)

    def targets(self, policy, rollout, config, ranks, *, lag=0, outputs=None):
        _, returns = gae(
            reward=rollout.reward,
            value=torch.zeros_like(rollout.reward),
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            final_value=torch.zeros_like(rollout.reward),
            bootstrap=torch.zeros_like(rollout.bootstrap),
            gamma=config.gamma,
            gae_lambda=1.0,
            valid=rollout.valid,
        )
        metrics = diagnostics.describe(rollout, returns, returns, ranks)
        return Targets(rollout, {"return": returns}, metrics)

    def loss(self, policy, batch, config, entropy_coef, count, features=None):
        log_prob, _, value = evaluate(policy, batch, config.recompute_activations, features)
        total = -(log_prob * batch.data["return"]).masked_fill(~batch.valid, 0).sum() / count
        made = {"log_prob": log_prob, "value": value}
        return total, {"loss/policy": total.detach()} | diagnostics.deviation(made, batch)


@pytest.mark.parametrize("is_gpu", [False, True])
def test_the_learner_assumes_no_algorithm(is_gpu, monkeypatch):
    """An update of REINFORCE is one step along the gradient of its loss, which the test computes by hand."""
    monkeypatch.setattr(devices, "synchronises", lambda where: is_gpu)
    env = ArenaWorld(3)
    policy = make_policy(env, "gru", normalise_value=False)
    config = LearnerConfig(rollout=23, chunk=23, epochs=1, minibatches=1, gamma=0.9, max_grad_norm=1e9)
    learner = Learner(policy, Reinforce(), config)
    rollout = keep(make_actor(env, policy, rollout=23, chunk=23).collect())
    returns, following = torch.zeros_like(rollout.reward), torch.zeros_like(rollout.bootstrap)
    for t in reversed(range(23)):
        following = following.masked_fill(rollout.terminated[t] | rollout.truncated[t], 0)
        following = (rollout.reward[t] + 0.9 * following).masked_fill(~rollout.valid[t], 0)
        returns[t] = following
    obs, action = (
        tree.zero_where(~rollout.valid, tree.map(lambda leaf: leaf[:23], value))
        for value in (rollout.obs, rollout.action)
    )
    state = tree.zero_where(~rollout.valid[0], rollout.state_at(0))
    log_prob, _, _ = policy.evaluate_actions(obs, action, state, rollout.first[:23])
    loss = -(log_prob * returns)[rollout.valid].mean()
    named = dict(policy.named_parameters())
    wanted = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    metrics = learner.update(rollout)
    assert metrics["loss/policy"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["minibatches"] == 1
    assert "kl" not in metrics
    for (name, parameter), gradient in zip(named.items(), wanted, strict=True):
        assert (parameter.grad is None) == (gradient is None), name
        if gradient is not None:
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5, msg=name)
    assert sum(gradient is not None for gradient in wanted) > 5
