"""Advantages against the slow truth, closed forms, and the boundaries where they usually go wrong."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import RecollectError
from recollect.experience.chunks import make_chunks
from recollect.experience.returns import gae
from tests.reference import returns as reference
from tests.support.helpers import TensorWorld, make_actor, make_policy, uncut
from tests.support.traces import column, no_surprise, trace, two_lives, with_invalid_steps


@given(
    T=st.integers(1, 33),
    B=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    ends=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    gamma=st.sampled_from([0.0, 0.9, 0.99, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
def test_equals_the_double_sum(T, B, seed, ends, gamma, gae_lambda):
    """S001-25, S004-7: equals the definition row by row, so nothing crosses rows or ends."""
    given = trace(T, B, seed, ends, gamma=gamma, gae_lambda=gae_lambda)
    for ours, truth in zip(gae(**given), reference.gae(**given)):
        torch.testing.assert_close(ours, truth, atol=1e-9, rtol=1e-9)


@given(T=st.integers(2, 20), B=st.integers(1, 3), seed=st.integers(0, 10**6))
def test_invalid_steps_count_for_nothing(T, B, seed):
    """S000-13: what stands in invalid steps, NaN included, changes no advantage; theirs are 0."""
    given, poisoned = with_invalid_steps(trace(T, B, seed), seed)
    valid = given["valid"]
    expected, _ = reference.gae(**given)
    advantage, returns = gae(**poisoned)
    torch.testing.assert_close(advantage, expected, atol=1e-9, rtol=1e-9)
    assert (advantage[~valid] == 0).all()
    assert torch.isfinite(returns[valid]).all()


def test_terminated_by_hand():
    """S000-2: a death is worth its reward alone, and the trace ends there."""
    given = two_lives()
    advantage, returns = gae(**given, gae_lambda=0.5)
    deltas = [1 + 10 - 10, 2 - 20, 3 + 20 - 30, 4 + 25 - 40]
    expected = column(deltas[0] + 0.25 * deltas[1], deltas[1], deltas[2] + 0.25 * deltas[3], deltas[3])
    torch.testing.assert_close(advantage, expected)
    torch.testing.assert_close(returns, expected + given["value"])


@pytest.mark.parametrize("cut", [(), (4,), (0, 1, 2), (9,), (3, 9)])
def test_constant_reward_and_exact_value_leave_no_advantage(cut):
    """S000-3: V = r / (1 - gamma) is exact everywhere, so a truncation anywhere must not be a surprise."""
    given = no_surprise(cut)
    advantage, returns = gae(**given, gae_lambda=0.95)
    torch.testing.assert_close(advantage, torch.zeros_like(advantage), atol=1e-9, rtol=0)
    torch.testing.assert_close(returns, given["value"])


def test_the_value_after_a_reset_is_never_read():
    """S000-4: poison value[t + 1] where an episode ended at t; advantages before it stay the same."""
    given = trace(12, 3, seed=4)
    ended = given["terminated"] | given["truncated"]
    for t, row in ended[:-1].nonzero().tolist():
        poisoned = dict(given, value=given["value"].clone())
        poisoned["value"][t + 1, row] = 1e9
        before = torch.arange(12) <= t
        torch.testing.assert_close(gae(**poisoned)[0][before], gae(**given)[0][before])
    poisoned = dict(given, bootstrap=torch.where(ended[-1], torch.nan, given["bootstrap"]))
    torch.testing.assert_close(gae(**poisoned), gae(**given))
    read = given["truncated"] & ~given["terminated"]
    poisoned = dict(given, final_value=given["final_value"].masked_fill(~read, torch.nan))
    torch.testing.assert_close(gae(**poisoned), gae(**given))


def test_a_missing_bootstrap_raises():
    """S000-5: it never defaults to 0; it may be missing only if every row ends with the rollout."""
    given = trace(5, 3, ends=0.0, bootstrap=None)
    with pytest.raises(RecollectError, match="no bootstrap"):
        gae(**given)
    given["truncated"][-1] = torch.tensor([True, True, False])
    with pytest.raises(RecollectError, match="1 rows are still inside"):
        gae(**given)
    given["truncated"][-1] = True
    torch.testing.assert_close(
        gae(**given), gae(**dict(given, bootstrap=torch.full((3,), torch.nan).double()))
    )


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        ((0, 0, 0), (0, 0, 1), [1 + 7, 1 + 7, 1 + 30]),  # cut on the last step of the rollout
        ((0, 0, 1), (0, 0, 1), [1 + 7, 1 + 7, 1]),  # both: terminated wins
        ((1, 1, 1), (0, 0, 0), [1, 1, 1]),  # one-step episodes in a row
        ((0, 0, 0), (1, 1, 1), [1 + 10, 1 + 20, 1 + 30]),
        ((0, 0, 0), (0, 0, 0), [1 + 7, 1 + 7, 1 + 50]),  # the rollout ends inside the episode
    ],
)
def test_edges(terminated, truncated, expected):
    """S000-6: with lambda = 0 and gamma = 1 the return is r + the next value, whichever that is."""
    _, returns = gae(
        reward=column(1, 1, 1),
        value=column(7, 7, 7),
        terminated=column(*terminated).bool(),
        truncated=column(*truncated).bool(),
        final_value=column(10, 20, 30),
        bootstrap=torch.tensor([50.0], dtype=torch.float64),
        gamma=1.0,
        gae_lambda=0.0,
    )
    assert returns.squeeze(1).tolist() == expected


@given(seed=st.integers(0, 10**6))
def test_closed_forms(seed):
    """S001-25: gamma = 0 is r - V; lambda = 0 is the TD error; lambda = 1 is the return minus V."""
    given = trace(9, 2, seed, ends=0.0)
    reward, value, bootstrap = given["reward"], given["value"], given["bootstrap"]
    torch.testing.assert_close(gae(**dict(given, gamma=0.0))[0], reward - value)
    following = torch.cat([value[1:], bootstrap.unsqueeze(0)])
    torch.testing.assert_close(gae(**dict(given, gae_lambda=0.0))[0], reward + 0.97 * following - value)
    total, returns = bootstrap, []
    for r in reward.flip(0):
        total = r + 0.97 * total
        returns.append(total)
    torch.testing.assert_close(gae(**dict(given, gae_lambda=1.0))[1], torch.stack(returns[::-1]))


def test_one_convention():
    """S001-9: ends read at the step that caused them, or one later as ``first``, give one answer."""
    given = trace(20, 2, seed=8)
    ended = given["terminated"] | given["truncated"]
    first = torch.cat([torch.ones(1, 2, dtype=torch.bool), ended])  # first[t + 1] = ended[t]
    advantage = torch.zeros(21, 2, dtype=torch.float64)
    for t in reversed(range(20)):
        following = given["value"][t + 1] if t < 19 else given["bootstrap"]
        following = torch.where(first[t + 1] & given["truncated"][t], given["final_value"][t], following)
        following = torch.where(first[t + 1] & given["terminated"][t], 0.0, following)
        delta = given["reward"][t] + 0.97 * following - given["value"][t]
        advantage[t] = delta + 0.97 * 0.9 * ~first[t + 1] * advantage[t + 1]
    torch.testing.assert_close(gae(**given)[0], advantage[:-1])


def test_rows_do_not_mix():
    """S004-7: changing one row changes that row's advantages and no other's."""
    given = trace(10, 3, seed=1, ends=0.1)
    changed = dict(given, reward=given["reward"].clone())
    changed["reward"][:, 1] += 5
    moved = (gae(**given)[0] != gae(**changed)[0]).any(0)
    assert moved.tolist() == [False, True, False]


@pytest.mark.parametrize("chunk", [1, 7, 32, 40])
def test_advantages_do_not_depend_on_chunks(chunk):
    """S000-9: GAE sees whole rollouts; cutting comes after, and cuts without loss."""
    env = TensorWorld(2)
    policy = make_policy(env, "gru")
    rollout = make_actor(env, policy, rollout=40, chunk=chunk).collect()
    given = {name: getattr(rollout, name) for name in ("reward", "terminated", "truncated", "final_value")}
    given |= {"value": rollout.record["value"], "bootstrap": rollout.bootstrap}
    advantage, _ = gae(**given, gamma=0.99, gae_lambda=0.95, valid=rollout.valid)
    chunks = make_chunks(rollout, chunk, {"advantage": advantage})
    assert torch.equal(uncut(chunks.data["advantage"], rollout), advantage)


def test_wrong_shapes_are_refused():
    given = trace(5, 3)
    for name in ("value", "terminated", "truncated", "final_value"):
        with pytest.raises(RecollectError, match="shapes"):
            gae(**dict(given, **{name: given[name].T}))
    with pytest.raises(RecollectError, match="bootstrap has shape"):
        gae(**dict(given, bootstrap=torch.zeros(5)))
