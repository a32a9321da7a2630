"""The gauges: numbers by hand, read in one go, and blind to what is no experience."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from recollect.base import tree
from recollect.errors import DivergedError, EnvError
from recollect.learning import diagnostics
from recollect.learning.refresh_rollout import refresh
from recollect.policy.heads import ActionHead
from tests.support.helpers import ArenaWorld, TensorWorld, keep
from tests.support.ppo_setup import learner, nudge


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_read_keeps_names_and_numbers():
    assert diagnostics.read({"a": torch.tensor(1.5), "b": torch.tensor([2]), "c": torch.tensor(True)}) == {
        "a": 1.5,
        "b": 2.0,
        "c": 1.0,
    }


def test_description_by_hand():
    """S001-13: over valid steps only, whatever the others hold."""
    _, actor = learner(ArenaWorld(2))
    rollout = keep(actor.collect())
    valid = rollout.valid
    advantage, returns = torch.randn_like(rollout.reward), torch.randn_like(rollout.reward)
    advantage[~valid] = returns[~valid] = torch.nan
    numbers = diagnostics.read(diagnostics.describe(rollout, advantage, returns))
    value = rollout.record["value"][valid].numpy()
    sample = returns[valid].numpy()
    assert numbers["return/mean"] == pytest.approx(sample.mean(), abs=1e-6)
    assert numbers["return/std"] == pytest.approx(sample.std(), rel=1e-5)
    assert numbers["value/min"] == pytest.approx(value.min())
    assert numbers["advantage/max"] == pytest.approx(float(advantage[valid].max()))
    explained = 1 - np.var(sample - value) / np.var(sample)
    assert numbers["explained_variance"] == pytest.approx(explained, rel=1e-4)
    rollout.valid[:] = False
    with pytest.raises(EnvError, match="without one valid step"):
        diagnostics.describe(rollout, advantage, returns)


def test_explained_variance_of_equal_returns_is_not_a_number():
    """S001-13: 0 / 0 is told as NaN, not as a perfect critic."""
    _, actor = learner()
    rollout = actor.collect()
    flat = torch.ones_like(rollout.reward)
    assert math.isnan(diagnostics.read(diagnostics.describe(rollout, flat, flat))["explained_variance"])


def one_long_episode(steps=21, chunk=7):
    _, actor = learner(TensorWorld(3, lengths=(100,)), rollout=steps, chunk=chunk)
    return keep(actor.collect())


def test_state_norm_and_drift_by_hand():
    """S004-13: the norm over all leaves, and its growth per step between states of one episode."""
    rollout = one_long_episode()
    rollout.first[0] = False  # as if it had begun before the rollout
    for leaf in tree.leaves(rollout.states):
        leaf.zero_()
    for slot, size in enumerate((0.0, 3.0, 10.0)):
        tree.leaves(rollout.states)[0][slot, :, 0, 0] = size * 0.6
        tree.leaves(rollout.states)[1][slot, :, 0, 3] = size * 0.8
    numbers = diagnostics.read(diagnostics.state_norms(rollout))
    assert numbers["state/norm_max"] == pytest.approx(10)
    assert numbers["state/drift"] == pytest.approx((3 / 7 + 7 / 7) / 2)
    assert numbers["state/norm"] == pytest.approx(13 / 3)
    rollout.first[1:20] = True  # an episode a step: no two states are of one
    assert math.isnan(diagnostics.read(diagnostics.state_norms(rollout))["state/drift"])


def test_gauges_ignore_dead_rows():
    """S001-29, S000-13: NaN in the states of dead agents reaches no gauge."""
    ppo, actor = learner(ArenaWorld(4), minibatches=2, chunk=4)
    for _ in range(2):
        rollout = actor.collect()
    assert any(leaf.isnan().any() for leaf in tree.leaves(rollout.states)), "there are dead ones"
    numbers = diagnostics.read(diagnostics.state_norms(rollout))
    assert all(math.isfinite(numbers[name]) for name in ("state/norm", "state/norm_max"))
    assert math.isfinite(float(diagnostics.staleness(ppo.policy, rollout)))


def test_staleness_is_a_ratio():
    """S004-13: 0 for the acting weights, the size of the change in units of the states for others."""
    ppo, actor = learner(TensorWorld(3, lengths=(100,)), rollout=21)
    rollout = keep(actor.collect())
    assert diagnostics.staleness(ppo.policy, rollout) < 1e-6
    with torch.no_grad():
        ppo.policy.core.rnn.bias_ih_l0 += 0.1
    stale = float(diagnostics.staleness(ppo.policy, rollout))
    fresh = refresh(ppo.policy, rollout).states
    gap = torch.cat([(a - b)[1:].flatten() for a, b in zip(fresh, rollout.states)]).norm()
    size = torch.cat([b[1:].flatten() for b in rollout.states]).norm()
    assert stale == pytest.approx(float(gap / size), rel=1e-4)
    assert stale > 0.01


def test_staleness_without_a_second_state_is_zero():
    """S004-13: with chunks of whole rollouts nothing is stale but the start."""
    ppo, actor = learner(recurrent_mode="full", minibatches=2)
    rollout = keep(actor.collect())
    nudge(ppo)
    assert diagnostics.staleness(ppo.policy, rollout) == 0


def numbers(**changed: float) -> dict[str, float]:
    base = {"deviation/log_prob": 0.0, "deviation/value": 0.0, "value/max": 1.0, "value/min": 0.0}
    losses = {"loss/policy": 0.0, "loss/value": 0.0, "entropy": 0.0, "minibatches": 1.0}
    return base | losses | {"grad_norm_max": 1.0} | changed


@pytest.mark.parametrize(
    ("metrics", "is_reproduced"),
    [
        (numbers(), True),
        (numbers(**{"deviation/log_prob": 2e-4}), False),
        (numbers(**{"deviation/value": 2e-4}), False),
        (numbers(**{"deviation/value": 2e-4, "value/max": 10.0}), True),
        (numbers(**{"deviation/value": 2e-4, "value/min": -10.0}), True),
        (numbers(**{"deviation/value": 2e-4, "value_scale": 10.0}), True),
        (numbers(**{"deviation/log_prob": math.nan}), False),
    ],
)
def test_what_is_suspicious(metrics, is_reproduced):
    """S001-28: deviations above the tolerance, those of values in units of their size."""
    found = diagnostics.deviations(metrics, ActionHead.record_spec).values()
    assert all(gap <= 1e-4 for gap in found) == is_reproduced


@pytest.mark.parametrize("norm", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_stops_a_run(norm):
    """S002-13, S001-28: the error names the update."""
    ppo, _ = learner()
    diagnostics.check_gradient(numbers(), ppo.policy.named_parameters(), 3)
    with pytest.raises(DivergedError, match="update 3"):
        diagnostics.check_gradient(numbers(grad_norm_max=norm), ppo.policy.named_parameters(), 3)


def test_huge_but_finite_numbers_pass():
    """S001-28: a sum that overflows is no Inf in the data."""
    _, actor = learner()
    rollout = actor.collect()
    rollout.reward[:] = 3e38
    assert not rollout.reward.sum().isfinite()
    diagnostics.check_finite_rollout(rollout)


def test_counts_in_a_state_are_no_memory():
    """S004-4: how many steps a window holds would outweigh what it holds, and is never stale."""
    ppo, actor = learner(core={"name": "window", "window": 5, "hidden": 8, "heads": 2})
    rollout = keep(actor.collect())
    found = diagnostics.read(diagnostics.state_norms(rollout))
    stale = float(diagnostics.staleness(ppo.policy, rollout))
    rollout.states["count"] += 1000
    assert diagnostics.read(diagnostics.state_norms(rollout)) == pytest.approx(found, nan_ok=True)
    assert float(diagnostics.staleness(ppo.policy, rollout)) < 2 * max(stale, 1e-3)
