"""Values, states and advantages under changed weights equal a replay from scratch, step by step."""

from __future__ import annotations

import pytest
import torch

from recollect import gauges, tree
from recollect.algos.ppo import PPO, PPOConfig
from recollect.cores import GRUConfig, LSTMConfig
from recollect.refresh import refresh
from recollect.rollout import Rollout
from tests.helpers import ArenaWorld, TensorWorld, keep, make_actor, make_policy
from tests.reference import returns as reference

T = 23
CORES = [LSTMConfig(16), GRUConfig(16, learned_initial_state=True), LSTMConfig(16, layers=2), "none"]


def replay(policy, rollout: Rollout) -> dict:
    """One step after the other, with nothing but ``Policy.unroll`` of single steps and ``Policy.value``."""
    state = tree.clone(rollout.state_at(0))
    values, states = [], []
    final_value = torch.zeros(rollout.steps, rollout.rows)
    cuts = (
        [] if rollout.finals is None else list(zip(rollout.finals.time.tolist(), rollout.finals.row.tolist()))
    )
    for t in range(rollout.steps):
        if t in rollout.state_steps:
            states.append(state)
        with torch.no_grad():
            _, value, state = policy.unroll(rollout.obs[t : t + 1], state, rollout.first[t : t + 1])
        values.append(value[0])
        for i, (time, row) in enumerate(cuts):
            if time == t:
                rows = slice(row, row + 1)
                inside = torch.zeros(1, dtype=torch.bool)
                seen = rollout.finals.obs[i : i + 1]
                final_value[t, row] = policy.value(seen, tree.index(state, rows), inside)[0]
    bootstrap = policy.value(rollout.obs[-1], state, rollout.first[-1])
    return {
        "value": torch.stack(values),
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
        (fresh.value[rollout.valid], fresh.final_value, fresh.bootstrap, fresh.states),
        (rollout.record["value"][rollout.valid], rollout.final_value, rollout.bootstrap, rollout.states),
    )
    shake(policy)
    expected, fresh = replay(policy, rollout), refresh(policy, rollout)
    for name, truth in expected.items():
        close(getattr(fresh, name), truth)
    assert (fresh.value - rollout.record["value"])[rollout.valid].abs().max() > 0.05
    cut = rollout.truncated & ~rollout.terminated
    assert (fresh.final_value - rollout.final_value)[cut].abs().max() > 0.05


@pytest.mark.parametrize("world", [TensorWorld, ArenaWorld])
def test_recomputed_advantages_equal_gae_from_scratch(world):
    """S001-17: values *and* bootstrap *and* final values of one network go into the new advantages."""
    env = world(3)
    policy = make_policy(env, CORES[0])
    config = PPOConfig(rollout=T, chunk=7, recompute_advantages=True, normalise_advantages=False)
    learner = PPO(policy, config)
    actor = make_actor(env, policy, rollout=T, chunk=7)
    actor.collect()
    rollout = actor.collect()
    data, _ = learner._targets(rollout)
    shake(policy)
    _, again = learner._refresh(rollout, data)
    truth = replay(policy, rollout)
    flags = {name: getattr(rollout, name) for name in ("reward", "terminated", "truncated", "valid")}
    del truth["states"]
    advantage, returns = reference.gae(**flags, **truth, gamma=config.gamma, gae_lambda=config.gae_lambda)
    close(again["advantage"].double(), advantage)
    close(again["return"][rollout.valid].double(), returns[rollout.valid])
    assert (again["advantage"] - data["advantage"]).abs().max() > 0.1


def test_refreshed_states_are_used():
    """S004-13: with ``refresh_states`` later epochs start their chunks from the states of the new weights."""
    env = TensorWorld(3)
    policy = make_policy(env, CORES[0])
    learner = PPO(policy, PPOConfig(rollout=T, chunk=7, refresh_states=True))
    rollout = make_actor(env, policy, rollout=T, chunk=7).collect()
    before = keep(rollout)
    data, _ = learner._targets(rollout)
    shake(policy)
    refreshed, same = learner._refresh(rollout, data)
    assert same is data  # advantages only where asked for
    close(
        learner._cut(refreshed, data).state,
        tree.map(lambda x: x.flatten(0, 1), replay(policy, rollout)["states"]),
    )
    for a, b in zip(tree.leaves(before.states), tree.leaves(rollout.states)):
        assert torch.equal(a, b)


def test_staleness():
    """S004-13: 0 at the weights that acted, more the further they have moved, and a number for dead rows."""
    for world in (TensorWorld, ArenaWorld):
        env = world(3)
        policy = make_policy(env, CORES[0])
        rollout = make_actor(env, policy, rollout=T, chunk=2).collect()
        assert gauges.staleness(policy, rollout) < 1e-5
        measured = []
        for _ in range(3):
            shake(policy)
            measured.append(float(gauges.staleness(policy, rollout)))
        assert 0.01 < measured[0] < measured[2] < 10
        norms = gauges.state_norms(rollout)
        assert all(torch.isfinite(value) for value in norms.values())
        assert norms["state/norm"] > 0.1


def test_state_norms_by_hand():
    """Mean and largest norm of the states that were lived in, and their growth within an episode."""
    env = TensorWorld(2, lengths=(40,))
    rollout = make_actor(env, make_policy(env, CORES[1]), rollout=T, chunk=7).collect()
    states = rollout.states.flatten(2)
    states[1], states[2], states[3] = 1.0, 2.0, 5.0  # 16 numbers: norms 4, 8, 20
    norms = gauges.state_norms(rollout)
    assert float(norms["state/norm"]) == pytest.approx((4 + 8 + 20) / 3)
    assert float(norms["state/norm_max"]) == 20
    assert float(norms["state/drift"]) == pytest.approx((4 / 7 + 12 / 7) / 2)
