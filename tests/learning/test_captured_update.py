"""What a GPU runs: no number of a rollout or an update is read on the host, and the results are the same.

CPU and GPU agree, shown on the CPU: under ``unread`` everything takes the path of a GPU, and what
would wait for it raises. Policies, tasks and what algorithms share have tests like these in their folders.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym_spaces

from recollect.base import tree
from recollect.errors import DivergedError, EnvError
from recollect.experience.chunks import make_chunks, minibatches
from recollect.experience.returns import gae, vtrace
from recollect.learning import diagnostics
from recollect.learning.refresh_rollout import refresh
from recollect.policy.normalise import Moments, ObservationNorm, PopArt
from tests.support.captured import (
    BURN_IN,
    CHUNK,
    FLOATS,
    B,
    Settled,
    T,
    assert_same,
    draw,
    every_kind,
    make_policy,
    make_rollout,
)

# Sequences -------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("burn_in", [0, BURN_IN])
def test_chunks_are_the_same_to_the_bit(kind, burn_in, unread):
    """S002-14: whatever invalid steps hold, with the padding of the last chunk and with burn-in."""
    rollout = make_rollout(make_policy(), kind)
    data = {"return": rollout.reward * 2}
    want = make_chunks(rollout, CHUNK, data, burn_in)
    which = torch.tensor([3, 0, 7])
    with unread():
        make_chunks(rollout, CHUNK, data, burn_in)
        with Settled():
            got = make_chunks(rollout, CHUNK, data, burn_in)
            some, count = got.take(which), got.valid_steps(which)
            parts = list(minibatches(got.count, 3, torch.Generator().manual_seed(0)))
    assert_same(fields(got), fields(want), rtol=0)
    assert_same(fields(some), fields(want.take(which)), rtol=0)
    assert count == want.valid_steps(which)
    assert sorted(torch.cat(parts).tolist()) == list(range(got.count))
    assert all(torch.isfinite(leaf).all() for leaf in tree.leaves(got.obs))


def fields(chunks: Any) -> dict[str, Any]:
    found = {name: getattr(chunks, name) for name in ("obs", "first", "action", "valid", "data", "state")}
    if chunks.prefix is not None:
        found |= {
            f"prefix/{name}": getattr(chunks.prefix, name) for name in ("obs", "first", "state", "exists")
        }
    return found


# Gauges ----------------------------------------------------------------------------------------------------


@every_kind
def test_gauges_say_the_same(kind, unread):
    """S001-13, S004-13: over valid steps only."""
    policy = make_policy()
    rollout = make_rollout(policy, kind)
    advantage, returns = (torch.randn(2, T, B) * 5 + 100).unbind()
    advantage[~rollout.valid] = returns[~rollout.valid] = torch.nan

    def measured():
        described = diagnostics.describe(rollout, advantage, returns)
        return (
            described
            | diagnostics.state_norms(rollout)
            | {"staleness": diagnostics.staleness(policy, rollout, 3)}
        )

    want = measured()
    with unread():
        measured()
        with Settled():
            got = measured()
    valid = got.pop("valid")
    assert valid == rollout.valid.sum()
    assert_same(got, want, rtol=2e-6 if kind != "one step" else 1e-4)


def test_equal_returns_explain_nothing(unread):
    """S001-13: 0 / 0 is NaN, whatever the rounding of a mean."""
    rollout = make_rollout(make_policy(), "fillers")
    flat = torch.full_like(rollout.reward, 0.1)
    with unread():
        got = diagnostics.describe(rollout, flat, flat)
    assert got["explained_variance"].isnan()
    assert got["return/std"] < 1e-12


def test_a_rollout_without_experience_is_told_when_metrics_are_read(unread):
    """S001-13: nothing is read, so that whoever reads has to look."""
    rollout = make_rollout(make_policy(), "all valid")
    rollout.valid[:] = False
    with unread():
        got = diagnostics.describe(rollout, rollout.reward, rollout.reward)
    with pytest.raises(EnvError, match="without one valid step"):
        diagnostics.check_valid(diagnostics.read(got))
    diagnostics.check_valid({"valid": 1.0})
    diagnostics.check_valid({})


BAD = {
    "nothing": (None, None),
    "reward": (lambda r: r.reward, EnvError),
    "obs": (lambda r: r.obs["eye"], EnvError),
    "final_obs": (lambda r: r.finals.obs["ear"][0], EnvError),
    "value": (lambda r: r.record["value"], DivergedError),
    "final_value": (lambda r: r.final_value, DivergedError),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf, 3e38])
@pytest.mark.parametrize("is_valid", [True, False])
def test_whether_a_rollout_is_finite(what, number, is_valid, unread):
    """S001-28: what is learned from, and nothing else; huge is not infinite."""
    space = gym_spaces.Dict(eye=FLOATS, ear=gym_spaces.Tuple((FLOATS, gym_spaces.Discrete(3))))
    rollout = make_rollout(make_policy(space), "all valid")
    rollout.valid[4, 1] = rollout.valid[-1, 2] = False
    cut = rollout.truncated & ~rollout.terminated
    pick, error = BAD[what]
    if pick is not None:
        leaf = pick(rollout)
        if what == "final_obs":
            leaf[1] = number
        elif what == "final_value":
            leaf[cut if is_valid else ~cut] = number
        else:
            leaf[6 if is_valid else 4, 1] = number
    with unread():
        got = diagnostics.rollout_is_finite(rollout)
    is_bad = error is not None and not np.isfinite(number) and (is_valid or what == "final_obs")
    assert bool(got) is not is_bad
    if is_bad:
        with pytest.raises(error):
            diagnostics.check_finite_rollout(rollout)
    else:
        diagnostics.check_finite_rollout(rollout)


def test_a_bootstrap_counts_only_inside_of_an_episode(unread):
    """S001-28."""
    rollout = make_rollout(make_policy(), "all valid")
    rollout.terminated[-1] = False
    rollout.terminated[-1, 3] = True
    rollout.truncated[-1] = False
    rollout.bootstrap[3] = torch.nan
    rollout.obs[-1, 3] = torch.nan
    with unread():
        good = diagnostics.rollout_is_finite(rollout)
        rollout.bootstrap[1] = torch.nan
        bad = diagnostics.rollout_is_finite(rollout)
    assert good
    assert not bad


# Statistics ------------------------------------------------------------------------------------------------


def test_moments_of_selected_steps(unread):
    """S001-20: count, mean and variance; none at all change nothing; the tensors stay where they are."""
    got, want = Moments((3,)), Moments((3,))
    before = [buffer.data_ptr() for buffer in got.buffers()]
    for share in (0.0, 0.5, 1.0, 0.02, 0.0, 0.7):
        x, valid = torch.randn(T, B, 3) * 4 + 1000, torch.rand(T, B) < share
        x[~valid] = torch.nan
        want.merge(x[valid])
        with unread(), Settled():
            got.merge_where(x, valid)
        assert_same(dict(got.named_buffers()), dict(want.named_buffers()), rtol=1e-12)
    assert [buffer.data_ptr() for buffer in got.buffers()] == before


def test_observations_are_normalised_alike(unread):
    """S001-20: raw before there are statistics, scaled and clipped after it; in one path for a graph."""
    space = gym_spaces.Dict(
        a=FLOATS, b=gym_spaces.Tuple((gym_spaces.Box(-5, 5, (2,), np.int64), gym_spaces.Discrete(4)))
    )
    got, want = ObservationNorm(space), ObservationNorm(space)
    before = [buffer.data_ptr() for buffer in got.buffers()]
    for share in (0.0, 0.6, 1.0):
        obs = tree.map(lambda leaf: leaf * 10, draw(space, (T, B)))
        valid = torch.rand(T, B) < share
        with unread(), Settled():
            scaled = got(obs)
            got.update(obs, valid)
        assert_same(scaled, want(obs))
        want.update(obs, valid)
        assert_same(dict(got.named_buffers()), dict(want.named_buffers()), rtol=1e-12)
    assert [buffer.data_ptr() for buffer in got.buffers()] == before


def test_a_normaliser_that_was_looked_at_still_follows_its_statistics(unread):
    """S001-20: what the CPU found once does not decide for a graph."""
    norm = ObservationNorm(FLOATS)
    obs = torch.randn(T, B, 3) * 3 + 50
    assert norm(obs) is obs
    with unread():
        norm.scalings["obs"].merge_where(obs, torch.ones(T, B, dtype=torch.bool))
        norm.scalings["obs"].publish()
        scaled = norm(obs)
    assert abs(float(scaled.mean())) < 1e-4


def test_popart_by_a_mask(unread):
    """S001-6: the statistics and the head of the selected returns; none at all change nothing."""
    got, want = PopArt(), PopArt()
    head, other = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
    other.load_state_dict(head.state_dict())
    before = [t.data_ptr() for t in (*got.buffers(), *head.parameters())]
    for share in (0.0, 0.5, 1.0, 0.0, 0.02, 0.0):
        returns, valid = torch.randn(T, B) * 7 + 40, torch.rand(T, B) < share
        returns[~valid] = torch.nan
        selected = deepcopy(want).update(returns, deepcopy(other), valid)  # on the CPU: the very same
        expected = want.update(returns[valid], other)
        assert_same(selected, expected, rtol=0)
        with unread(), Settled():
            found = got.update(returns, head, valid)
        assert_same(found, expected, rtol=1e-9)
        assert_same(dict(got.named_buffers()), dict(want.named_buffers()), rtol=1e-12)
        assert_same(dict(head.named_parameters()), dict(other.named_parameters()))
    assert [t.data_ptr() for t in (*got.buffers(), *head.parameters())] == before


# Targets ---------------------------------------------------------------------------------------------------


@every_kind
def test_returns_read_nothing(kind, unread):
    """S000-3: GAE and V-trace."""
    rollout = make_rollout(make_policy(), kind)
    names = ("reward", "terminated", "truncated", "valid", "final_value", "bootstrap")
    given: dict[str, Any] = {name: getattr(rollout, name) for name in names}
    given |= {"value": rollout.record["value"], "gamma": 0.9, "gae_lambda": 0.8}
    log_ratio = torch.randn(T, B) * 0.1
    want = gae(**given), vtrace(log_ratio=log_ratio, **given)
    with unread(), Settled():
        got = gae(**given), vtrace(log_ratio=log_ratio, **given)
    assert_same(got, want, rtol=0)


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_refresh_reads_nothing(is_cut, unread):
    """S004-13, S000-3: values at cuts with the state after them, at whatever steps those are."""
    policy = make_policy()
    rollout = make_rollout(policy, "all valid")
    assert rollout.finals is not None
    assert len(rollout.finals.time.unique()) > 3
    if not is_cut:
        rollout.finals = None
    for parameter in policy.parameters():
        parameter.data += 0.1
    want = refresh(policy, rollout)
    with unread():
        refresh(policy, rollout)
        with Settled():
            got = refresh(policy, rollout)
    names = ("record", "final_value", "bootstrap", "states")
    assert_same({n: getattr(got, n) for n in names}, {n: getattr(want, n) for n in names}, rtol=1e-5)
    assert bool(got.final_value.any()) is is_cut
