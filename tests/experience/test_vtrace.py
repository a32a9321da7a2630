"""V-trace against the paper's sum, against GAE and n-step returns, and at the boundaries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import RecollectError
from recollect.experience.returns import gae, vtrace
from tests.reference import returns as reference
from tests.support.traces import Trace, column, no_surprise, two_lives, with_invalid_steps
from tests.support.traces import trace as on_policy


def trace(T: int, B: int, seed: int = 0, ends: float = 0.3, **given: Any) -> Trace:
    """A random trace with every kind of end, and ratios from about 1/20 to 20."""
    generator = torch.Generator().manual_seed(seed + 1)
    log_ratio = torch.randn(T, B, generator=generator, dtype=torch.float64)
    return on_policy(T, B, seed, ends) | {"log_ratio": log_ratio} | given


@given(
    T=st.integers(1, 33),
    B=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    ends=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.5, 1.0]),
    rho_clip=st.sampled_from([0.3, 1.0, 4.0]),
    c_clip=st.sampled_from([0.3, 1.0, 4.0]),
)
def test_equals_the_double_sum(T, B, seed, ends, gamma, gae_lambda, rho_clip, c_clip):
    """S000-27, S004-7: equals the paper's definition row by row, so nothing crosses rows or ends."""
    clips = {"rho_clip": rho_clip, "c_clip": c_clip}
    given = trace(T, B, seed, ends, gamma=gamma, gae_lambda=gae_lambda, **clips)
    for ours, truth in zip(vtrace(**given), reference.vtrace(**given)):
        torch.testing.assert_close(ours, truth, atol=1e-9, rtol=1e-9)


@given(
    seed=st.integers(0, 10**6),
    ends=st.sampled_from([0.0, 0.2]),
    gae_lambda=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
def test_on_policy_it_is_gae(seed, ends, gae_lambda):
    """S000-27: where pi is mu, advantages and targets are those of GAE, for every lambda."""
    given = trace(17, 3, seed, ends, gae_lambda=gae_lambda)
    given["log_ratio"] = torch.zeros_like(given["reward"])
    same = {name: value for name, value in given.items() if name != "log_ratio"}
    for ours, truth in zip(vtrace(**given), gae(**same)):
        torch.testing.assert_close(ours, truth, atol=1e-9, rtol=1e-9)


def test_on_policy_it_is_the_n_step_return():
    """S000-27: with pi = mu and lambda = 1, vs is the discounted sum of rewards and V at the end."""
    given = trace(9, 2, ends=0.0, gae_lambda=1.0) | {"log_ratio": torch.zeros(9, 2).double()}
    total, expected = given["bootstrap"], []
    for reward in given["reward"].flip(0):
        total = reward + 0.97 * total
        expected.append(total)
    torch.testing.assert_close(vtrace(**given)[1], torch.stack(expected[::-1]))


def test_ratios_far_above_the_clips_count_as_the_clips():
    """S000-27: rho, c -> 1 from above too: huge ratios, even infinite ones, are cut."""
    given = trace(9, 2, seed=3, gae_lambda=1.0)
    one = dict(given, log_ratio=torch.zeros(9, 2).double())
    huge = dict(given, log_ratio=torch.full((9, 2), 1e6).double())
    torch.testing.assert_close(vtrace(**huge), vtrace(**one))


def test_an_action_that_the_policy_never_takes_teaches_nothing():
    given = trace(6, 1, ends=0.0)
    given["log_ratio"][2] = -torch.inf
    advantage, targets = vtrace(**given)
    assert advantage[2] == 0
    assert targets[2] == given["value"][2]
    other = dict(given, reward=given["reward"].clone())
    other["reward"][3:] += 5.0  # what came after it is no news for what came before
    torch.testing.assert_close(vtrace(**other)[1][:3], targets[:3])


@given(T=st.integers(2, 20), B=st.integers(1, 3), seed=st.integers(0, 10**6))
def test_invalid_steps_count_for_nothing(T, B, seed):
    """S000-13: what stands in invalid steps, NaN included, changes nothing; their advantages are 0."""
    given, poisoned = with_invalid_steps(trace(T, B, seed), seed)
    valid = given["valid"]
    expected = reference.vtrace(**given)
    advantage, targets = vtrace(**poisoned)
    torch.testing.assert_close(advantage, expected[0], atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(targets[valid], expected[1][valid], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("cut", [(), (4,), (0, 1, 2), (9,), (3, 9)])
def test_constant_reward_and_exact_value_leave_no_advantage(cut):
    """S000-3, S000-27: with an exact V no truncation is a surprise, whatever the ratios."""
    given = no_surprise(cut)
    log_ratio = torch.randn(10, 2, generator=torch.Generator().manual_seed(0)).double()
    advantage, targets = vtrace(**given, log_ratio=log_ratio)
    torch.testing.assert_close(advantage, torch.zeros_like(advantage), atol=1e-9, rtol=0)
    torch.testing.assert_close(targets, given["value"])


def test_by_hand():
    """S000-27: two steps and a death between two lives, ratios 1/2 and 3."""
    advantage, targets = vtrace(**two_lives(), log_ratio=column(0.5, 3, 0.5, 3).log())
    # vs: 2; 10 + 1/2 (1 + 10 - 10 + 1/2 (2 - 20)); 4 + 25; 30 + 1/2 (3 + 20 - 30 + 1/2 (29 - 40))
    torch.testing.assert_close(targets, column(6, 2, 23.75, 29))
    torch.testing.assert_close(
        advantage, column(0.5 * (1 + 1 - 10), 2 - 20, 0.5 * (3 + 14.5 - 30), 4 + 25 - 40)
    )


def test_a_missing_bootstrap_raises():
    """S000-5, S000-27: V(s_n) never defaults to 0."""
    given = trace(5, 3, ends=0.0, bootstrap=None)
    with pytest.raises(RecollectError, match="vtrace: no bootstrap"):
        vtrace(**given)
    given["truncated"][-1] = True
    assert torch.isfinite(vtrace(**given)[1]).all()


def test_wrong_shapes_are_refused():
    given = trace(5, 3)
    for name in ("log_ratio", "value", "terminated", "truncated", "final_value"):
        with pytest.raises(RecollectError, match="vtrace: shapes"):
            vtrace(**dict(given, **{name: given[name].T}))
