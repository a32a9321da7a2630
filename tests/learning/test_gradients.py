"""What the loss sees, and what it must not: padding, dead agents, other chunks, episodes before."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recollect.algos import ppo
from recollect.algos.catalog import make_learner
from recollect.base import tree
from recollect.config.ppo import PPOConfig
from recollect.cores import GRUConfig, LSTMConfig
from recollect.experience.chunks import Chunks, make_chunks
from recollect.experience.rollout import Rollout
from recollect.learning.sequences import burn_in
from recollect.policy.policy import Policy
from tests.support.helpers import ArenaWorld, TensorWorld, keep, make_actor, make_policy

T = 23
CORES = [
    LSTMConfig(16),
    GRUConfig(16),
    LSTMConfig(16, layers=2),
    GRUConfig(16, learned_initial_state=True),
    "none",
]
CONFIG = PPOConfig(rollout=T, chunk=7)


def learnable(rollout: Rollout, length: int, burn_in: int = 0) -> Chunks:
    """Chunks with made-up advantages and returns, unlike at every step."""
    generator = torch.Generator().manual_seed(5)
    shape = (rollout.steps, rollout.rows)
    data = {name: torch.randn(shape, generator=generator) for name in ("advantage", "return")}
    return make_chunks(rollout, length, data, burn_in)


def gradient(policy: Policy, *batches: Chunks, count: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
    """The loss of all batches together and its gradient, an entry for each parameter."""
    count = sum((batch.valid.sum() for batch in batches), torch.tensor(0)) if count is None else count
    policy.zero_grad()
    total = sum((ppo.loss(policy, batch, CONFIG, 0.1, count)[0] for batch in batches), torch.tensor(0.0))
    total.backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in policy.parameters()]
    return total.detach(), grads


def assert_same(one: tuple, other: tuple, atol: float = 1e-6) -> None:
    torch.testing.assert_close(one[0], other[0], atol=atol, rtol=1e-5)
    for a, b in zip(one[1], other[1]):
        torch.testing.assert_close(a, b, atol=atol, rtol=1e-4)


def fill(chunks: Chunks, seed: int) -> Chunks:
    """The same chunks with noise in place of all that invalid steps hold, and resets there."""
    generator = torch.Generator().manual_seed(seed)
    pad = ~chunks.valid

    def noise(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        other = torch.randn(leaf.shape, generator=generator) * 10
        return torch.where(pad.view(pad.shape + (1,) * (leaf.dim() - 2)), other, leaf)

    first = chunks.first | (pad & (torch.rand(pad.shape, generator=generator) < 0.5))
    return replace(chunks, obs=tree.map(noise, chunks.obs), data=tree.map(noise, chunks.data), first=first)


@pytest.mark.parametrize("core", CORES, ids=str)
def test_padding_is_not_seen(core):
    """S000-13: loss, entropy, KL and gradients do not depend on what padding holds, or how much there is."""
    env = TensorWorld(3)
    policy = make_policy(env, core)
    rollout = make_actor(env, policy, rollout=T, chunk=7).collect()
    chunks = learnable(rollout, 7)  # 23 = 3 * 7 + 2: the last ones hold 5 steps of padding
    expected = gradient(policy, chunks)
    assert_same(gradient(policy, fill(chunks, 1)), expected)
    stats = [ppo.loss(policy, batch, CONFIG, 0.1, torch.tensor(69))[1] for batch in (chunks, fill(chunks, 2))]
    for name in stats[0]:
        torch.testing.assert_close(stats[0][name], stats[1][name], atol=1e-6, rtol=1e-5)
    # And not there at all: whole chunks, and the short ones cut to their two steps.
    whole, short = chunks.take(torch.arange(9)), chunks.take(torch.arange(9, 12))
    trimmed = replace(
        short,
        obs=short.obs[:2],
        first=short.first[:2],
        action=short.action[:2],
        valid=short.valid[:2],
        data=tree.index(short.data, slice(0, 2)),
    )
    assert trimmed.valid.all()
    assert_same(gradient(policy, whole, trimmed), expected)


@pytest.mark.parametrize("core", CORES, ids=str)
def test_dead_agents_are_not_learned_from(core):
    """S001-29, S000-13: NaN in the rows of the dead gives the same finite gradient as zeros there."""
    env = ArenaWorld(3)
    policy = make_policy(env, core)
    actor = make_actor(env, policy, rollout=T, chunk=7, burn_in=3)
    actor.collect()
    rollout = actor.collect()
    dead = ~rollout.valid
    assert rollout.obs[:T][dead].isnan().all()
    learner = make_learner(policy, replace(CONFIG, recurrent_mode="burn_in", burn_in_steps=3))
    expected = gradient(policy, burn_in(learner.policy, learnable(rollout, 7, 3)))
    assert all(torch.isfinite(g).all() for g in expected[1])
    other = keep(rollout)
    other.obs[:T][dead] = 7.0
    for value in other.record.values():
        value[dead] = -50.0
    for leaf in tree.leaves(other.states):
        leaf.nan_to_num_(nan=3.0)
    assert_same(gradient(policy, burn_in(learner.policy, learnable(other, 7, 3))), expected, atol=1e-7)
    # The living agents alone give that loss as well.
    alive = [n for n in range(24) if (n % 6) % 2 == 0]
    chunks = burn_in(learner.policy, learnable(rollout, 7, 3))
    mates = [n for n in range(24) if n not in alive]
    both = gradient(policy, *(chunks.take(torch.tensor(rows)) for rows in (alive, mates)))
    assert_same(both, expected)


def test_states_after_the_last_step_are_not_used(monkeypatch):
    """S000-14: NaN in every state that an unroll leaves behind changes neither loss nor gradient."""
    env = TensorWorld(3)
    policy = make_policy(env, CORES[0])
    chunks = learnable(make_actor(env, policy, rollout=T, chunk=7).collect(), 7)
    expected = gradient(policy, chunks)
    unroll = policy.core.unroll

    def poisoned(x, state, first):
        y, state = unroll(x, state, first)
        return y, tree.map(lambda leaf: torch.full_like(leaf, torch.nan), state)

    monkeypatch.setattr(policy.core, "unroll", poisoned)
    assert_same(gradient(policy, chunks), expected)


def reach(policy: Policy, rollout: Rollout, length: int) -> Tensor:
    """[T, T, B]: whether the value at step t depends on the observation at step s, as [t, s, b]."""
    rollout = replace(rollout, obs=rollout.obs.clone().requires_grad_(True))
    chunks = make_chunks(rollout, length, {})
    _, _, value = policy.evaluate_actions(chunks.obs, chunks.action, chunks.state, chunks.first)
    reached = torch.zeros(T, T, rollout.rows, dtype=torch.bool)
    for t in range(T):
        column = slice((t // length) * rollout.rows, (t // length + 1) * rollout.rows)
        (grad,) = torch.autograd.grad(value[t % length, column].sum(), rollout.obs, retain_graph=True)
        reached[t] = grad[:T].abs().sum(-1) > 0
    return reached


@pytest.mark.parametrize("length", [1, 7, T])
def test_gradients_flow_through_time_inside_chunk_and_episode(length):
    """S004-3: the value at t depends on the observation at s <= t of the same chunk and episode, no other."""
    env = TensorWorld(3, lengths=(10, 4, 6))
    policy = make_policy(env, CORES[0])
    rollout = make_actor(env, policy, rollout=T, chunk=length).collect()
    episode = rollout.first[:T].long().cumsum(0)
    t, s = torch.arange(T).unsqueeze(1), torch.arange(T).unsqueeze(0)
    together = ((s <= t) & (s // length == t // length)).unsqueeze(-1)
    expected = together & (episode.unsqueeze(1) == episode.unsqueeze(0))
    assert torch.equal(reach(policy, rollout, length), expected)


def test_a_learned_initial_state_learns_only_at_starts():
    """Its gradient flows through ``first`` and through nothing else."""
    env = TensorWorld(3, lengths=(200,))
    policy = make_policy(env, CORES[3])
    actor = make_actor(env, policy, rollout=T, chunk=7)
    names = [name for name, _ in policy.named_parameters()]
    at = names.index("core.initial_h")
    opening = gradient(policy, learnable(actor.collect(), 7))[1][at]
    inside = gradient(policy, learnable(actor.collect(), 7))[1][at]
    assert opening.abs().max() > 1e-4
    assert (inside == 0).all()


def test_burn_in_replays_without_gradient():
    """S004-12, S001-14: from the stored prefix state, under the new weights, through resets; no gradient."""
    env = TensorWorld(3)
    policy = make_policy(env, CORES[3])
    config = PPOConfig(rollout=T, chunk=7, recurrent_mode="burn_in", burn_in_steps=5)
    learner = make_learner(policy, config)
    rollout = make_actor(env, policy, rollout=T, chunk=7, burn_in=5).collect()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    chunks = learnable(rollout, 7, 5)
    chunks.prefix.obs.requires_grad_(True)
    burnt = burn_in(learner.policy, chunks)
    assert all(not leaf.requires_grad for leaf in tree.leaves(burnt.state))
    assert torch.equal(burnt.valid, chunks.valid)  # nothing is masked besides, also not after a reset
    for c in range(4):
        rows = slice(3 * c, 3 * c + 3)
        state = rollout.state_at(0) if c == 0 else rollout.state_at(7 * c - 5)
        for t in range(7 * c - 5 if c else 0, 7 * c):
            with torch.no_grad():
                _, _, state = policy.unroll(rollout.obs[t : t + 1], state, rollout.first[t : t + 1])
        torch.testing.assert_close(burnt.state[rows], state, atol=1e-5, rtol=1e-5)
    stale = (burnt.state - chunks.state).flatten(1).abs().amax(1)
    assert (stale[:3] == 0).all()
    assert (stale[3:] > 0.01).any()
    total, _ = ppo.loss(policy, burnt, config, 0.1, burnt.valid.sum())
    total.backward()
    assert chunks.prefix.obs.grad is None


@pytest.mark.parametrize("core", CORES[:3], ids=str)
def test_whole_episodes_give_the_gradient_of_padded_chunks(core):
    """Like S004-16: each episode unrolled alone, as long as it is, or in rows with resets: one gradient."""
    env = TensorWorld(3)
    policy = make_policy(env, core)
    rollout = make_actor(env, policy, rollout=T, chunk=T).collect()
    chunks = learnable(rollout, T)
    episodes = []
    for row in range(3):
        starts = rollout.first[:T, row].nonzero().flatten().tolist()
        for begin, end in zip(starts, [*starts[1:], T]):
            piece = chunks.take(torch.tensor([row]))
            parts = {
                name: tree.index(getattr(piece, name), slice(begin, end))
                for name in ("obs", "first", "action")
            }
            rest = {"valid": piece.valid[begin:end], "data": tree.index(piece.data, slice(begin, end))}
            episodes.append(replace(piece, **parts, **rest, state=policy.initial_state(1)))
    assert len(episodes) > 12
    assert_same(gradient(policy, *episodes), gradient(policy, chunks))


def test_the_last_step_learns():
    """S002-20: the last step of a rollout has a real bootstrap, and its loss a gradient."""
    env = TensorWorld(3, lengths=(200,))
    policy = make_policy(env, CORES[0])
    rollout = make_actor(env, policy, rollout=T, chunk=7).collect()
    _, data, _ = make_learner(policy, replace(CONFIG, normalise_advantages=False)).targets(rollout)
    value, reward = rollout.record["value"], rollout.reward
    torch.testing.assert_close(data["advantage"][-1], reward[-1] + 0.99 * rollout.bootstrap - value[-1])
    assert rollout.bootstrap.abs().min() > 1e-3
    chunks = make_chunks(rollout, 7, data)
    last = replace(chunks, valid=torch.zeros_like(chunks.valid))
    last.valid[1, 9:] = True  # step 22 is the second of the fourth chunk
    _, grads = gradient(policy, last)
    assert all(g.abs().max() > 0 for g in grads)
