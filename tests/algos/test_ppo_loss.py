"""The PPO loss: what counts, what it is divided by, and where its gradient goes."""

from __future__ import annotations

import copy
import dataclasses

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from recollect.algos.ppo import loss
from recollect.base import spaces, tree
from recollect.config.ppo import PPOConfig
from recollect.experience.chunks import Chunks, make_chunks
from recollect.experience.rollout import Rollout
from recollect.learning.actor_critic import normalise
from recollect.learning.learner import Learner
from recollect.learning.sequences import burn_in
from tests.support.helpers import ArenaWorld, ScriptedEnv, as_rows, keep
from tests.support.ppo_setup import gradients, learner, nudge


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def full_loss(ppo: Learner, chunks: Chunks, count: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    count = chunks.valid.sum() if count is None else count
    return loss(ppo.policy, chunks, ppo.config, ppo.config.entropy, count)


def chunks_of(ppo: Learner, rollout: Rollout) -> Chunks:
    _, data, _ = ppo.targets(rollout)
    return ppo.sequences(rollout, data).whole()


def until(rollout: Rollout, steps: int, ended: bool = True) -> Rollout:
    """The first ``steps`` steps; every row's last one terminates."""
    parts = {}
    for field in dataclasses.fields(rollout):
        value = getattr(rollout, field.name)
        if field.name in ("obs", "first"):
            value = tree.map(lambda leaf: leaf[: steps + 1].clone(), value)
        elif field.name in ("action", "record", "reward", "terminated", "truncated", "valid", "final_value"):
            value = tree.map(lambda leaf: leaf[:steps].clone(), value)
        parts[field.name] = value
    cut = Rollout(**parts)
    cut.finals = None
    cut.truncated[:] = False
    cut.terminated[steps - 1] = True
    return cut


@pytest.mark.parametrize("poison", [0.0, float("nan")])
def test_padding_is_no_experience(poison):
    """S000-13: padding, or invalid steps full of NaN in its place, give the same loss and gradients."""
    results = []
    for padded in (True, False):
        ppo, actor = learner(rollout=21, entropy=0.1)
        rollout = until(keep(actor.collect()), 20)
        if not padded:  # a 21st step of every row that is no experience, whatever it holds
            longer = keep(actor._buffers[0].rollout)
            for field in (
                "obs",
                "first",
                "action",
                "reward",
                "terminated",
                "truncated",
                "valid",
                "final_value",
            ):
                theirs, ours = getattr(longer, field), getattr(rollout, field)
                theirs[: len(ours)] = ours
                theirs[len(ours) :] = poison if theirs.is_floating_point() else 0
            for name, buffer in longer.record.items():
                buffer[:20], buffer[20:] = rollout.record[name], poison
            longer.obs[20:] = poison
            longer.bootstrap[:] = poison
            longer.finals = None
            rollout = longer
        nudge(ppo)
        chunks = chunks_of(ppo, rollout)
        total, stats = full_loss(ppo, chunks)
        total.backward()
        results.append((total, stats, gradients(ppo), ppo.policy.value_norm.mean))
    (a, stats_a, grads_a, mean_a), (b, stats_b, grads_b, mean_b) = results
    assert a.isfinite()
    assert torch.equal(a, b)
    assert torch.equal(mean_a, mean_b)
    assert all(torch.equal(stats_a[name], stats_b[name]) for name in stats_a)
    for name, grad in grads_a.items():
        torch.testing.assert_close(grad, grads_b[name], rtol=1e-5, atol=1e-7)


def test_dead_agents_leave_no_nan():
    """S000-13, S001-30: NaN seen by dead agents reaches neither loss, statistics nor gradients."""
    ppo, actor = learner(ArenaWorld(3), minibatches=2)
    rollout = actor.collect()
    assert not rollout.valid.all()
    assert rollout.obs[:-1][~rollout.valid].isnan().any()
    numbers = ppo.update(rollout)
    assert np.isfinite([v for k, v in numbers.items() if k != "state/drift"]).all()
    assert all(p.isfinite().all() for p in ppo.policy.parameters())


def test_masked_actions_with_padding():
    """S000-13: an all-zero action mask in the padding gives no NaN gradient."""
    env = as_rows([lambda: ScriptedEnv(masked=True)] * 3, "loop")
    ppo, actor = learner(env)
    rollout = actor.collect()
    ppo.update(rollout)
    assert chunks_of(ppo, rollout).obs["action_mask"].sum(-1).min() == 0, "there is padding"
    assert all(p.isfinite().all() for p in ppo.policy.parameters())


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(3),
        gym.spaces.Discrete(3, start=-4),
        gym.spaces.Box(-2, -1, (1,)),
        gym.spaces.Box(-np.inf, np.inf, (2,)),
        gym.spaces.MultiDiscrete([2, 3]),
        gym.spaces.MultiBinary(3),
        gym.spaces.Dict(move=gym.spaces.Box(-1, 1, (2,)), fire=gym.spaces.Discrete(2)),
    ],
    ids=str,
)
def test_actions_round_trip(space):
    """S000-16: stored actions keep dtype and value: their log-prob is the recorded one."""
    ppo, actor = learner(as_rows([lambda: ScriptedEnv(space)] * 4, "loop"))
    rollout = actor.collect()
    assert tree.spec(rollout.action, 2) == tree.spec(spaces.zeros(space, 1))
    _, stats = full_loss(ppo, chunks_of(ppo, rollout))
    assert stats["deviation/log_prob"] < 1e-5
    assert all(len(leaf.unique()) > 1 for leaf in tree.leaves(rollout.action))
    if isinstance(space, gym.spaces.Box):
        assert rollout.action.min() < 0 < rollout.action.max()


def test_minibatch_gradients_sum_to_the_batch():
    """S001-3, S002-22: k minibatches accumulated, divided by the count of all, are one big batch."""
    ppo, actor = learner(entropy=0.1, value_clip=0.2)
    chunks = chunks_of(ppo, actor.collect())
    nudge(ppo)
    full_loss(ppo, chunks)[0].backward()
    whole = {name: grad.clone() for name, grad in gradients(ppo).items()}
    ppo.optimizer.zero_grad()
    count = chunks.valid.sum()
    parts = torch.randperm(chunks.count).tensor_split(5)
    for which in parts:
        full_loss(ppo, chunks.take(which), count)[0].backward()
    for name, grad in gradients(ppo).items():
        torch.testing.assert_close(grad, whole[name], rtol=1e-4, atol=1e-6)
    ppo.optimizer.zero_grad()
    full_loss(ppo, chunks.take(parts[0]), count)[0].backward()
    assert not torch.allclose(gradients(ppo)["critic.weight"], whole["critic.weight"], rtol=1e-2)


def test_value_loss_scale_does_not_depend_on_clipping():
    """S000-29: at the recorded values, and wherever the clip is wide, both are one number."""
    plain, actor = learner()
    rollout = actor.collect()
    chunks = chunks_of(plain, rollout)
    narrow = copy.copy(plain)
    narrow.config = PPOConfig(rollout=23, chunk=7, value_clip=0.01)
    wide = copy.copy(plain)
    wide.config = PPOConfig(rollout=23, chunk=7, value_clip=1e6)
    at_start = [float(full_loss(ppo, chunks)[1]["loss/value"]) for ppo in (plain, narrow, wide)]
    assert at_start[0] == pytest.approx(at_start[1], rel=1e-4)
    nudge(plain)
    moved = [float(full_loss(ppo, chunks)[1]["loss/value"]) for ppo in (plain, narrow, wide)]
    assert moved[0] == pytest.approx(moved[2], rel=1e-4)
    assert moved[1] > moved[0] * 1.001, "a narrow clip takes the larger error"


def test_value_loss_by_hand():
    """S000-29: half the mean squared error in units of the returns' spread."""
    ppo, actor = learner()
    chunks = chunks_of(ppo, actor.collect())
    nudge(ppo)
    _, _, value = ppo.policy.evaluate_actions(chunks.obs, chunks.action, chunks.state, chunks.first)
    error = (value - chunks.data["return"])[chunks.valid] / ppo.policy.value_norm.std
    expected = 0.5 * error.square().mean()
    torch.testing.assert_close(full_loss(ppo, chunks)[1]["loss/value"], expected.float().detach())


def test_kl_is_k3_over_valid_steps():
    """S001-18: the mean of (r - 1) - log r over valid steps, never negative."""
    ppo, actor = learner()
    chunks = chunks_of(ppo, actor.collect())
    for seed in range(5):
        nudge(ppo, 0.02 * seed)
        log_prob, _, _ = ppo.policy.evaluate_actions(chunks.obs, chunks.action, chunks.state, chunks.first)
        log_ratio = (log_prob - chunks.data["log_prob"])[chunks.valid].detach()
        kl = full_loss(ppo, chunks)[1]["kl"]
        torch.testing.assert_close(kl, (log_ratio.exp() - 1 - log_ratio).mean(), rtol=1e-4, atol=1e-7)
        assert kl >= 0
    assert kl > 1e-3


def test_gradient_stays_inside_chunk_and_episode():
    """S004-3: d value_t / d obs_s is not zero for s <= t of the same episode and chunk, else zero."""
    ppo, actor = learner()
    rollout = actor.collect()
    chunks = make_chunks(rollout, 7, {})
    obs = chunks.obs.requires_grad_()
    _, value, _ = ppo.policy.unroll(obs, chunks.state, chunks.first)
    t = 6
    checked = 0
    for n in range(chunks.count - 4):  # the last chunks are padded
        (grad,) = torch.autograd.grad(value[t, n], obs, retain_graph=True)
        reach = grad.abs().sum(-1) > 0  # [L, N]
        opened = [s for s in range(7) if chunks.first[s, n]]
        start = opened[-1] if opened else 0
        expected = torch.zeros_like(reach)
        expected[start : t + 1, n] = True
        assert torch.equal(reach, expected)
        checked += 0 < start < 6
    assert checked, "no chunk had a reset inside"


def test_burn_in_gets_no_gradient():
    """S001-14, S004-12: the prefix is replayed without gradient and masks no step of the chunks."""
    ppo, actor = learner(recurrent_mode="burn_in", burn_in_steps=4)
    rollout = actor.collect()
    chunks = chunks_of(ppo, rollout)
    chunks.prefix.obs.requires_grad_()
    batch = burn_in(ppo.policy, chunks)
    assert all(not leaf.requires_grad for leaf in tree.leaves(batch.state))
    full_loss(ppo, batch)[0].backward()
    assert chunks.prefix.obs.grad is None
    assert int(batch.valid.sum()) == 23 * 4, "every step of the rollout carries loss, after resets too"


def test_burn_in_replays_the_prefix():
    """S001-14, S004-12: with old weights it ends at the stored state, with new ones at the replayed."""
    ppo, actor = learner(recurrent_mode="burn_in", burn_in_steps=4)
    chunks = chunks_of(ppo, actor.collect())
    for a, b in zip(tree.leaves(burn_in(ppo.policy, chunks).state), tree.leaves(chunks.state)):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    nudge(ppo)
    burnt, prefix = burn_in(ppo.policy, chunks).state, chunks.prefix
    state = prefix.state
    for t in range(4):
        x = ppo.policy._encode(prefix.obs[t])
        _, state = ppo.policy.core.step(x, state, prefix.first[t])
    for got, want, stored in zip(*(tree.leaves(s) for s in (burnt, state, chunks.state))):
        later = prefix.exists
        torch.testing.assert_close(got[later], want[later], rtol=1e-5, atol=1e-6)
        assert torch.equal(got[~later], stored[~later]), "chunks that open the rollout have no prefix"
        assert not torch.allclose(got[later], stored[later], atol=1e-3)


def test_burn_in_never_crosses_an_episode_start():
    """S001-14, S004-12: after a reset inside the prefix nothing from before it is left."""
    ppo, actor = learner(recurrent_mode="burn_in", burn_in_steps=4)
    chunks = chunks_of(ppo, actor.collect())
    reset = chunks.prefix.first.any(0) & chunks.prefix.exists
    kept = ~chunks.prefix.first.any(0) & chunks.prefix.exists
    assert reset.any()
    assert kept.any()
    poisoned = dataclasses.replace(
        chunks,
        prefix=dataclasses.replace(chunks.prefix, state=tree.map(lambda s: s + 1, chunks.prefix.state)),
    )
    once, again = (tree.leaves(burn_in(ppo.policy, c).state)[0] for c in (chunks, poisoned))
    assert torch.equal(once[reset], again[reset])
    assert not torch.allclose(once[kept], again[kept], atol=1e-3)


@pytest.mark.parametrize("constant", [0.0, 3.0])
def test_normalise_is_safe(constant):
    """S001-30: one step, equal advantages and no valid step give zeros, not NaN."""
    one = normalise(torch.full((1, 1), 5.0), torch.ones(1, 1, dtype=torch.bool))
    flat = normalise(torch.full((4, 2), constant), torch.ones(4, 2, dtype=torch.bool))
    none = normalise(torch.full((4, 2), constant), torch.zeros(4, 2, dtype=torch.bool))
    assert all((x == 0).all() for x in (one, flat, none))


def test_normalise_uses_valid_steps_only():
    """S001-30, S000-13: mean 0 and spread 1 over valid steps, whatever the others hold."""
    valid = torch.rand(20, 5) > 0.3
    advantage = torch.randn(20, 5) * 3 + 7
    out = normalise(advantage.masked_fill(~valid, float("nan")), valid)
    assert out[valid].mean().abs() < 1e-5
    assert out[valid].std(correction=0) == pytest.approx(1, abs=1e-5)
    assert (out[~valid] == 0).all()
