"""Activations computed a second time in place of kept: the same gradient, in less memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from recollect.algos.ppo import loss
from recollect.base import row_threads, tree
from recollect.cores import GRUConfig, LSTMConfig
from recollect.experience.chunks import Chunks
from recollect.learning import recompute_activations
from recollect.learning.learner import Learner
from tests.learning.test_accumulation import double
from tests.support.core_cases import CASES
from tests.support.helpers import ArenaWorld, ScriptedEnv, TensorWorld, as_rows, keep
from tests.support.peak import Peak
from tests.support.ppo_setup import gradients, learner, nudge
from tests.support.resumed import SMALL, assert_equal, rows, twice
from tests.support.resumed import weights as agent_weights


def prepared(
    env: Any, core: Any, dtype: torch.dtype = torch.float64, **settings: Any
) -> tuple[Learner, Chunks]:
    """A learner whose weights have moved, and the chunks of its second rollout."""
    ppo, actor = learner(env, core, minibatches=1, **settings)
    actor.collect()
    rollout = keep(actor.collect())
    if dtype == torch.float64:
        double(ppo, rollout)
    nudge(ppo)
    _, data, _ = ppo.targets(rollout)
    return ppo, ppo.sequences(rollout, data).whole()


def gradient(ppo: Learner, batch: Chunks, recomputed: bool) -> tuple[Tensor, dict[str, Tensor]]:
    ppo.optimizer.zero_grad()
    config = replace(ppo.config, recompute_activations=recomputed)
    total, _ = loss(ppo.policy, batch, config, 0.1, batch.valid.sum())
    total.backward()
    return total.detach(), {name: grad.clone() for name, grad in gradients(ppo).items()}


def assert_same(one: tuple, other: tuple, tolerance: float) -> None:
    torch.testing.assert_close(one[0], other[0], rtol=tolerance, atol=tolerance)
    for name, grad in one[1].items():
        scale = max(1.0, float(grad.abs().max()))
        torch.testing.assert_close(other[1][name], grad, rtol=0, atol=tolerance * scale, msg=name)


@pytest.mark.parametrize("core", CASES)
def test_every_core_has_the_same_gradient(core):
    """S001-23: to 1e-12 in float64, with resets inside the pieces and a state before them."""
    ppo, batch = prepared(TensorWorld(3), CASES[core], chunk=12)
    assert recompute_activations.segments(12) == 3
    plain = gradient(ppo, batch, False)
    assert_same(plain, gradient(ppo, batch, True), 1e-12)
    assert max(float(grad.abs().max()) for grad in plain[1].values()) > 1e-3


WORLDS = {
    "arena": lambda: ArenaWorld(3),
    "masks": lambda: as_rows([lambda: ScriptedEnv(masked=True)] * 3, "next_step"),
}


@pytest.mark.parametrize("settings", [{}, {"batching": "episodes"}, {"accumulate": 2}], ids=str)
@pytest.mark.parametrize("world", WORLDS)
def test_with_invalid_steps_and_masks(world, settings):
    """S001-23: dead agents, fillers and dict observations, in chunks and in packed episodes."""
    ppo, batch = prepared(WORLDS[world](), LSTMConfig(hidden=8), **settings)
    assert not batch.valid.all()
    assert_same(gradient(ppo, batch, False), gradient(ppo, batch, True), 1e-12)


@pytest.mark.parametrize("core", ["lstm", "gru-learned"])
def test_with_rows_side_by_side(core, monkeypatch):
    """S001-23: two threads give the same gradient, and make no graph before the gradient is due."""
    ppo, batch = prepared(TensorWorld(48), CASES[core], chunk=23)
    plain = gradient(ppo, batch, False)
    made = []
    apply = row_threads._SideBySide.apply
    monkeypatch.setattr(row_threads._SideBySide, "apply", lambda *given: (made.append(1), apply(*given))[1])
    monkeypatch.setattr(row_threads, "MIN_STEPS", 32)
    with row_threads.threads(2):
        assert_same(plain, gradient(ppo, batch, True), 1e-12)
        assert len(made) == recompute_activations.segments(23), "once a piece, in the backward pass"
        made.clear()
        config = replace(ppo.config, recompute_activations=True)
        total, _ = loss(ppo.policy, batch, config, 0.1, batch.valid.sum())
        assert made == []
        assert total.requires_grad


def test_the_inputs_get_their_gradients():
    """S001-23: observations and the state before the chunk, and the features that heads see."""
    ppo, batch = prepared(TensorWorld(3), GRUConfig(hidden=8))
    found = []
    for again in (False, True):
        obs = batch.obs.clone().requires_grad_()
        state = batch.state.clone().requires_grad_()
        features: list[Tensor] = []
        given = replace(batch, obs=obs, state=state)
        log_prob, entropy, value = recompute_activations.evaluate(ppo.policy, given, again, features)
        total = log_prob.sum() + entropy.square().sum() + value.sin().sum() + features[0].square().sum()
        found.append((total.detach(), dict(zip("os", torch.autograd.grad(total, (obs, state))))))
        assert features[0].shape == (*batch.first.shape, 8)
    assert_same(*found, 1e-12)
    assert tree.leaves(found[0][1])[1].abs().max() > 1e-3


@pytest.mark.parametrize("core", [LSTMConfig(hidden=32), GRUConfig(hidden=32)], ids=["lstm", "gru"])
def test_it_takes_less_memory(core):
    """S001-23: the largest amount of memory alive at once, and what waits for the backward pass."""
    peaks, waiting = {}, {}
    for recomputed in (False, True):
        ppo, batch = prepared(TensorWorld(32), core, torch.float32, chunk=64, rollout=64)
        config = replace(ppo.config, recompute_activations=recomputed)
        with Peak() as peak:
            total, _ = loss(ppo.policy, batch, config, 0.1, batch.valid.sum())
            waiting[recomputed] = peak.live
            total.backward()
        peaks[recomputed] = peak.most
    assert waiting[True] < 0.25 * waiting[False]
    assert peaks[True] < 0.5 * peaks[False]


def test_an_update_reports_it():
    """S001-23, S000-26: the learner agrees with the actor, and the metrics say into how many pieces."""
    ppo, actor = learner(recompute_activations=True, minibatches=1, learning_rate=1e-2)
    for _ in range(3):
        metrics = ppo.update(actor.collect())
        assert metrics["deviation/log_prob"] <= 1e-5
        assert metrics["deviation/value"] <= 1e-5 * max(1, metrics["value_scale"])
        assert metrics["recomputed"] == 3  # of 7 steps
    plain, actor = learner()
    assert "recomputed" not in plain.update(actor.collect())


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path):
    """S002-7: with it, and with parts and pulled weights beside it."""
    settings = {"recompute_activations": True, "accumulate": 2, "l2_init": 1e-3, "weight_clip": 2.0}
    small = {"core": LSTMConfig(hidden=8), "epochs": 2, "minibatches": 2}
    whole, halves = twice(tmp_path, "delayed-cue", SMALL | small | settings)
    assert_equal(agent_weights(whole), agent_weights(halves))
    assert rows(tmp_path / "whole") == rows(tmp_path / "halves")
