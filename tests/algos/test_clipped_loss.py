"""The clips of PPO and IMPALA against formulas in float64: ratio, value, reward and KL, on both sides."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from recollect.algos import impala, ppo
from recollect.base import devices
from recollect.experience.chunks import Chunks
from tests.reference import ppo as reference
from tests.reference import returns
from tests.support.helpers import keep
from tests.support.ppo_setup import doubled, learner, nudge, same, weights

LOSSES: dict[str, ModuleType] = {"ppo": ppo, "impala": impala}


def moved(algo: str, **settings: Any) -> tuple[Any, Chunks]:
    """A learner whose weights moved on before its rollout was prepared and after it, and its chunks.

    Their advantages and old values are noise, so that every case of every clip is met, and ratios in the
    padding overflow.
    """
    ours, actor = learner(algo=algo, clip=0.2, entropy=0.1, **settings)
    rollout = doubled(ours, keep(actor.collect()))
    nudge(ours, 0.05)
    rollout, data, _ = ours.targets(rollout, 1)
    nudge(ours, 0.2)
    noise = torch.randn(2, *rollout.valid.shape, generator=torch.Generator().manual_seed(0)).double()
    value = data["value"] + noise[1] * ours.policy.value_scale
    batch = ours.sequences(rollout, data | {"advantage": noise[0], "value": value}).whole()
    for name in batch.data.keys() & {"log_prob", impala.START}:
        batch.data[name][~batch.valid] = -1e4
    return ours, batch


def assert_both_sides(x: torch.Tensor, limit: float, towards: torch.Tensor) -> None:
    """Some of ``x`` are above the limit and some below minus it, each with ``towards`` of both signs."""
    for beyond, side in itertools.product((x > limit, x < -limit), (towards > 0, towards < 0)):
        assert (beyond & side).sum() >= 2


@pytest.mark.parametrize("algo", LOSSES)
def test_the_clipped_loss_is_the_papers(algo: str):
    """S000-29, S001-18: loss, its parts, clip fraction, KL and the gradient of every weight.

    Ratios lie on both sides of the clip with advantages of both signs, and so do values.
    """
    ours, batch = moved(algo, **({"value_clip": 0.1} if algo == "ppo" else {}))
    policy, config, data, valid = ours.policy, ours.config, batch.data, batch.valid
    log_prob, entropy, value = policy.evaluate_actions(batch.obs, batch.action, batch.state, batch.first)
    before = data["log_prob" if algo == "ppo" else impala.START]
    scale = float(policy.value_scale)
    assert_both_sides((log_prob - before).exp()[valid] - 1, config.clip, data["advantage"][valid])
    if algo == "ppo":
        change = (value - data["value"])[valid] / scale
        assert_both_sides(change, config.value_clip, (value - data["return"])[valid])
    truth = reference.loss(
        log_prob=log_prob,
        entropy=entropy,
        value=value,
        valid=valid,
        before=before,
        acted=data["log_prob"],
        advantage=data["advantage"],
        old_value=data["value"],
        target=data["return"],
        scale=scale,
        config=config,
    )
    parameters = list(policy.parameters())
    expected = torch.autograd.grad(truth["total"], parameters)
    total, stats = LOSSES[algo].loss(policy, batch, config, config.entropy, valid.sum())
    for name, part in (stats | {"total": total}).items():
        if name in truth:
            torch.testing.assert_close(part.double(), truth[name], atol=1e-9, rtol=1e-9, msg=name)
    assert stats.keys() >= truth.keys() - {"total"}
    for grad, true in zip(torch.autograd.grad(total, parameters), expected):
        torch.testing.assert_close(grad, true, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("algo", LOSSES)
def test_rewards_are_scaled_and_then_clipped_on_both_sides(algo: str):
    """S000-26: targets are those of the reference with max(-clip, min(clip, scale r))."""
    settings = {"reward_scale": 2.0, "reward_clip": 1.5, "normalise_advantages": False}
    ours, actor = learner(algo=algo, policy={"normalise_value": False}, **settings)
    rollout = doubled(ours, keep(actor.collect()))
    generator = torch.Generator().manual_seed(0)
    reward = torch.randn(rollout.reward.shape, generator=generator, dtype=torch.float64)
    assert (2 * reward > 1.5).any()
    assert (2 * reward < -1.5).any()
    _, data, _ = ours.targets(replace(rollout, reward=reward), 0)
    clipped = [[max(-1.5, min(1.5, 2 * r)) for r in row] for row in reward.tolist()]
    advantage, target = returns.gae(
        reward=torch.tensor(clipped, dtype=torch.float64),
        value=rollout.record["value"],
        bootstrap=rollout.bootstrap,
        **{name: getattr(rollout, name) for name in ("terminated", "truncated", "final_value", "valid")},
        gamma=ours.config.gamma,
        gae_lambda=ours.config.gae_lambda,
    )
    # What IMPALA replays in float64 was recorded in float32.
    within = {"atol": 1e-9, "rtol": 1e-9} if algo == "ppo" else {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(data["advantage"], advantage, **within)
    torch.testing.assert_close(data["return"], target, **within)


@pytest.mark.parametrize("is_unread", [False, True])
def test_the_kl_ends_the_whole_update(is_unread: bool):
    """S001-18: one minibatch above the target, and neither it nor any later one of any epoch is learned from.

    Also on the path of a GPU, where the host finds out only when the update is over.
    """

    def learned(epochs: int, target_kl: float | None) -> tuple[dict[str, float], Any]:
        ours, actor = learner(minibatches=3, epochs=epochs, learning_rate=0.01, target_kl=target_kl)
        backward, calls = ours.backward, []

        def counted(*given: Any) -> dict[str, torch.Tensor]:
            calls.append(1)  # the fourth opens the second epoch
            stats = backward(*given)
            return stats | {"kl": torch.full_like(stats["kl"], float(len(calls) == 4))}

        ours.backward = counted
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(devices, "waits", lambda where: is_unread)
            return ours.update(actor.collect()), weights(ours)

    metrics, stopped = learned(3, target_kl=0.5)
    _, once = learned(1, target_kl=None)
    _, never = learned(3, target_kl=None)
    assert not same(once, never)
    assert same(stopped, once), "learned after the KL was above its target"
    assert (metrics["minibatches"], metrics["kl_last"]) == (3, 1)
