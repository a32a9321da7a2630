"""Running statistics: merged exactly, frozen for a rollout and its update, and PopArt."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from recollect.errors import ConfigError
from recollect.policy.normalise import Moments, ObservationNorm, PopArt
from tests.support.helpers import assert_reproduced, keep
from tests.support.ppo_setup import learner


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_merging_batches_is_the_statistics_of_all():
    """S001-20: any split of the samples, empty ones included, gives the mean and variance of all."""
    x = torch.randn(1000, 3) * torch.tensor([1.0, 10.0, 0.1]) + 5
    whole, parts = Moments((3,)), Moments((3,))
    whole.merge(x)
    for part in x.split([1, 499, 0, 17, 483]):
        parts.merge(part)
    for moments in (whole, parts):
        torch.testing.assert_close(moments.mean, x.double().mean(0))
        torch.testing.assert_close(moments.variance, x.double().var(0, correction=0))
        assert moments.count == 1000


def test_far_from_zero_is_no_problem():
    """S001-20: mean 1e6 and spread 1; a sum of squares in float32 has nothing left of it."""
    x = (torch.randn(5000, 1, dtype=torch.float64) + 1e6).float()
    moments = Moments((1,))
    for part in x.split(100):
        moments.merge(part)
    assert float(moments.variance) == pytest.approx(float(x.double().var(correction=0)), rel=1e-6)
    naive = x.square().mean() - x.mean().square()
    assert abs(float(naive) - 1) > 0.5, "the naive way would not have passed"


SPACE = gym.spaces.Dict(
    speed=gym.spaces.Box(-np.inf, np.inf, (2,)),
    image=gym.spaces.Box(0, 255, (8, 8, 3), np.uint8),
    grid=gym.spaces.Box(0, 255, (7, 7, 3), np.uint8),
    kind=gym.spaces.Discrete(3),
    nested=gym.spaces.Tuple([gym.spaces.Box(-1, 1, (1,)), gym.spaces.MultiBinary(2)]),
)


def observations(steps: int, rows: int) -> dict:
    return {
        "speed": torch.randn(steps, rows, 2) * 4 + 3,
        "image": torch.randint(255, (steps, rows, 8, 8, 3), dtype=torch.uint8),
        "grid": torch.randint(11, (steps, rows, 7, 7, 3), dtype=torch.uint8),
        "kind": torch.randint(3, (steps, rows)),
        "nested": (torch.rand(steps, rows, 1), torch.randint(2, (steps, rows, 2), dtype=torch.int8)),
    }


def test_observations_are_normalised_by_leaf():
    """S001-20: float vectors get mean 0 and spread 1 over valid steps; all else passes as it is."""
    norm, obs = ObservationNorm(SPACE), observations(50, 4)
    valid = torch.rand(50, 4) > 0.2
    obs["speed"][~valid] = torch.nan
    norm.update(obs, valid)
    out = norm(obs)
    seen = out["speed"][valid]
    assert seen.mean(0).abs().max() < 1e-5
    torch.testing.assert_close(seen.std(0, correction=0), torch.ones(2), rtol=1e-4, atol=1e-4)
    assert out["image"] is obs["image"]
    assert out["grid"] is obs["grid"], "symbols are names and not amounts"
    assert out["kind"] is obs["kind"]
    assert out["nested"][1] is obs["nested"][1]
    assert abs(float(out["nested"][0][valid].mean())) < 1e-4


def test_one_hots_of_the_last_action_pass_as_they_are():
    """S001-20: a rare action is no louder than the observation; amounts are scaled."""
    one_hots = gym.spaces.Dict(
        last_action=gym.spaces.Box(-1, 1, (27,)), last_reward=gym.spaces.Box(-9, 9, (1,))
    )
    amounts = gym.spaces.Dict(last_action=gym.spaces.Box(-np.inf, np.inf, (2,)))
    assert list(ObservationNorm(one_hots).scalings) == ["obs/last_reward"]
    assert list(ObservationNorm(one_hots, last_action=True).scalings) == [
        "obs/last_action",
        "obs/last_reward",
    ]
    assert list(ObservationNorm(amounts).scalings) == ["obs/last_action"]


def test_observations_are_not_changed_in_place():
    """S001-20, S002-19: the raw observation stays raw, and outliers are clipped."""
    norm, obs = ObservationNorm(SPACE), observations(50, 4)
    norm.update(obs, torch.ones(50, 4, dtype=torch.bool))
    obs["speed"][0, 0, 0] = 1e9
    before = obs["speed"].clone()
    assert norm(obs)["speed"].max() == 10
    assert torch.equal(obs["speed"], before)


def test_snapshot_is_frozen_for_a_rollout_and_its_update():
    """S001-20: statistics move after the update and only then; the master test holds before and after."""
    ppo, actor = learner(policy={"normalise_observations": True})
    norm = ppo.policy.obs_norm
    scales = []
    for _ in range(3):
        rollout = actor.collect()
        before = {name: value.clone() for name, value in norm.state_dict().items()}
        assert_reproduced(ppo.policy, rollout, 7)
        scales.append(norm.scalings["obs"].scale.clone())
        evaluated = []
        original = ppo.policy.evaluate_actions
        ppo.policy.evaluate_actions = lambda *a, original=original, evaluated=evaluated: (
            evaluated.append(norm.scalings["obs"].scale.clone()),
            original(*a),
        )[1]
        ppo.update(rollout)
        ppo.policy.evaluate_actions = original
        assert all(torch.equal(scale, scales[-1]) for scale in evaluated)
        assert not torch.equal(before["scalings.obs.mean"], norm.state_dict()["scalings.obs.mean"])
    assert not torch.equal(scales[0], scales[1])
    assert {"obs_norm.scalings.obs.mean", "obs_norm.scalings.obs.scale"} <= ppo.policy.state_dict().keys()


def popart(decay: float = 0.9) -> tuple[PopArt, nn.Linear, torch.Tensor]:
    return PopArt(decay), nn.Linear(5, 1), torch.randn(64, 5)


def values(norm: PopArt, head: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return norm.denormalise(head(x).squeeze(-1)).detach()


def test_popart_preserves_outputs():
    """S001-6: whatever the returns do, every prediction in real units stays as it was."""
    norm, head, x = popart()
    norm.update(torch.randn(100) * 5 + 20, head)
    for mean, std in ((1e3, 50.0), (-7.0, 1e-3), (0.0, 1e4), (3.0, 0.0)):
        before, weight = values(norm, head, x), head.weight.detach().clone()
        scale, shift = norm.update(torch.randn(100) * std + mean, head)
        torch.testing.assert_close(values(norm, head, x), before, rtol=1e-4, atol=1e-3)
        assert float(scale) == pytest.approx(1)
        assert float(shift) == pytest.approx(0, abs=1e-6 * float(norm.std + norm.mean.abs()))
        assert not torch.equal(head.weight, weight)


def test_popart_first_update_only_sets():
    """S001-6: the first statistics leave the head alone; (scale, shift) turn old values into new."""
    norm, head, x = popart()
    before, weight, bias = values(norm, head, x), head.weight.clone(), head.bias.clone()
    returns = torch.randn(1000) * 30 - 400
    scale, shift = norm.update(returns, head)
    assert torch.equal(head.weight, weight)
    assert torch.equal(head.bias, bias)
    assert float(norm.mean) == pytest.approx(float(returns.mean()), rel=1e-5)
    assert float(norm.std) == pytest.approx(float(returns.std(correction=0)), rel=1e-4)
    after = values(norm, head, x)
    torch.testing.assert_close((before * scale + shift).float(), after, rtol=1e-5, atol=1e-3)
    assert not torch.allclose(before, after, atol=1.0)


def test_popart_statistics_are_decayed_averages():
    """S001-6: mean and mean square are averages over updates, newest weighing most, start corrected."""
    norm, head, _ = popart(0.8)
    batches = [torch.randn(50) * s + m for s, m in ((1, 0), (2, 5), (3, -4))]
    for batch in batches:
        norm.update(batch, head)
    weight = torch.tensor([0.8**2, 0.8, 1.0], dtype=torch.float64)
    weight /= weight.sum()
    mean = sum(w * b.double().mean() for w, b in zip(weight, batches))
    square = sum(w * b.double().square().mean() for w, b in zip(weight, batches))
    torch.testing.assert_close(norm.mean, mean)
    torch.testing.assert_close(norm.std, (square - mean**2).sqrt())


def test_popart_edges():
    """S001-6: no returns change nothing; equal ones keep a floor; a decay of 1 is refused."""
    norm, head, x = popart()
    norm.update(torch.randn(10), head)
    before = values(norm, head, x)
    assert [float(v) for v in norm.update(torch.zeros(0), head)] == [1, 0]
    assert torch.equal(values(norm, head, x), before)
    flat = PopArt()
    flat.update(torch.full((10,), 3.0), head)
    assert float(flat.std) == pytest.approx(1e-4)
    with pytest.raises(ConfigError, match=r"value_decay = 1\.0"):
        PopArt(1.0)


def test_popart_keeps_real_units_in_training():
    """S001-6: updates do not move the values of a fixed policy; statistics are in the state dict."""
    ppo, actor = learner(learning_rate=1e-12, policy={"normalise_observations": False})
    ppo.update(actor.collect())
    rollout = keep(actor.collect())
    ppo.update(rollout)
    again = ppo.policy.unroll(rollout.obs[:-1], rollout.state_at(0), rollout.first[:-1])[1]
    torch.testing.assert_close(again, rollout.record["value"], rtol=1e-4, atol=1e-4)
    assert {"value_norm.mean", "value_norm.std", "value_norm.mean_square", "value_norm.weight"} <= (
        ppo.policy.state_dict().keys()
    )
