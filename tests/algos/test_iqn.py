"""IQN's loss, targets and errors, against sums over steps and quantiles in float64."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from gymnasium import spaces

from recollect.algos import iqn
from recollect.cores import FramesConfig
from recollect.envs import GymLoop
from tests.reference import replay_targets as slow
from tests.support.helpers import ScriptedEnv
from tests.support.replay_setup import batch_of, filled

SEED = 5


def loss_of(ours: Any, batch: Any) -> Any:
    return iqn.loss(ours.policy, ours.target, batch, ours.config, torch.Generator().manual_seed(SEED))


@torch.no_grad()
def by_hand(ours: Any, sample: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Losses, errors of the mean and whether they count [L, M], one step at a time."""
    config, head, older_head = ours.config, ours.policy.head, ours.target.head
    K, L, n, count = config.burn_in_steps, config.chunk, config.n_step, sample.is_step.shape[1]
    generator = torch.Generator().manual_seed(SEED)
    tau = torch.rand((L, count, config.quantiles), generator=generator)
    tau_older = torch.rand((L, count, config.target_quantiles), generator=generator)
    losses, errors = torch.zeros(L, count).double(), torch.zeros(L, count).double()
    for m in range(count):
        y, older = (slow.outputs(network, sample, m) for network in (ours.policy, ours.target))

        def value(at: int, p: int, m: int = m, y: Any = y, older: Any = older) -> torch.Tensor:
            """Of slot ``p``, for the target of the step ``at``."""
            chooser, seen = (head, y[p]) if config.double else (older_head, older[p])
            best = int(chooser(seen)[0].argmax(-1))
            return older_head.quantiles(older[p], tau_older[at - K, m])[0, :, best]

        for at in range(K, K + L):
            if not sample.is_step[at, m]:
                continue
            goal = torch.as_tensor(
                slow.target(sample, m, at, partial(value, at), gamma=config.gamma, n=n)
            ).double()
            goal = goal.expand(config.target_quantiles)
            z = head.quantiles(y[at], tau[at - K, m])[0, :, int(sample.action[at, m])]
            total = 0.0
            for i in range(config.quantiles):
                for j in range(config.target_quantiles):
                    delta = float(goal[j] - z[i])
                    kappa = config.kappa
                    huber = delta**2 / 2 if abs(delta) <= kappa else kappa * (abs(delta) - kappa / 2)
                    share = abs(float(tau[at - K, m, i]) - (delta < 0))
                    total += share * huber / kappa / config.target_quantiles
            losses[at - K, m], errors[at - K, m] = total, goal.mean() - z.mean()
    return losses, errors, sample.is_step[K : K + L]


@pytest.mark.parametrize("double", [True, False], ids=["double", "single"])
@pytest.mark.parametrize(("n_step", "kappa"), [(1, 1.0), (3, 0.2)])
def test_the_loss_is_that_of_the_steps_and_quantiles(double, n_step, kappa):
    """S003-5, S003-21: every kind of end is there, and padding has no part in loss, errors and metrics."""
    settings = {"quantiles": 4, "target_quantiles": 3, "gamma": 0.9, "importance_exponent": 0.7}
    ours = filled("iqn", double=double, n_step=n_step, kappa=kappa, priority_exponent=0.5, **settings)
    ours.replay.update(ours.replay.sample(20).entries, torch.linspace(0.1, 3, 20))
    sample, batch = batch_of(ours, 40)
    kinds = slow.kinds(sample, ours.config.burn_in_steps, ours.config.chunk, n_step)
    assert min(kinds.values()) > 0, kinds
    with torch.no_grad():
        loss = loss_of(ours, batch)
    losses, errors, learned = by_hand(ours, sample)
    torch.testing.assert_close(loss.error[learned], errors[learned].abs(), atol=1e-5, rtol=1e-5)
    p = sample.probability
    assert p.unique().numel() > 5
    weight = ((p.min() / p) ** 0.7).expand_as(losses)
    expected = (weight * losses)[learned].sum() / learned.sum()
    assert float(loss.total) == pytest.approx(float(expected), rel=1e-5)


def test_padding_and_minibatches_without_a_step():
    """S003-21."""
    ours = filled("iqn")
    _, batch = batch_of(ours)
    assert not batch.is_step[: ours.config.chunk].all()
    before = loss_of(ours, batch)
    reward = batch.reward.masked_fill(~batch.is_step, 1e6)
    action = batch.action.masked_fill(~batch.is_step, 1)
    after = loss_of(ours, replace(batch, reward=reward, action=action))
    assert torch.equal(before.total, after.total)
    none = replace(batch, is_step=torch.zeros_like(batch.is_step), weight=torch.zeros_like(batch.weight))
    total = loss_of(ours, none).total
    found = torch.autograd.grad(total, list(ours.policy.parameters()), allow_unused=True)
    assert float(total.detach()) == 0
    assert all(g is None or float(g.abs().sum()) == 0 for g in found)


@pytest.mark.parametrize("algo", ["r2d2", "iqn"])
def test_action_masks(algo):
    """The best action of a target is allowed, and masks that padding does not have spoil nothing."""
    env = GymLoop([lambda: ScriptedEnv(spaces.Discrete(5), masked=True)] * 3)
    ours = filled(algo, env=env)
    _, batch = batch_of(ours)
    module = __import__(f"recollect.algos.{algo}", fromlist=["loss"])
    loss = module.loss(ours.policy, ours.target, batch, ours.config, torch.Generator().manual_seed(0))
    loss.total.backward()
    assert bool(loss.error[batch.is_step[: ours.config.chunk]].isfinite().all())
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in ours.policy.parameters())


def test_frames_rebuilt():
    """S003-1: with stacked frames, sequences without stored states have the loss of the steps, too."""
    core = FramesConfig(frames=3)
    ours = filled("iqn", core=core, states="rebuilt", burn_in_steps=2, quantiles=2, target_quantiles=2)
    sample, batch = batch_of(ours, 24)
    assert sample.state is None
    with torch.no_grad():
        loss = loss_of(ours, batch)
    _, errors, learned = by_hand(ours, sample)
    torch.testing.assert_close(loss.error[learned], errors[learned].abs(), atol=1e-5, rtol=1e-5)
