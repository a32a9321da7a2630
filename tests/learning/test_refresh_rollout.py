"""Values, states and advantages under changed weights equal a replay from scratch, step by step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from recollect.algos.catalog import make_learner
from recollect.base import devices, tree
from recollect.config.ppo import PPOConfig
from recollect.cores import GRUConfig, LSTMConfig
from recollect.experience.chunks import make_chunks
from recollect.experience.rollout import Rollout
from recollect.learning import diagnostics
from recollect.learning.learner import Learner
from recollect.learning.refresh_rollout import refresh
from tests.reference import returns as reference
from tests.support.helpers import ArenaWorld, TensorWorld, all_pairs, keep, make_actor, make_policy, uncut
from tests.support.ppo_setup import epochs, learner

T = 23
CORES = [LSTMConfig(16), GRUConfig(16, learned_initial_state=True), LSTMConfig(16, layers=2), "none"]


def replay(policy, rollout: Rollout) -> dict:
    """One step after the other, with nothing but ``Policy.unroll`` of single steps and ``Policy.value``."""
    state = tree.clone(rollout.state_at(0))
    log_probs, values, states = [], [], []
    final_value = torch.zeros(rollout.steps, rollout.rows)
    cuts = (
        [] if rollout.finals is None else list(zip(rollout.finals.time.tolist(), rollout.finals.row.tolist()))
    )
    for t in range(rollout.steps):
        if t in rollout.state_steps:
            states.append(state)
        with torch.no_grad():
            dist, value, state = policy.unroll(rollout.obs[t : t + 1], state, rollout.first[t : t + 1])
        log_probs.append(dist.log_prob(rollout.action[t : t + 1])[0])
        values.append(value[0])
        for i, (time, row) in enumerate(cuts):
            if time == t:
                rows = slice(row, row + 1)
                inside = torch.zeros(1, dtype=torch.bool)
                seen = rollout.finals.obs[i : i + 1]
                final_value[t, row] = policy.value(seen, tree.index(state, rows), inside)[0]
    bootstrap = policy.value(rollout.obs[-1], state, rollout.first[-1])
    return {
        "record": {"log_prob": torch.stack(log_probs), "value": torch.stack(values)},
        "final_value": final_value,
        "bootstrap": bootstrap,
        "states": tree.stack(states),
    }


def shake(policy) -> None:
    """Other weights."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)


def close(a, b) -> None:
    for x, y in zip(tree.leaves(a), tree.leaves(b)):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-5, equal_nan=True)


def assert_equal(a, b) -> None:
    for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True):
        torch.testing.assert_close(x, y, atol=0, rtol=0, equal_nan=True)


def is_close(a, b) -> bool:
    return all(
        torch.allclose(x, y, atol=1e-3, equal_nan=True) for x, y in zip(tree.leaves(a), tree.leaves(b))
    )


def estimated(ours: Learner, rollout: Rollout, made: dict) -> dict:
    """Advantages and returns by the slow sums, as the config wants them, given what some weights say."""
    config = ours.config
    made = made | {name: getattr(rollout, name) for name in ("reward", "terminated", "truncated", "valid")}
    made |= {"gamma": config.gamma, "gae_lambda": config.gae_lambda}
    record = made.pop("record")
    log_prob, made["value"] = record["log_prob"], record["value"]
    if isinstance(config, PPOConfig):
        advantage, returns = reference.gae(**made)
    else:
        clips = {"rho_clip": config.rho_clip, "c_clip": config.c_clip}
        log_ratio = log_prob - rollout.record["log_prob"]
        advantage, returns = reference.vtrace(log_ratio=log_ratio, **made, **clips)
        advantage = advantage / ours.policy.value_scale
    if config.normalise_advantages:
        counted = advantage[rollout.valid]
        advantage = (advantage - counted.mean()) / counted.std(correction=0)
    return {"advantage": advantage, "return": returns}


@pytest.mark.parametrize("core", CORES, ids=str)
@pytest.mark.parametrize("world", [TensorWorld, ArenaWorld])
def test_refresh_equals_a_replay_from_scratch(core, world):
    """S004-13, S001-17: values, final values, bootstrap and chunk states, with cuts, deaths and dead rows."""
    env = world(3)
    policy = make_policy(env, core)
    actor = make_actor(env, policy, rollout=T, chunk=7, burn_in=2)
    actor.collect()
    rollout = actor.collect()  # starts inside episodes
    fresh = refresh(policy, rollout)
    close(
        (fresh.record["value"][rollout.valid], fresh.final_value, fresh.bootstrap, fresh.states),
        (rollout.record["value"][rollout.valid], rollout.final_value, rollout.bootstrap, rollout.states),
    )
    shake(policy)
    expected, fresh = replay(policy, rollout), refresh(policy, rollout)
    for name, truth in expected.items():
        close(getattr(fresh, name), truth)
    assert (fresh.record["value"] - rollout.record["value"])[rollout.valid].abs().max() > 0.05
    cut = rollout.truncated & ~rollout.terminated
    assert (fresh.final_value - rollout.final_value)[cut].abs().max() > 0.05


@pytest.mark.parametrize("world", [TensorWorld, ArenaWorld])
def test_recomputed_advantages_equal_gae_from_scratch(world):
    """S001-17: values *and* bootstrap *and* final values of one network go into the new advantages."""
    env = world(3)
    policy = make_policy(env, CORES[0])
    config = PPOConfig(rollout=T, chunk=7, recompute_advantages=True, normalise_advantages=False)
    ours = make_learner(policy, config)
    actor = make_actor(env, policy, rollout=T, chunk=7)
    actor.collect()
    rollout = actor.collect()
    _, data, _ = ours.targets(rollout)
    shake(policy)
    _, again = ours.refresh(rollout, data)
    truth = replay(policy, rollout)
    del truth["states"]
    for name, wanted in estimated(ours, rollout, truth).items():
        close(again[name][rollout.valid].double(), wanted[rollout.valid])
    assert (again["advantage"] - data["advantage"]).abs().max() > 0.1


def test_refreshed_states_are_used():
    """S004-13: with ``refresh_states`` later epochs start their chunks from the states of the new weights."""
    env = TensorWorld(3)
    policy = make_policy(env, CORES[0])
    learner = make_learner(policy, PPOConfig(rollout=T, chunk=7, refresh_states=True))
    rollout = make_actor(env, policy, rollout=T, chunk=7).collect()
    before = keep(rollout)
    _, data, _ = learner.targets(rollout)
    shake(policy)
    refreshed, same = learner.refresh(rollout, data)
    assert same is data  # advantages only where asked for
    close(
        learner.sequences(refreshed, data).whole().state,
        tree.map(lambda x: x.flatten(0, 1), replay(policy, rollout)["states"]),
    )
    for a, b in zip(tree.leaves(before.states), tree.leaves(rollout.states)):
        assert torch.equal(a, b)


EPOCHS = all_pairs(
    algo=["ppo", "impala"],
    asked=[("refresh_states",), ("recompute_advantages",), ("refresh_states", "recompute_advantages")],
    world=[TensorWorld, ArenaWorld],
    is_unread=[False, True],
    normalise=[False, True],
)


@pytest.mark.parametrize("case", EPOCHS, ids=lambda case: str([*case.values()]))
def test_every_epoch_but_the_first_is_refreshed(case):
    """S001-17, S004-13: what an epoch learns from is a replay from scratch with the weights it begins with.

    The first learns from what was recorded. Log-probs and values of acting stay as recorded in all of them,
    and so does everything that was not asked for. Also on the path of a GPU.
    """
    asked = dict.fromkeys(case["asked"], True)
    settings = {"normalise_advantages": case["normalise"], "learning_rate": 0.03, "minibatches": 1}
    ours, actor = learner(case["world"](3), algo=case["algo"], epochs=4, **settings, **asked)
    actor.collect()
    rollout = keep(actor.collect())  # starts inside episodes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "synchronises", lambda where: case["is_unread"])
        seen = epochs(ours, rollout)
    assert len(seen) == 4
    opening, recorded = seen[0][0], make_chunks(rollout, 7, {})
    acted = {name: getattr(rollout, name) for name in ("record", "final_value", "bootstrap")}
    for name, wanted in estimated(ours, rollout, acted).items():
        close(uncut(opening.data[name], rollout)[rollout.valid].double(), wanted[rollout.valid])
    for epoch, (chunks, policy) in enumerate(seen):
        truth = replay(policy, rollout)
        replayed = make_chunks(replace(rollout, states=truth.pop("states")), 7, {})
        assert torch.equal(chunks.data["log_prob"], recorded.data["log_prob"]), "log-probs of acting"
        assert torch.equal(chunks.data["value"], opening.data["value"]), "values of acting"
        if epoch > 0 and "refresh_states" in asked:
            close(chunks.state, replayed.state)
            assert not is_close(chunks.state, seen[epoch - 1][0].state)
        else:
            assert_equal(chunks.state, recorded.state)
        targets = {name: uncut(chunks.data[name], rollout)[rollout.valid] for name in ("advantage", "return")}
        if epoch > 0 and "recompute_advantages" in asked:
            for name, wanted in estimated(ours, rollout, truth).items():
                close(targets[name].double(), wanted[rollout.valid])
            assert not is_close(chunks.data["advantage"], seen[epoch - 1][0].data["advantage"])
        else:
            for name, target in targets.items():
                assert torch.equal(target, uncut(opening.data[name], rollout)[rollout.valid]), name


def test_staleness():
    """S004-13: 0 at the weights that acted, more the further they have moved, and a number for dead rows."""
    for world in (TensorWorld, ArenaWorld):
        env = world(3)
        policy = make_policy(env, CORES[0])
        rollout = make_actor(env, policy, rollout=T, chunk=2).collect()
        assert diagnostics.staleness(policy, rollout) < 1e-5
        measured = []
        for _ in range(3):
            shake(policy)
            measured.append(float(diagnostics.staleness(policy, rollout)))
        assert 0.01 < measured[0] < measured[2] < 10
        norms = diagnostics.state_norms(rollout)
        assert all(torch.isfinite(value) for value in norms.values())
        assert norms["state/norm"] > 0.1


def test_state_norms_by_hand():
    """Mean and largest norm of the states that were lived in, and their growth within an episode."""
    env = TensorWorld(2, lengths=(40,))
    rollout = make_actor(env, make_policy(env, CORES[1]), rollout=T, chunk=7).collect()
    states = rollout.states.flatten(2)
    states[1], states[2], states[3] = 1.0, 2.0, 5.0  # 16 numbers: norms 4, 8, 20
    norms = diagnostics.state_norms(rollout)
    assert float(norms["state/norm"]) == pytest.approx((4 + 8 + 20) / 3)
    assert float(norms["state/norm_max"]) == 20
    assert float(norms["state/drift"]) == pytest.approx((4 / 7 + 12 / 7) / 2)
