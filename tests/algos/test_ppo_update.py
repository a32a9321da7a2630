"""One update of Learner: order of things, what it leaves alone, what it reports, when it stops."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from recollect.algos.ppo import loss
from recollect.base import devices, tree
from recollect.cores import GRUConfig
from recollect.errors import AlignmentError, ConfigError, DivergedError, EnvError
from recollect.experience.returns import gae
from recollect.learning.diagnostics import staleness
from recollect.learning.learner import Learner
from recollect.learning.optimiser import parameter_groups
from recollect.learning.schedules import scheduled
from tests.support.helpers import TensorWorld, keep, uncut
from tests.support.ppo_setup import SMALL, epochs, gradients, learner, nudge, run, same, weights


class ScaledWorld(TensorWorld):
    """Rewards of another size."""

    scale = 1.0

    def step(self, action):
        step = super().step(action)
        return replace(step, reward=step.reward * self.scale)


@pytest.mark.parametrize("waits", [False, True], ids=["cpu", "gpu"])
def test_gauges_do_not_change_the_weights(waits):
    """S000-19: measuring in every update, or never, gives bitwise the same gradients and weights, on the path
    of a GPU too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(devices, "waits", lambda where: waits)
        never, _ = run(3, gauge_every=0)
        always, metrics = run(3, gauge_every=1)
    assert all("staleness" in m for m in metrics)
    assert same(gradients(never), gradients(always))
    assert same(weights(never), weights(always))
    assert torch.equal(never.generator.get_state(), always.generator.get_state())


def test_update_leaves_the_actor_alone():
    """S002-5, S000-23, S001-2: live state and observation bitwise as before; nothing has a graph."""
    ppo, actor = learner(refresh_states=True, recompute_advantages=True, gauge_every=1)
    rollout = actor.collect()
    before = tree.clone((actor.state, actor.obs, actor.first))
    held = tree.leaves(actor.state)
    version = [leaf._version for leaf in held]
    ppo.update(rollout)
    for old, new in zip(tree.leaves(before), tree.leaves((actor.state, actor.obs, actor.first))):
        assert torch.equal(old, new)
    assert [leaf._version for leaf in tree.leaves(actor.state)] == version, "not even written to"
    assert all(a is b for a, b in zip(held, tree.leaves(actor.state)))
    everything = (actor.state, rollout.states, rollout.obs, rollout.record, rollout.bootstrap, rollout.action)
    assert all(leaf.grad_fn is None and not leaf.requires_grad for leaf in tree.leaves(everything))


def test_update_leaves_the_rollout_alone():
    """S002-5: what acting recorded is read, never written."""
    ppo, actor = learner(refresh_states=True, recompute_advantages=True)
    rollout = actor.collect()
    before = keep(rollout)
    ppo.update(rollout)
    for name in ("obs", "first", "action", "record", "reward", "final_value", "bootstrap", "states"):
        for a, b in zip(tree.leaves(getattr(before, name)), tree.leaves(getattr(rollout, name))):
            assert torch.equal(a, b), name


def test_gradients_start_at_zero_for_every_step():
    """S001-3: left-over gradients have no effect, and there is one zeroing for each optimiser step."""
    clean, actor = learner()
    rollout = keep(actor.collect())
    dirty, _ = learner()
    for parameter in dirty.policy.parameters():
        parameter.grad = torch.full_like(parameter, 1e3)
    calls = []
    zero, step = dirty.optimizer.zero_grad, dirty.optimizer.step
    dirty.optimizer.zero_grad = lambda **kw: (calls.append("zero"), zero(**kw))
    dirty.optimizer.step = lambda *a: (calls.append("step"), step(*a))
    clean.update(rollout)
    dirty.update(rollout)
    assert calls == ["zero", "step"] * 6
    assert same(weights(clean), weights(dirty))


@pytest.mark.parametrize("limit", [1e-3, 1e3])
def test_gradient_norm_before_and_after_clipping(limit):
    """S001-12: the norm before clipping is logged, with the share clipped; after it is at most the limit."""
    ppo, actor = learner(epochs=1, minibatches=1, max_grad_norm=limit, entropy=0.0)
    rollout = keep(actor.collect())
    twin = copy.deepcopy(ppo)
    metrics = ppo.update(rollout)
    _, data, _ = twin.targets(rollout)
    chunks = twin.sequences(rollout, data).whole()
    loss(twin.policy, chunks, twin.config, 0.0, chunks.valid.sum())[0].backward()
    norm = torch.stack([g.norm() for g in gradients(twin).values()]).norm()
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    assert metrics["grad_clip_rate"] == float(norm > limit)
    after = torch.stack([g.norm() for g in gradients(ppo).values()]).norm()
    assert after <= limit * 1.001
    assert after == pytest.approx(min(limit, float(norm)), rel=1e-3)


def test_statistics_are_reported():
    """S001-13: mean, spread and range of reward, return, value and advantage; explained variance."""
    ppo, actor = learner()
    rollout = keep(actor.collect())
    metrics = ppo.update(rollout)
    for name in ("reward", "return", "value", "advantage"):
        low, mean, high = (metrics[f"{name}/{kind}"] for kind in ("min", "mean", "max"))
        assert low < mean < high
        assert metrics[f"{name}/std"] > 0
    assert metrics["reward/mean"] == pytest.approx(float(rollout.reward.mean()), rel=1e-5)
    assert metrics["value/max"] == pytest.approx(float(rollout.record["value"].max()), rel=1e-5)
    assert -math.inf < metrics["explained_variance"] <= 1


def test_every_parameter_has_one_learning_rate():
    """S001-16: groups are disjoint and exhaustive, the trunk shared, and each has its own rate."""
    ppo, _ = learner(learning_rate=1e-3, actor_learning_rate=2e-3, critic_learning_rate=3e-3)
    groups = parameter_groups(ppo.policy, ppo.config)
    ids = [id(p) for group in groups for p in group["params"]]
    assert sorted(ids) == sorted(id(p) for p in ppo.policy.parameters())
    rates = {group["name"]: group["lr"] for group in groups}
    assert rates == {"trunk": 1e-3, "actor": 2e-3, "critic": 3e-3}
    trunk = next(group for group in groups if group["name"] == "trunk")["params"]
    shared = [*ppo.policy.encoder.parameters(), *ppo.policy.core.parameters()]
    assert {id(p) for p in trunk} == {id(p) for p in shared}


@torch.no_grad()
def replayed(ppo: Learner, rollout):
    """Values, final values and bootstrap, one step after another, from the rollout's first state."""
    policy, state = ppo.policy, rollout.state_at(0)
    final, values = torch.zeros_like(rollout.final_value), []
    finals = list(zip(rollout.finals.time.tolist(), rollout.finals.row.tolist()))
    for t in range(rollout.steps):
        values.append(policy.value(rollout.obs[t], state, rollout.first[t]))
        _, state = policy.core.step(policy._encode(rollout.obs[t]), state, rollout.first[t])
        for i, (time, row) in enumerate(finals):
            if time == t:
                own = tree.index(state, slice(row, row + 1))
                final[t, row] = policy.value(rollout.finals.obs[i : i + 1], own, torch.tensor([False]))
    return torch.stack(values), final, policy.value(rollout.obs[-1], state, rollout.first[-1])


def test_recomputed_advantages_are_those_from_scratch():
    """S001-17: values, final values and bootstrap all under the new weights, then GAE."""
    ppo, actor = learner(recompute_advantages=True, normalise_advantages=False)
    actor.collect()
    rollout = keep(actor.collect())
    assert not rollout.first[0].all(), "it begins within episodes"
    _, data, _ = ppo.targets(rollout)
    nudge(ppo)
    _, again = ppo.refresh(rollout, data)
    value, final_value, bootstrap = replayed(ppo, rollout)
    advantage, returns = gae(
        reward=rollout.reward,
        value=value,
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        final_value=final_value,
        bootstrap=bootstrap,
        gamma=ppo.config.gamma,
        gae_lambda=ppo.config.gae_lambda,
    )
    torch.testing.assert_close(again["advantage"], advantage, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(again["return"], returns, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(data["advantage"], advantage, atol=1e-2)


def test_advantages_do_not_depend_on_the_chunks():
    """S000-9: those that an epoch learns from are of whole rollouts, whatever the chunks, bit for bit."""
    found = []
    for chunk in (1, 7, 32, 40):
        ppo, actor = learner(rollout=40, chunk=chunk, epochs=1)
        rollout = keep(actor.collect())
        (chunks, _) = epochs(ppo, rollout)[0]
        assert len(chunks.valid) == chunk
        found.append(uncut(chunks.data["advantage"], rollout))
    assert found[0].std() > 0.5
    for chunk, advantage in zip((7, 32, 40), found[1:]):
        assert torch.equal(advantage, found[0]), f"advantages in chunks of {chunk}"


def test_states_are_refreshed_between_epochs():
    """S004-13: staleness grows with the weights and is gone after a refresh."""
    ppo, actor = learner(refresh_states=True)
    actor.collect()
    rollout = keep(actor.collect())
    _, data, _ = ppo.targets(rollout)
    assert staleness(ppo.policy, rollout) < 1e-5
    nudge(ppo, 0.01)
    little = staleness(ppo.policy, rollout)
    nudge(ppo, 0.1)
    much = staleness(ppo.policy, rollout)
    assert 1e-4 < little < much
    fresh, _ = ppo.refresh(rollout, data)
    assert staleness(ppo.policy, fresh) < 1e-5
    plain, metrics = run(1, epochs=3, gauge_every=1)
    refreshed, again = run(1, epochs=3, gauge_every=1, refresh_states=True)
    assert not same(weights(plain), weights(refreshed))
    names = [f"staleness/epoch_{i}" for i in (1, 2, 3)]
    assert metrics[0][names[0]] < metrics[0][names[2]] == metrics[0]["staleness"]
    assert again[0][names[0]] == metrics[0][names[0]]
    assert again[0][names[2]] < metrics[0][names[2]]


def test_kl_ends_the_update():
    """S001-18: at the first minibatch above the target no further optimiser step is made."""
    _, free = run(1, learning_rate=1e-2, epochs=4)
    ppo, actor = learner(learning_rate=1e-2, epochs=4, target_kl=1e-3)
    steps = []
    step = ppo.optimizer.step
    ppo.optimizer.step = lambda *a: (steps.append(1), step(*a))
    metrics = ppo.update(actor.collect())
    assert free[0]["minibatches"] == 12
    assert 1 <= metrics["minibatches"] == len(steps) < 12
    assert metrics["kl_last"] > 1e-3
    _, patient = run(1, learning_rate=1e-2, epochs=4, target_kl=1e3)
    assert patient[0]["minibatches"] == 12


def test_schedules_and_horizon():
    """S001-24: learning rates and entropy weight follow their schedules; gamma's horizon is known."""
    ppo, _ = learner(
        learning_rate=1e-2,
        critic_learning_rate=4e-2,
        learning_rate_schedule="linear",
        learning_rate_end=0.5,
        entropy=0.1,
        entropy_schedule="cosine",
        entropy_end=0.0,
    )
    for progress, factor in ((0.0, 1.0), (0.5, 0.75), (1.0, 0.5)):
        entropy = ppo.set_schedules(progress)
        assert [g["lr"] for g in ppo.optimizer.param_groups] == pytest.approx([1e-2 * factor, 4e-2 * factor])
        assert entropy == pytest.approx(0.1 * scheduled(0, "cosine", progress))
    assert learner(gamma=0.9)[0].config.effective_horizon == pytest.approx(10)
    assert learner(gamma=1.0)[0].config.effective_horizon == math.inf
    metrics = ppo.update(learner()[1].collect(), progress=0.5)
    assert metrics["learning_rate"] == pytest.approx(0.75e-2)
    assert metrics["entropy_coef"] == pytest.approx(0.05)


def test_reward_scale_leaves_normalised_advantages():
    """S000-28: rewards x k with a critic in units of the returns: advantages x k, normalised the same."""
    found = []
    for k in (1.0, 1000.0):
        env = ScaledWorld(4)
        env.scale = k
        ppo, actor = learner(env)
        norm = ppo.policy.value_norm
        norm.mean.fill_(2.0 * k), norm.std.fill_(3.0 * k), norm.mean_square.fill_(13.0 * k * k)
        norm.weight.fill_(0.5)
        _, data, metrics = ppo.targets(actor.collect())
        found.append((data["advantage"], float(metrics["advantage/std"])))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-4, atol=1e-4)
    assert found[1][1] == pytest.approx(1000 * found[0][1], rel=1e-3)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("where", "named"),
    [
        ("reward", "reward of row 2 is .* at step 5 of rollout 0"),
        ("obs", "obs of row 2 is .* at step 5 of rollout 0"),
        ("last_obs", "obs of row [0-3] is .* at step 23 of rollout 0"),
        ("final_obs", "final_obs of row [0-3] is .* at step"),
    ],
)
def test_what_the_env_breaks_is_named(where, named, poison):
    """S001-28, S002-13: NaN and Inf are named with tensor, row and step; no weight moves."""
    ppo, actor = learner()
    rollout = actor.collect()
    inside = ~(rollout.terminated | rollout.truncated)[-1]
    if where == "last_obs":
        rollout.obs[-1, int(inside.nonzero()[0])] = poison
        rollout.bootstrap[int(inside.nonzero()[0])] = float("nan")
    elif where == "final_obs":
        rollout.finals.obs[0, 1] = poison
        rollout.final_value[rollout.finals.time[0], rollout.finals.row[0]] = float("nan")
    else:
        getattr(rollout, where)[5, 2] = poison
    before = weights(ppo)
    with pytest.raises(EnvError, match=named):
        ppo.update(rollout)
    assert same(before, weights(ppo))


@pytest.mark.parametrize("where", ["value", "log_prob", "final_value", "bootstrap"])
def test_what_the_policy_breaks_is_named(where):
    """S001-28: a value or log-prob that is not finite stops before the statistics are touched."""
    ppo, actor = learner()
    rollout = actor.collect()
    inside = ~(rollout.terminated | rollout.truncated)[-1]
    if where == "bootstrap":
        rollout.bootstrap[inside] = float("nan")
    elif where == "final_value":
        rollout.final_value[rollout.truncated & ~rollout.terminated] = float("inf")
    else:
        rollout.record[where][3, 1] = float("nan")
    before = weights(ppo)
    with pytest.raises(DivergedError, match=f"{where} of row .* at step"):
        ppo.update(rollout)
    assert same(before, weights(ppo))


def test_a_gradient_that_is_not_finite_is_not_applied():
    """S001-28, S002-13: the run stops, names the parameter, and the weights stay finite."""
    ppo, actor = learner()
    ppo.policy.critic.weight.register_hook(lambda grad: grad * float("nan"))
    before = weights(ppo)
    with pytest.raises(
        DivergedError, match=r"minibatch 1: the gradient is not finite, first in critic\.weight"
    ):
        ppo.update(actor.collect())
    after = weights(ppo)
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert all(name.startswith(("value_norm", "obs_norm")) for name in moved)
    assert all(value.isfinite().all() for value in after.values())


def test_a_wrong_memory_stops_the_run():
    """S001-28, S002-13: a learner that does not reproduce the actor is told so, whatever the update."""
    ppo, actor = learner()
    ppo.update(actor.collect())
    rollout = actor.collect()
    tree.map(lambda leaf: leaf.add_(0.5), rollout.states)
    with pytest.raises(AlignmentError, match=r"update 1: .* the actor used another state"):
        ppo.update(rollout)


def test_the_first_update_checks_the_whole_rollout():
    """S001-28: one wrong state among all chunks stops the run before its first step, wherever it is."""
    wrong = 0
    for chunk, row in itertools.product((1, 2, 3), range(4)):
        ppo, actor = learner(minibatches=16)  # one chunk each, so that the first one seldom has it
        rollout = actor.collect()
        if rollout.first[7 * chunk, row]:
            continue  # a reset throws that state away
        wrong += 1
        tree.map(lambda leaf, at=(chunk, row): leaf[at].add_(0.5), rollout.states)
        steps: list[Any] = []
        ppo.optimizer.step = lambda *given, made=steps: made.append(given)
        with pytest.raises(AlignmentError):
            ppo.update(rollout)
        assert not steps
    assert wrong >= 6


def test_modes_are_what_their_names_say():
    """S004-2, S004-9: "full" is one chunk a row; "none" is refused with memory, and changes nothing
    without it."""
    full, _ = run(recurrent_mode="full", minibatches=2)
    whole, _ = run(chunk=23, minibatches=2)
    short, _ = run(minibatches=2)
    assert same(weights(full), weights(whole))
    assert not same(weights(full), weights(short))
    with pytest.raises(ConfigError, match="carries memory, which would be trained from nothing"):
        learner(recurrent_mode="none")
    with pytest.raises(ConfigError, match="carries memory"):
        learner(core=GRUConfig(hidden=4), recurrent_mode="none")
    plain, numbers = run(core="none", recurrent_mode="none")
    stored, _ = run(core="none", recurrent_mode="stored_state")
    burnt, _ = run(core="none", recurrent_mode="burn_in", burn_in_steps=3)
    assert same(weights(plain), weights(stored))
    assert same(weights(plain), weights(burnt))
    assert not any(name.startswith(("state/", "staleness")) for name in numbers[0])


def test_same_seed_same_weights():
    """S000-26: the seed decides the order of the minibatches, and nothing else does."""
    a, _ = run(core=SMALL)
    b, _ = run(core=SMALL)
    assert same(weights(a), weights(b))
    c, actor = learner(core=SMALL)
    c.generator.manual_seed(5)
    for i in range(2):
        c.update(actor.collect(), i / 2)
    assert not same(weights(a), weights(c))
    assert np.isfinite([v.double().sum().item() for v in weights(c).values()]).all()
