"""Chunks and minibatches: a lossless cut of the rollout, each piece with the state it started from."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.base import tree
from recollect.config.algo_shared import state_steps
from recollect.errors import ConfigError, RecollectError
from recollect.experience.chunks import make_chunks, minibatches
from recollect.experience.rollout import Finals, Rollout
from tests.support.helpers import ArenaWorld, TensorWorld, make_actor, make_policy, uncut


def sentinels(T: int, B: int, steps: tuple[int, ...], first: torch.Tensor | None = None) -> Rollout:
    """A rollout in which everything at (t, n) says t * B + n."""
    ids = torch.arange((T + 1) * B).view(T + 1, B)
    flags = torch.zeros(T, B, dtype=torch.bool)
    here = ids[:T].float()
    return Rollout(
        obs={"number": ids.float().unsqueeze(-1), "picture": ids.view(T + 1, B, 1, 1).expand(-1, -1, 2, 3)},
        first=ids % 5 == 0 if first is None else first,
        action=(ids[:T], here.unsqueeze(-1)),
        record={"log_prob": here.clone(), "value": here.clone()},
        reward=here,
        terminated=flags,
        truncated=flags.clone(),
        valid=~flags,
        final_value=here.clone(),
        bootstrap=ids[T].float(),
        state_steps=steps,
        states={"h": ids[list(steps)].view(-1, B, 1, 1).float().expand(-1, -1, 2, 2), "n": ids[list(steps)]},
    )


sizes = st.tuples(st.integers(1, 25), st.integers(1, 4)).flatmap(
    lambda tb: st.tuples(st.just(tb[0]), st.just(tb[1]), st.integers(1, tb[0]))
)


@given(sizes)
def test_chunks_partition_the_rollout(size):
    """S000-10, S000-15, S000-22: put together again, every tensor is as it was, and rows never mix."""
    T, B, L = size
    rollout = sentinels(T, B, state_steps(T, L))
    chunks = make_chunks(rollout, L, {"advantage": rollout.reward * 10})
    count = -(-T // L)
    assert chunks.count == count * B
    assert chunks.valid.shape == (L, count * B)  # the configured length is honoured
    assert int(chunks.valid.sum()) == T * B
    for name in ("obs", "first", "action", "valid"):
        whole = tree.index(getattr(rollout, name), slice(0, T))
        for cut, once in zip(tree.leaves(getattr(chunks, name)), tree.leaves(whole)):
            assert torch.equal(uncut(cut, rollout), once), name
            assert cut.dtype == once.dtype
    for name, once in {**rollout.record, "advantage": rollout.reward * 10}.items():
        assert torch.equal(uncut(chunks.data[name], rollout), once)
    # Column n is chunk n // B of row n % B: consecutive steps of that row, from its start on.
    step, column = torch.arange(L).unsqueeze(1), torch.arange(count * B).unsqueeze(0)
    expected = ((column // B) * L + step) * B + column % B
    number = chunks.obs["number"].squeeze(-1).long()
    assert torch.equal(number[chunks.valid], expected[chunks.valid])
    assert torch.equal(chunks.valid, expected < T * B)


@given(sizes)
def test_chunks_start_from_the_stored_state_of_their_first_step(size):
    """S000-11, S000-15: the state's sentinel is that of the first observation of its chunk."""
    T, B, L = size
    chunks = make_chunks(sentinels(T, B, state_steps(T, L)), L, {})
    opening = chunks.obs["number"][0].squeeze(-1)
    assert torch.equal(chunks.state["n"].float(), opening)
    assert torch.equal(chunks.state["h"], opening.view(-1, 1, 1).expand(-1, 2, 2))
    assert not chunks.state["h"].requires_grad


@given(sizes, st.integers(1, 25))
def test_prefixes_are_the_steps_before(size, K):
    """S004-12: K earlier steps of the same row, from the state stored there; the opening chunks have none."""
    T, B, L = size
    K = min(K, L)
    chunks = make_chunks(sentinels(T, B, state_steps(T, L, K)), L, {}, burn_in=K)
    prefix, opening = chunks.prefix, chunks.obs["number"][0].squeeze(-1)
    assert torch.equal(prefix.exists, torch.arange(chunks.count) >= B)
    if not prefix.exists.any():
        return
    before = opening[prefix.exists] - B * torch.arange(K, 0, -1).unsqueeze(1)  # [K, N]
    assert torch.equal(prefix.obs["number"].squeeze(-1)[:, prefix.exists], before)
    assert torch.equal(prefix.state["n"][prefix.exists].float(), before[0])
    assert torch.equal(prefix.first[:, prefix.exists], before % 5 == 0)


@given(sizes, st.data())
def test_take_picks_whole_chunks(size, data):
    """S004-6, S000-22: any choice of chunks, in any order, keeps each with its own state and prefix."""
    T, B, L = size
    chunks = make_chunks(sentinels(T, B, state_steps(T, L, 1)), L, {}, burn_in=1)
    picks = data.draw(st.lists(st.integers(0, chunks.count - 1), min_size=1))
    some = chunks.take(torch.tensor(picks))
    assert some.count == len(picks)
    for i, n in enumerate(picks):
        for name in ("obs", "first", "action", "valid", "data"):
            for ours, whole in zip(tree.leaves(getattr(some, name)), tree.leaves(getattr(chunks, name))):
                assert torch.equal(ours[:, i], whole[:, n])
        for ours, whole in zip(tree.leaves(some.state), tree.leaves(chunks.state)):
            assert torch.equal(ours[i], whole[n])
        assert torch.equal(some.prefix.state["n"][i], chunks.prefix.state["n"][n])
        assert torch.equal(some.prefix.obs["number"][:, i], chunks.prefix.obs["number"][:, n])
        assert some.prefix.exists[i] == chunks.prefix.exists[n]
    back = chunks.take(torch.randperm(chunks.count, generator=torch.Generator().manual_seed(0)))
    inverse = back.obs["number"][0].squeeze(-1).argsort()
    assert torch.equal(back.take(inverse).action[0], chunks.action[0])


@given(count=st.integers(1, 60), parts=st.integers(1, 60), seed=st.integers(0, 1000))
def test_minibatches_cover_everything_once(count, parts, seed):
    """S001-10: every chunk once per epoch, none dropped, sizes within one; epochs differ."""
    parts = min(parts, count)
    generator = torch.Generator().manual_seed(seed)
    epochs = [list(minibatches(count, parts, generator)) for _ in range(2)]
    for pieces in epochs:
        assert len(pieces) == parts
        assert sorted(torch.cat(pieces).tolist()) == list(range(count))
        assert max(map(len, pieces)) - min(map(len, pieces)) <= 1
    if count > 20:
        assert torch.cat(epochs[0]).tolist() != torch.cat(epochs[1]).tolist()


def test_rollout_holds_every_step_of_every_row():
    """S004-7: T x B entries, T + 1 observations, S states."""
    env = TensorWorld(3)
    rollout = make_actor(env, make_policy(env), rollout=23, chunk=7, burn_in=3).collect()
    assert rollout.state_steps == (0, 4, 7, 11, 14, 18, 21)
    assert rollout.obs.shape == (24, 3, 3)
    assert rollout.first.shape == (24, 3)
    for x in (rollout.action, rollout.reward, rollout.valid, *rollout.record.values(), rollout.final_value):
        assert x.shape == (23, 3)
    assert all(leaf.shape[:2] == (7, 3) for leaf in tree.leaves(rollout.states))


@given(sizes, st.integers(0, 25))
def test_state_steps(size, K):
    """S000-10: chunk starts and prefix starts, ascending, from 0, inside the rollout."""
    T, _, L = size
    K = min(K, L)
    steps = state_steps(T, L, K)
    assert list(steps) == sorted(set(steps))
    assert steps[0] == 0
    assert steps[-1] < T
    assert set(steps) == set(range(0, T, L)) | {s - K for s in range(L, T, L)}


def test_what_was_not_stored_raises():
    rollout = sentinels(10, 2, (0, 5))
    with pytest.raises(RecollectError, match="state at step 3 was not stored"):
        make_chunks(rollout, 3, {})
    for length in (0, 11):
        with pytest.raises(ConfigError, match="choose 1 <= chunk <= rollout"):
            make_chunks(rollout, length, {})


def test_invalid_steps_become_zeros():
    """S000-13, S001-29: NaN of dead agents is gone from every part of the chunks, and nothing else is."""
    env = ArenaWorld(3)
    actor = make_actor(env, make_policy(env), rollout=23, chunk=7, burn_in=3)
    for _ in range(2):
        rollout = actor.collect()
        dead = ~rollout.valid
        assert rollout.obs[:23][dead].isnan().all()
        assert rollout.record["value"][dead].isnan().all()
        chunks = make_chunks(rollout, 7, {"return": rollout.record["value"] * 2}, burn_in=3)
        for leaf in tree.leaves((chunks.obs, chunks.action, chunks.data, chunks.prefix.obs)):
            assert torch.isfinite(leaf).all()
        kept = uncut(chunks.obs, rollout)
        assert torch.equal(kept[rollout.valid], rollout.obs[:23][rollout.valid])
        assert (kept[dead] == 0).all()
        # A state may be NaN only where its chunk's first step throws it away.
        for leaf in tree.leaves(chunks.state):
            assert torch.isfinite(leaf.flatten(1)).all(1)[~chunks.first[0]].all()


def test_finals_are_kept_in_order():
    """S000-4: the observations before the resets of truncated episodes, and only theirs."""
    env = TensorWorld(3)
    rollout = make_actor(env, make_policy(env), rollout=23, chunk=7).collect()
    finals, cut = rollout.finals, rollout.truncated & ~rollout.terminated
    assert isinstance(finals, Finals)
    assert torch.equal(torch.stack([finals.time, finals.row], 1), cut.nonzero())
    assert (rollout.final_value[~cut] == 0).all()
    follow = rollout.obs[finals.time + 1, finals.row]
    assert (finals.obs != follow).any(1).all()  # never the reset observation
