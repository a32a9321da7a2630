"""R2D2's loss, targets and errors, against sums over steps in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from recollect.algos import r2d2
from recollect.base import tree
from recollect.config.policy import EncoderConfig
from recollect.cores import FramesConfig
from recollect.learning.replay_algorithm import features, windows
from recollect.learning.value_functions import mixed_priority
from tests.reference import replay_targets as slow
from tests.support.replay_setup import batch_of, filled, same


@torch.no_grad()
def by_hand(ours: Any, sample: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Targets, errors and whether they count [L, M], one step at a time."""
    config, head = ours.config, ours.policy.head
    K, L, count = config.burn_in_steps, config.chunk, sample.is_step.shape[1]
    targets, errors = torch.zeros(L, count).double(), torch.zeros(L, count).double()
    for m in range(count):
        y, older = (slow.outputs(network, sample, m) for network in (ours.policy, ours.target))

        def value(p: int, y: Any = y, older: Any = older, m: int = m) -> float:
            if not (config.bootstrap_time_limits or sample.is_step[p, m]):
                return 0.0
            (q,), (q_older,) = head(y[p]), ours.target.head(older[p])
            best = (q if config.double else q_older).argmax(-1)
            found = float(q_older[0, best])
            return slow.h_inverse(found) if config.rescale else found

        for at in range(K, K + L):
            if sample.is_step[at, m]:
                goal = slow.target(
                    sample, m, at, value, gamma=config.gamma, n=config.n_step, scale=config.reward_scale
                )
                goal = slow.h(float(goal)) if config.rescale else goal
                targets[at - K, m] = goal
                errors[at - K, m] = goal - float(head(y[at])[0][0, sample.action[at, m]])
    return targets, errors, sample.is_step[K : K + L]


@pytest.mark.parametrize("double", [True, False], ids=["double", "single"])
@pytest.mark.parametrize("rescale", [True, False], ids=["rescaled", "plain"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_the_loss_is_that_of_the_steps(double, rescale, n_step):
    """S003-5, S003-3, S003-21: targets, errors and loss; every kind of end is there, and padding has no
    part in them."""
    ours = filled(double=double, rescale=rescale, n_step=n_step, gamma=0.9, importance_exponent=0.7)
    ours.replay.update(ours.replay.sample(20).entries, torch.linspace(0.1, 3, 20))
    sample, batch = batch_of(ours, 48)
    kinds = slow.kinds(sample, ours.config.burn_in_steps, ours.config.chunk, n_step)
    assert min(kinds.values()) > 0, kinds
    with torch.no_grad():
        loss = r2d2.loss(ours.policy, ours.target, batch, ours.config, torch.Generator())
    targets, errors, learned = by_hand(ours, sample)
    torch.testing.assert_close(loss.error[learned], errors[learned].abs(), atol=1e-5, rtol=1e-5)
    mean = targets[learned].mean()
    assert float(loss.stats["q/target"]) == pytest.approx(float(mean), abs=1e-5)
    p = sample.probability
    assert p.unique().numel() > 5
    weight = (p.min() / p) ** 0.7
    by_steps = sum(
        0.5 * float(weight[m]) * float(errors[j, m]) ** 2 for j, m in learned.nonzero().tolist()
    ) / int(learned.sum())
    assert float(loss.total) == pytest.approx(by_steps, rel=1e-5)
    priority = mixed_priority(error=loss.error, is_step=learned, eta=0.9)
    for m in range(len(p)):
        own = [abs(float(e)) for e in errors[learned[:, m], m]]
        assert float(priority[m]) == pytest.approx(0.9 * max(own) + 0.1 * sum(own) / len(own), rel=1e-4)


def test_targets_may_end_at_time_limits():
    """S003-3: without ``bootstrap_time_limits`` nothing follows a time limit, and all else stays as it is."""
    ours = filled(n_step=3, gamma=0.9, bootstrap_time_limits=False)
    sample, batch = batch_of(ours, 48)
    assert slow.kinds(sample, ours.config.burn_in_steps, ours.config.chunk, 3)["truncated"] > 0
    with torch.no_grad():
        loss = r2d2.loss(ours.policy, ours.target, batch, ours.config, torch.Generator())
    _, errors, learned = by_hand(ours, sample)
    torch.testing.assert_close(loss.error[learned], errors[learned].abs(), atol=1e-5, rtol=1e-5)


def gradients(ours: Any, batch: Any) -> list[torch.Tensor]:
    total, _, _ = r2d2.loss(ours.policy, ours.target, batch, ours.config, torch.Generator())
    found = torch.autograd.grad(total, list(ours.policy.parameters()), allow_unused=True)
    return [torch.zeros(()) if g is None else g for g in found]


def test_padding_has_no_weight():
    """S003-21: rewards and actions after an episode's end change neither the loss nor the gradient."""
    ours = filled()
    _, batch = batch_of(ours)
    kept = r2d2.loss(ours.policy, ours.target, batch, ours.config, torch.Generator())
    before = gradients(ours, batch)
    assert not batch.is_step[: ours.config.chunk].all()
    reward = batch.reward.masked_fill(~batch.is_step, 1e6)
    action = batch.action.masked_fill(~batch.is_step, 1)
    changed = replace(batch, reward=reward, action=action)
    assert torch.equal(
        kept.total, r2d2.loss(ours.policy, ours.target, changed, ours.config, torch.Generator()).total
    )
    assert all(torch.equal(a, b) for a, b in zip(before, gradients(ours, changed)))


def test_a_minibatch_without_a_step():
    """S003-21: no loss, no gradient, no NaN."""
    ours = filled()
    _, batch = batch_of(ours)
    none = torch.zeros_like(batch.is_step)
    batch = replace(batch, is_step=none, weight=torch.zeros_like(batch.weight))
    loss = r2d2.loss(ours.policy, ours.target, batch, ours.config, torch.Generator())
    assert float(loss.total.detach()) == 0
    assert all(float(g.abs().sum()) == 0 for g in gradients(ours, batch))
    assert float(loss.stats["q/mean"]) == 0


def test_the_burn_in_has_no_gradient():
    """S004-12: both networks start from the stored state and unroll the burn-in themselves; the loss has no
    gradient there, and has one within the learned steps."""
    ours = filled()
    K = ours.config.burn_in_steps
    sample, _ = batch_of(ours)
    sample.obs.requires_grad_()
    leaves = [leaf.requires_grad_() for leaf in tree.leaves(sample.state)]
    weight = torch.ones_like(sample.reward[0])
    batch = windows(ours.policy, ours.target, sample, ours.config, weight=weight)
    assert not any(leaf.requires_grad for leaf in tree.leaves((batch.state, batch.target_state)))
    total, _, _ = r2d2.loss(ours.policy, ours.target, batch, ours.config, torch.Generator())
    seen, *states = torch.autograd.grad(total, [sample.obs, *leaves], allow_unused=True)
    assert all(state is None for state in states)
    assert float(seen[:K].abs().sum()) == 0
    assert float(seen[K].abs().sum()) > 0
    for m in range(sample.is_step.shape[1]):
        for network, state in ((ours.policy, batch.state), (ours.target, batch.target_state)):
            if sample.exists[:K, m].any():
                live = tree.index(sample.state, slice(m, m + 1))
                for p in range(slow.first_of(sample, m), K):
                    seen = sample.obs[p : p + 1, m : m + 1]
                    live = network.unroll_core(seen, live, sample.first[p : p + 1, m : m + 1])[1]
                for one, other in zip(tree.leaves(live), tree.leaves(state)):
                    torch.testing.assert_close(one[0], other[m])


def test_the_target_gets_no_gradient():
    """S003-6."""
    ours = filled()
    _, batch = batch_of(ours)
    total, _, _ = r2d2.loss(ours.policy, ours.target, batch, ours.config, torch.Generator())
    total.backward()
    assert all(p.grad is None and not p.requires_grad for p in ours.target.parameters())
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in ours.policy.parameters())


@pytest.mark.parametrize("hidden", [(), (6,)], ids=["the same", "two"])
def test_a_trunk_without_weights_is_unrolled_once(hidden):
    """Both networks have the trunk's bits, and one unroll serves them if their trunks have no weights."""
    trunk = {"encoder": EncoderConfig(hidden=hidden)}
    ours = filled(core=FramesConfig(frames=3), states="rebuilt", burn_in_steps=2, policy=trunk)
    sample, batch = batch_of(ours)
    prefix, start = tree.index(sample.obs, slice(2)), ours.target.initial_state(len(sample.entries))
    with torch.no_grad():
        state = ours.target.unroll_core(prefix, start, sample.first[:2])[1]
        own = ours.target.unroll_core(batch.obs, state, batch.first)[0]
        y, older = features(ours.policy, ours.target, batch)
    assert same({"": batch.target_state}, {"": state})
    assert torch.equal(older, own)
    assert (older is y) == (not hidden)
