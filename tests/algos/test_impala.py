"""IMPALA: its targets, its gradient against one step at a time, what a lag changes, and what it refuses."""

from __future__ import annotations

import functools
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import recollect as rc
from recollect.algos.catalog import make_learner
from recollect.algos.impala import START, loss
from recollect.base import devices, tree
from recollect.config.impala import ImpalaConfig
from recollect.errors import AlignmentError, ConfigError
from recollect.experience.returns import gae
from recollect.experience.rollout import Rollout
from recollect.learning.refresh_rollout import refresh
from tests.learning import test_master
from tests.reference import returns as reference
from tests.support.helpers import ArenaWorld, ScriptedEnv, TensorWorld, as_rows, keep
from tests.support.ppo_setup import doubled, gradients, nudge, same, weights
from tests.support.ppo_setup import learner as any_learner
from tests.support.resumed import SMALL, assert_equal, rows, twice
from tests.support.resumed import weights as agent_weights

learner = functools.partial(any_learner, algo="impala")
CORES = ["gru", rc.LSTMConfig(hidden=12), "none"]


def prepared(impala: Any, rollout: Rollout, lag: int = 0) -> tuple[Any, dict[str, Tensor]]:
    """The chunks of a rollout with their targets, and its metrics."""
    rollout, data, metrics = impala.targets(rollout, lag)
    return impala.sequences(rollout, data).whole(), metrics


# On-policy ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", test_master.CASES, ids=test_master.name)
def test_what_is_recomputed_is_what_was_recorded(case):
    """S000-7, S000-27: log-probs, values and states of the replay, every head, core and kind of end."""
    env, squash = test_master.scripted(case["head"], case["world"])
    network = {"normalise_value": case["value"], "normalise_observations": case["seen"], "squash": squash}
    settings = {"chunk": case["chunk"], "tolerance": 1e-5, "learning_rate": 0.01, "minibatches": 2}
    impala, actor = learner(env, test_master.CORES[case["core"]], policy=network, **settings)
    for _ in range(2):
        rollout = actor.collect()
        fresh, valid = refresh(impala.policy, rollout), rollout.valid
        for name in ("log_prob", "value"):
            ours, truth = fresh.record[name][valid], rollout.record[name][valid]
            torch.testing.assert_close(ours, truth, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(fresh.bootstrap, rollout.bootstrap, atol=1e-5, rtol=1e-5, equal_nan=True)
        metrics = impala.update(rollout)
        assert metrics["deviation/log_prob"] < 1e-5
        assert metrics["rho/mean"] == pytest.approx(1.0, abs=1e-4)
        assert (metrics["rho/clipped"], metrics["c/clipped"]) == (0, 0)


@pytest.mark.parametrize("world", [TensorWorld, ArenaWorld])
def test_without_a_lag_the_targets_are_those_of_gae(world):
    """S000-27: pi = mu, so V-trace is GAE, with carried state and the right flags."""
    impala, actor = learner(world(3), policy={"normalise_value": False})
    actor.collect()
    rollout = actor.collect()  # starts inside episodes
    _, data, _ = impala.targets(rollout, 0)
    flags = {name: getattr(rollout, name) for name in ("reward", "terminated", "truncated", "valid")}
    values = {"value": rollout.record["value"], "final_value": rollout.final_value}
    truth = gae(**flags, **values, bootstrap=rollout.bootstrap, gamma=0.99, gae_lambda=0.95)
    for name, expected in zip(("advantage", "return"), truth):
        ours = data[name][rollout.valid]
        torch.testing.assert_close(ours, expected[rollout.valid], atol=1e-4, rtol=1e-4)


def test_advantages_are_in_units_of_the_returns():
    """S000-28: rewards a hundred times as large give the same gradient, but for the first statistics."""
    found = []
    for scale in (1.0, 100.0):
        impala, actor = learner(reward_scale=scale)
        rollout = actor.collect()
        _, data, metrics = impala.targets(rollout, 0)
        spread = metrics["advantage/std"] / metrics["value_scale"]
        valid = data["advantage"][rollout.valid]
        torch.testing.assert_close(valid.std(correction=0).double(), spread.double(), atol=1e-5, rtol=1e-5)
        found.append(float(spread))
    assert found[0] == pytest.approx(found[1], rel=0.2)


def test_dead_rows_and_fillers_teach_nothing():
    """S000-13: NaN in what is no experience changes neither weights nor metrics."""
    found = []
    for poison in (0.0, float("nan")):
        env = as_rows([ScriptedEnv] * 3, "next_step")
        impala, actor = learner(env, clip=0.2, epochs=2)
        rollout = keep(actor.collect())
        assert not rollout.valid.all()
        for leaf in (rollout.reward, rollout.record["value"], rollout.record["log_prob"]):
            leaf[~rollout.valid] = poison
        found.append((impala.update(rollout, lag=1), weights(impala)))
    assert found[0][0] == pytest.approx(found[1][0], nan_ok=True)
    assert same(found[0][1], found[1][1])


# The gradient ---------------------------------------------------------------------------------------------


def one_by_one(impala: Any, rollout: Rollout) -> Tensor:
    """The loss from the paper, in loops: a step, a row at a time; memory cut where chunks start."""
    policy, config = impala.policy, impala.config
    T, B = rollout.steps, rollout.rows
    log_probs, values, entropies = [], [], []
    finals = torch.zeros(T, B, dtype=torch.float64)
    state = rollout.state_at(0)
    for t in range(T):
        if t % config.chunk_length == 0:
            state = tree.map(lambda leaf: leaf.detach(), state)
        dist, value, state = policy.step(rollout.obs[t], state, rollout.first[t])
        log_probs.append(dist.log_prob(tree.index(rollout.action, t)))
        values.append(value)
        entropies.append(dist.entropy())
        for time, row, seen in zip(rollout.finals.time, rollout.finals.row, rollout.finals.obs):
            if time == t:
                own = tree.map(lambda leaf, row=row: leaf[row : row + 1], state)
                finals[t, row] = policy.value(seen[None], own, torch.tensor([False]))[0]
    last = policy.value(rollout.obs[T], state, rollout.first[T])
    log_prob, value, entropy = map(torch.stack, (log_probs, values, entropies))
    flags = {name: getattr(rollout, name) for name in ("reward", "terminated", "truncated", "valid")}
    advantage, target = reference.vtrace(
        log_ratio=(log_prob - rollout.record["log_prob"]).detach(),
        value=value.detach(),
        final_value=finals,
        bootstrap=last,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        rho_clip=config.rho_clip,
        c_clip=config.c_clip,
        **flags,
    )
    total = torch.zeros((), dtype=torch.float64)
    for t in range(T):
        for b in range(B):
            if rollout.valid[t, b]:
                total = total - advantage[t, b] * log_prob[t, b]
                total = total + 0.5 * config.value_coef * (value[t, b] - target[t, b]) ** 2
                total = total - config.entropy * entropy[t, b]
    return total / rollout.valid.sum()


@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"recurrent_mode": "full"},
        {"gae_lambda": 1.0, "gamma": 0.9, "rho_clip": 1.2, "c_clip": 0.5},
        {"recompute_activations": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("core", CORES, ids=str)
def test_the_gradient_is_the_papers(core, settings, clip):
    """S000-27: of a rollout that lags, against loops over steps and rows, in float64.

    With PPO's clip, too: at the first step of an update the two have the same gradient.
    """
    impala, actor = learner(
        core=core, policy={"normalise_value": False}, minibatches=1, clip=clip, **settings
    )
    actor.collect()
    rollout = doubled(impala, keep(actor.collect()))
    nudge(impala)
    parameters = [p for p in impala.policy.parameters() if p.requires_grad]
    expected = torch.autograd.grad(one_by_one(impala, rollout), parameters, allow_unused=True)
    batch, metrics = prepared(impala, rollout, lag=1)
    assert metrics["c/clipped"] > 0
    total, _ = loss(impala.policy, batch, impala.config, impala.config.entropy, batch.valid.sum())
    total.backward()
    for parameter, truth in zip(parameters, expected):
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        truth = torch.zeros_like(parameter) if truth is None else truth
        torch.testing.assert_close(grad, truth, atol=1e-9, rtol=1e-6)


def test_parts_of_a_minibatch_add_up():
    """S001-3, S002-22: accumulated gradients are those of the whole."""
    found = []
    for accumulate in (1, 3):
        impala, actor = learner(minibatches=1, accumulate=accumulate, clip=0.2)
        rollout = doubled(impala, keep(actor.collect()))
        nudge(impala)
        rollout, data, _ = impala.targets(rollout, 1)
        sequences = impala.sequences(rollout, data)
        impala.backward(sequences, torch.arange(sequences.count), 0.01)
        found.append(gradients(impala))
    for name, grad in found[0].items():
        torch.testing.assert_close(found[1][name], grad, atol=1e-12, rtol=1e-9)


def test_the_clip_stops_an_update():
    """S000-26: beyond it a ratio has no gradient; without one there is no such number."""
    impala, actor = learner(clip=0.1)
    batch, _ = prepared(impala, actor.collect())
    nudge(impala)
    _, stats = loss(impala.policy, batch, impala.config, 0.0, batch.valid.sum())
    assert stats["clip_fraction"] > 0.1
    far = replace(batch, data=batch.data | {START: batch.data[START] - 10 * batch.data["advantage"].sign()})
    total, stats = loss(impala.policy, far, replace(impala.config, value_coef=0.0), 0.0, batch.valid.sum())
    assert stats["clip_fraction"] > 0.99
    total.backward()
    assert all(not grad.any() for grad in gradients(impala).values())
    _, stats = loss(impala.policy, batch, ImpalaConfig(), 0.0, batch.valid.sum())
    assert "clip_fraction" not in stats


# Lag ------------------------------------------------------------------------------------------------------


def test_a_rollout_that_lags_starts_its_chunks_from_the_states_of_now():
    """S000-27, S004-13: pi in the loss is the pi that V-trace has seen; mu stays as recorded."""
    impala, actor = learner(clip=0.2)
    rollout = keep(actor.collect())
    nudge(impala)
    batch, metrics = prepared(impala, rollout, lag=2)
    log_prob, _, _ = impala.policy.evaluate_actions(batch.obs, batch.action, batch.state, batch.first)
    torch.testing.assert_close(log_prob[batch.valid], batch.data[START][batch.valid], atol=1e-5, rtol=1e-5)
    stale, _ = prepared(impala, rollout, lag=0)
    log_prob, _, _ = impala.policy.evaluate_actions(stale.obs, stale.action, stale.state, stale.first)
    assert (log_prob - stale.data[START])[stale.valid].abs().max() > 1e-3
    assert torch.equal(batch.data["log_prob"], stale.data["log_prob"])
    assert 0 < metrics["rho/mean"] < 1
    assert 0 < metrics["rho/clipped"] < 1


@pytest.mark.parametrize("is_unread", [False, True])
def test_ratios_are_reported_by_hand(is_unread, monkeypatch):
    """The mean of what V-trace weighs with, and the shares that are clipped, over valid steps."""
    impala, actor = learner(ArenaWorld(3), rho_clip=1.2, c_clip=0.9)
    rollout = keep(actor.collect())
    nudge(impala, 0.3)
    fresh, found = refresh(impala.policy, rollout), []
    for now, then, valid in zip(fresh.record["log_prob"], rollout.record["log_prob"], rollout.valid):
        found += (now - then).exp()[valid].tolist()
    monkeypatch.setattr(devices, "synchronises", lambda where: is_unread)
    metrics = impala.targets(rollout, 1).metrics
    assert len(found) < rollout.valid.numel()
    assert float(metrics["rho/mean"]) == pytest.approx(sum(min(r, 1.2) for r in found) / len(found))
    for name, clip in (("rho/clipped", 1.2), ("c/clipped", 0.9)):
        assert float(metrics[name]) == pytest.approx(sum(r > clip for r in found) / len(found))
        assert 0 < metrics[name] < 1


@pytest.mark.parametrize("algo", ["ppo", "impala"])
@pytest.mark.parametrize("settings", [{}, {"recurrent_mode": "burn_in", "burn_in_steps": 3}], ids=str)
def test_only_the_weights_that_acted_can_check_a_rollout_that_lags(algo, settings):
    """S000-24: no deviation is reported or feared; a copy of the weights that acted finds what is wrong."""
    ours, actor = any_learner(algo=algo, **settings)
    rollout, acted = keep(actor.collect()), deepcopy(ours.policy)
    nudge(ours)
    with pytest.raises(AlignmentError):
        ours.deviation_check.check_late(rollout, ours.policy, 0)
    assert max(ours.deviation_check.check_late(rollout, acted, 0).values()) < 1e-5
    metrics = ours.update(rollout, lag=1)
    assert not any(name.startswith("deviation/") for name in metrics)
    assert all(torch.isfinite(torch.tensor(metrics[name])) for name in ("loss/policy", "kl", "grad_norm"))
    with pytest.raises(AlignmentError):
        ours.update(rollout, lag=0)


def test_targets_are_made_anew_between_epochs():
    """S001-17: with ``recompute_advantages`` V-trace sees the weights of every epoch."""
    impala, actor = learner(recompute_advantages=True, refresh_states=True)
    rollout = keep(actor.collect())
    _, data, _ = impala.targets(rollout, 0)
    nudge(impala)
    fresh = refresh(impala.policy, rollout)
    _, again = impala.refresh(rollout, data)
    assert torch.equal(again[START], fresh.record["log_prob"])
    assert (again["advantage"] - data["advantage"]).abs().max() > 0.1
    assert torch.isfinite(torch.tensor(list(impala.update(rollout, lag=1).values()))).any()


# Runs -----------------------------------------------------------------------------------------------------


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path):
    """S002-7: nothing of IMPALA is forgotten by a checkpoint."""
    settings = {"algo": "impala", "clip": 0.2, "epochs": 2, "core": rc.GRUConfig(hidden=8)}
    whole, halves = twice(tmp_path, "t-maze", SMALL | settings)
    assert_equal(agent_weights(whole), agent_weights(halves))
    assert rows(tmp_path / "whole") == rows(tmp_path / "halves")
    assert isinstance(rc.load(tmp_path / "halves").config.algo, ImpalaConfig)


@pytest.mark.parametrize(
    "settings", [{}, {"clip": 0.2, "epochs": 2}, {"rho_clip": 0.5, "c_clip": 0.3}], ids=str
)
def test_verify_passes_with_impala(settings):
    """S004-19: the checks of ``recollect verify`` hold for V-trace and its loss."""
    small = {"rollout": 16, "chunk": 8, "num_envs": 4, "core": rc.LSTMConfig(hidden=8), "threads": 1}
    result = rc.verify("t-maze", algo="impala", preset=False, **small | settings)
    assert result.ok, str(result)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rho_clip": 0.0}, "rho_clip = 0.0: it must be above 0"),
        ({"c_clip": -1.0}, "c_clip = -1.0: it must be above 0"),
        ({"clip": 0.0}, "clip = 0.0: it must be above 0"),
        ({"c_clip": 2.0}, r"c_clip = 2.0 is above rho_clip = 1.0"),
        ({"gae_lambda": 1.5}, r"gae_lambda = 1\.5: .*\[0, 1\]"),
        ({"rollout": 0}, "rollout = 0"),
        ({"rho_clip": "much"}, "rho_clip = 'much': it needs a number"),
    ],
)
def test_what_is_refused(settings, words):
    """S000-26."""
    with pytest.raises(ConfigError, match=words):
        ImpalaConfig(**settings)


def test_the_learner_of_a_config():
    impala, _ = learner()
    again = make_learner(impala.policy, impala.config)
    assert type(again) is type(impala)
