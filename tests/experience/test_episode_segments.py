"""Minibatches of whole episodes: every step once, from the right state, with the gradient of chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import recollect as rc
from recollect.algos.ppo import loss
from recollect.base import tree
from recollect.cores import GRUConfig, LSTMConfig
from recollect.errors import ConfigError
from recollect.experience.chunks import Chunks, make_chunks, minibatches, shares
from recollect.experience.episode_segments import EpisodeSegments, make_segments, pack
from recollect.experience.rollout import Rollout
from recollect.learning.learner import Learner
from tests.experience.test_chunks import sentinels
from tests.learning.test_accumulation import double
from tests.support.helpers import GYM_WORLDS, ArenaWorld, ScriptedEnv, TensorWorld, as_rows, keep
from tests.support.ppo_setup import gradients, learner, nudge, same, weights
from tests.support.resumed import SMALL, assert_equal, rows, twice
from tests.support.resumed import weights as agent_weights

CORES = [
    LSTMConfig(hidden=12),
    GRUConfig(hidden=12),
    LSTMConfig(hidden=8, layers=2),
    GRUConfig(hidden=8, learned_initial_state=True),
    "none",
]
WORLDS = {
    "tensors": lambda: TensorWorld(4),
    "long": lambda: TensorWorld(4, lengths=(30, 2, 9)),
    "arena": lambda: ArenaWorld(3),
} | {world: lambda world=world: as_rows([ScriptedEnv] * 4, world) for world in GYM_WORLDS}


def numbered(seed: int, T: int, B: int) -> Rollout:
    """Sentinels with episodes at random; after some ends the row is no experience until its next start."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.rand(T + 1, B, generator=generator) < 0.3
    dead = torch.rand(T, B, generator=generator) < 0.15
    rollout = sentinels(T, B, (0,), first)
    for t in range(T):
        rollout.valid[t] = ~dead[t] if t == 0 else (rollout.valid[t - 1] | first[t]) & ~dead[t]
    return rollout


@given(st.integers(0, 10**6), st.integers(1, 25), st.integers(1, 4))
def test_every_valid_step_is_in_one_piece(seed, T, B):
    """S004-16, S001-10: steps in order, pieces cut at ``first`` and nowhere else, no filler among them."""
    rollout = numbered(seed, T, B)
    pieces = make_segments(rollout, {"position": torch.arange(T * B).view(T, B)})
    if pieces.count == 0:
        assert not rollout.valid.any()
        return
    batch = pieces.whole()
    position = batch.data["position"]
    expected = torch.arange(T * B)[rollout.valid.flatten()]
    assert torch.equal(position[batch.valid].sort().values, expected)
    assert int(batch.valid.sum()) == int(pieces.valid_steps(torch.arange(pieces.count)))
    follows = batch.valid[1:] & batch.valid[:-1] & ~batch.first[1:]
    assert torch.equal(position[1:][follows], position[:-1][follows] + B)
    assert torch.equal(batch.obs["number"].squeeze(-1)[batch.valid], position[batch.valid].float())
    assert not batch.obs["picture"][~batch.valid].any()
    # A column opens at ``first``, or with the stored state of the rollout's first step.
    opening = position[0]
    carried = ~batch.first[0]
    assert (opening[carried] < B).all()
    assert torch.equal(batch.state["n"][carried], opening[carried])
    assert not batch.state["h"][~carried].any()
    assert len(batch.valid) == int(pieces.sizes.max())


@given(st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=1, max_size=60))
def test_packing_wastes_little(pieces):
    """Nothing overlaps, all fits, carried pieces come first; less than half of the other columns is empty."""
    sizes, carried = zip(*pieces)
    column, offset = pack(sizes, carried)
    length, count = max(sizes), int(column.max()) + 1
    used = torch.zeros(length, count)
    for size, is_carried, c, o in zip(sizes, carried, column.tolist(), offset.tolist()):
        assert not (is_carried and o)
        used[o : o + size, c] += 1
    assert used.max() == 1
    assert int(used.sum()) == sum(sizes)
    free = count - sum(carried)  # columns that were opened for want of room
    assert free <= 1 or length * (free - 1) < 2 * sum(sizes)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=50), st.integers(1, 8), st.integers(0, 99))
def test_minibatches_hold_every_piece_once_and_alike_steps(sizes, parts, seed):
    """S001-10: none lost, none empty, and none further from its share than two of the longest pieces."""
    steps = torch.tensor(sizes)
    found = list(minibatches(len(sizes), parts, torch.Generator().manual_seed(seed), steps))
    assert len(found) == min(parts, len(sizes))
    assert torch.equal(torch.cat(found).sort().values, torch.arange(len(sizes)))
    assert all(len(part) for part in found)
    if len(sizes) >= 4 * parts and max(sizes) <= 4 * min(sizes):
        assert all(abs(int(steps[part].sum()) - sum(sizes) / parts) <= 2 * max(sizes) for part in found)
    assert torch.equal(torch.cat(shares(torch.arange(len(sizes)), parts, steps)), torch.arange(len(sizes)))


def targets(rollout: Rollout) -> dict[str, Tensor]:
    """Made-up advantages and returns, unlike at every step."""
    generator = torch.Generator().manual_seed(5)
    shape = (rollout.steps, rollout.rows)
    return {name: torch.randn(shape, generator=generator).double() for name in ("advantage", "return")}


def alone(pieces: EpisodeSegments) -> Chunks:
    """The slow truth: every piece in a column of its own, padded to the longest."""
    ones = [pieces.take(torch.tensor([i])) for i in range(pieces.count)]
    length = max(len(one.valid) for one in ones)

    def pad(leaf: Tensor) -> Tensor:
        return torch.cat([leaf, leaf.new_zeros(length - len(leaf), *leaf.shape[1:])])

    parts = {
        name: tree.cat([tree.map(pad, getattr(one, name)) for one in ones], 1)
        for name in ("obs", "first", "action", "valid", "data")
    }
    return Chunks(**parts, state=tree.cat([one.state for one in ones]))


def gradient(ppo: Learner, batch: Chunks) -> tuple[Tensor, dict[str, Tensor]]:
    ppo.optimizer.zero_grad()
    total, _ = loss(ppo.policy, batch, ppo.config, 0.1, batch.valid.sum())
    total.backward()
    return total.detach(), {name: grad.clone() for name, grad in gradients(ppo).items()}


# The worlds differ in what is cut, not in what is unrolled: two of them are enough for most cores.
CASES = [
    (core, world) for core in CORES for world in WORLDS if core in CORES[:1] or world in ("long", "arena")
]


@pytest.mark.parametrize(("core", "world"), CASES, ids=str)
def test_the_gradient_is_that_of_padded_chunks(core, world):
    """S004-16: packed, each alone, or as whole rows with resets inside: one loss, one gradient, to 1e-10."""
    ppo, actor = learner(WORLDS[world](), core, batching="episodes", minibatches=2)
    actor.collect()
    rollout = keep(actor.collect())
    assert not rollout.first[0].all(), "some pieces go on from before the rollout"
    double(ppo, rollout)
    nudge(ppo)
    data = targets(rollout)
    pieces = make_segments(rollout, data)
    assert pieces.is_carried.any()
    expected = gradient(ppo, make_chunks(rollout, 23, data))
    packed, single = pieces.whole(), alone(pieces)
    assert packed.count < single.count
    for total, grads in (gradient(ppo, packed), gradient(ppo, single)):
        torch.testing.assert_close(total, expected[0], rtol=1e-10, atol=1e-10)
        for name, grad in expected[1].items():
            torch.testing.assert_close(grads[name], grad, rtol=1e-9, atol=1e-10)
    if core != "none":
        forgotten = replace(packed, state=tree.map(torch.zeros_like, packed.state))
        assert (gradient(ppo, forgotten)[0] - expected[0]).abs() > 1e-6, "the carried states matter"


def test_what_the_dead_see_reaches_nothing():
    """S000-13, S001-29: NaN in invalid rows, states included, leaves all weights finite."""
    ppo, actor = learner(ArenaWorld(3), batching="episodes", minibatches=2)
    for _ in range(3):
        rollout = actor.collect()
        assert rollout.obs[:-1][~rollout.valid].isnan().all()
        metrics = ppo.update(rollout)
        assert metrics["deviation/log_prob"] <= 1e-5
    assert all(p.isfinite().all() for p in ppo.policy.parameters())


@pytest.mark.parametrize("world", WORLDS)
def test_the_learner_reproduces_the_actor(world):
    """M, S004-16: over rollouts with updates in between; one minibatch, so that all of it is looked at."""
    ppo, actor = learner(WORLDS[world](), batching="episodes", minibatches=1, learning_rate=1e-2)
    assert ppo.config.state_steps == (0,), "no other state is stored"
    for _ in range(3):
        rollout = actor.collect()
        pieces = make_segments(rollout, {}).count
        metrics = ppo.update(rollout)
        assert metrics["sequences"] == pieces
        assert metrics["deviation/log_prob"] <= 1e-5
        assert metrics["deviation/value"] <= 1e-5 * max(1, metrics["value_scale"])
        assert 0 <= metrics["padding"] < 0.5


def test_a_wrong_state_is_noticed():
    """The gauge sees the states of pieces that go on from before the rollout."""
    ppo, actor = learner(batching="episodes", minibatches=1)
    ppo.update(actor.collect())
    rollout = actor.collect()
    tree.map(lambda leaf: leaf.add_(0.5), rollout.states)
    with pytest.raises(rc.errors.AlignmentError):
        ppo.update(rollout)


def test_minibatches_are_of_episodes():
    """With one minibatch it is the update of whole rows; with several, rows are taken apart."""
    settings: dict[str, Any] = {"learning_rate": 1e-3}
    found = {}
    for batching in ("chunks", "episodes"):
        for count in (1, 4):
            ppo, actor = learner(recurrent_mode="full", batching=batching, minibatches=count, **settings)
            ppo.update(actor.collect())
            found[batching, count] = weights(ppo)
    for name, value in found["chunks", 1].items():
        torch.testing.assert_close(found["episodes", 1][name], value, rtol=1e-3, atol=1e-4)
    assert not same(found["chunks", 4], found["episodes", 4])
    far = [(found["chunks", 4][n] - found["episodes", 4][n]).abs().max() for n in found["chunks", 4]]
    assert max(far) > 1e-3


def test_what_makes_no_sense_with_episodes_is_refused():
    """S000-26: burn-in and refreshed states; too few rows for the minibatches."""
    with pytest.raises(ConfigError, match="whole episodes need no burn-in"):
        learner(batching="episodes", recurrent_mode="burn_in", burn_in_steps=2)
    with pytest.raises(ConfigError, match="refresh_states does nothing with batching = 'episodes'"):
        learner(batching="episodes", refresh_states=True)
    with pytest.raises(ConfigError, match=r"4 rows .* 4 episode segments, too few for 5 minibatches"):
        learner(batching="episodes", minibatches=5)
    learner(batching="episodes", minibatches=4, chunk=1000)  # a chunk length has no effect


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path):
    """S002-7: the drawing and packing of episodes depend on nothing that is not saved."""
    settings = {"batching": "episodes", "minibatches": 2, "core": rc.GRUConfig(hidden=8)}
    whole, halves = twice(tmp_path, "t-maze", SMALL | settings)
    assert_equal(agent_weights(whole), agent_weights(halves))
    assert rows(tmp_path / "whole") == rows(tmp_path / "halves")


def test_verify_passes_with_episodes():
    """S004-19: the checks of ``recollect verify`` look at packed episodes, too."""
    result = rc.verify("t-maze", batching="episodes", minibatches=2, accumulate=2, **VERIFIED)
    assert result.ok, str(result)


VERIFIED = {"rollout": 16, "num_envs": 4, "core": rc.LSTMConfig(hidden=8), "threads": 1, "preset": False}
