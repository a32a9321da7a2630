"""Runs whose critic has a network of its own: every option, every runtime, and an agent that acts alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import recollect as rc
from recollect.acting.recording import record_env
from recollect.algos.catalog import make_learner
from recollect.base import tree
from recollect.config.ppo import PPOConfig
from recollect.envs import make_env
from recollect.errors import ConfigError
from recollect.export.files import export_agent
from recollect.learning.auxiliary_loss import KNOWN, TARGET
from recollect.learning.optimiser import parameter_groups
from tests.support.helpers import make_actor, make_policy
from tests.support.resumed import Stop, assert_equal, weights
from tests.support.secret_world import SEPARATE, SMALL, OpenEnv, SecretEnv, secret_rows


def trained(env: Any = SecretEnv, **settings: Any) -> rc.Agent:
    return rc.train(env, **SMALL | SEPARATE | settings)


OPTIONS: dict[str, dict[str, Any]] = {
    "burn-in": {"recurrent_mode": "burn_in", "burn_in_steps": 3},
    "whole rollouts": {"recurrent_mode": "full"},
    "refresh": {"refresh_states": True, "recompute_advantages": True},
    "recompute": {"recompute_activations": True},
    "next observation": {"next_obs_coef": 0.5},
    "impala": {"algo": "impala"},
    "gauges": {"gauge_every": 1},
    "no memory": {"core": "none", "recurrent_mode": "none"},
    "window": {"core": {"name": "window", "hidden": 8, "window": 6}},
    "memoryless": {"critic": "memoryless"},
    "rates": {"actor_learning_rate": 1e-3, "critic_learning_rate": 3e-3},
    "last action": {"last_action_reward": True},
    "replayed in float64": {"tolerance": 1e-12},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(name):
    """S000-8: the learner reproduces the record, with every option that handles states or networks."""
    agent = trained(**OPTIONS[name])
    last = agent.history.rows[-1]
    assert last["deviation/log_prob"] <= 1e-5
    assert last["deviation/value"] <= 1e-5 * max(1, last["value_scale"])


def test_recomputation_has_the_same_gradients():
    """S002-14: with activation recomputation the weights move as without."""
    one, two = (weights(trained(recompute_activations=again, steps=69)) for again in (False, True))
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=1e-5, rtol=1e-4, msg=name)


def test_verify_passes():
    """S004-19: every check of ``recollect verify`` holds for both networks."""
    settings = {name: value for name, value in SMALL.items() if name not in ("steps", "progress", "num_envs")}
    result = rc.verify(SecretEnv, **settings, **SEPARATE)
    assert result.ok, str(result)
    assert not [check for check in result.checks if check.status == "warning"], str(result)
    assert [check.name for check in result.checks if check.status == "skipped"] == [
        "predictions",
        "versions",
        "processes",
    ], str(result)


def test_a_stop_changes_nothing(tmp_path: Path):
    """S000-19: a resumed run has the weights of one that never stopped, bit for bit."""
    task = SMALL | {"critic": "separate", "checkpoint_every": 69, "steps": 5 * 69}
    whole = rc.train("t-maze", run=str(tmp_path / "whole"), **task)
    rc.train("t-maze", run=str(tmp_path / "half"), callbacks=[Stop(2 * 69)], **task)
    assert_equal(weights(whole), weights(rc.resume(tmp_path / "half", progress=False)))


def test_processes_learn_the_same():
    """S000-17: two actors in processes give the bits of two in this one."""
    layout = {"num_envs": 4, "actors": 2, "steps": 2 * 92}
    with trained(**layout) as one, trained(**layout, runtime="processes") as two:
        assert_equal(weights(one), weights(two))


def test_a_saved_agent_acts_the_same(tmp_path: Path):
    """S000-18: config, weights and the spaces of both networks come back."""
    agent = trained()
    again = rc.load(agent.save(tmp_path / "agent"))
    assert again.policy.config.critic_obs == ("secret",)
    assert_equal(weights(agent), weights(again))
    obs = {"seen": np.ones(3, np.float32)}
    assert again.predict(obs, episode_start=True)[0] == agent.predict(obs, episode_start=True)[0]


def test_an_agent_acts_without_the_critics_keys():
    """Sessions, ``predict`` and evaluations: the same actions with the keys and without."""
    agent = trained()
    rng = np.random.default_rng(0)
    alone, beside = agent.session(2), agent.session(2)
    state, first = agent.initial_state(2), True
    for _ in range(5):
        seen = rng.normal(size=(2, 3)).astype(np.float32)
        secret = rng.normal(size=(2, 2)).astype(np.float32)
        actions = alone.act({"seen": seen})
        assert (actions == beside.act({"seen": seen, "secret": secret})).all()
        predicted, state = agent.predict({"seen": seen}, state, first)
        assert (actions == predicted).all()
        first = False
    assert tree.spec(alone.get_memory()["state"]) == tree.spec(agent.policy.initial_state(1)["actor"])
    one, two = agent.evaluate(4, seed=1), agent.evaluate(4, seed=1, env=OpenEnv)
    assert (one.lengths == two.lengths).all()
    assert one.mean == pytest.approx(two.mean)
    with pytest.raises(ConfigError, match="observation_space"):
        agent.evaluate(4, env="CartPole-v1")


def test_episodes_are_recorded_with_and_without_the_keys():
    """With them there are values; without them there are none, and the actor's memory is the same."""
    agent = trained()
    one, two = (record_env(agent.policy, make_env(env, 1), seed=3)[0] for env in (SecretEnv, OpenEnv))
    assert np.isfinite(one.value).all()
    assert np.isnan(two.value).all()
    assert one.leaves == two.leaves
    assert one.units == sum(leaf.numel() for leaf in tree.leaves(agent.initial_state(1)))
    assert np.array_equal(one.memory, two.memory)
    assert one.action == two.action


def test_an_export_holds_the_actor_alone(tmp_path: Path):
    """Its inputs are the actor's keys and state; the check of the export has passed."""
    file = export_agent(trained(), tmp_path / "agent.pt2", "torch")
    about = json.loads(file.with_name("agent.pt2.json").read_text())
    assert {one["name"] for one in about["inputs"]} == {"obs.seen", "state.0", "state.1", "first"}
    assert {one["name"] for one in about["outputs"]} == {"action", "logits", "next_state.0", "next_state.1"}
    assert "secret" not in json.dumps(about)


def test_the_critics_network_has_the_critics_rate():
    """S001-16: every parameter is in one group; the critic's own encoder and core are in its group."""
    policy = make_policy(secret_rows(), **SEPARATE)
    groups = parameter_groups(policy, PPOConfig(critic_learning_rate=1e-3))
    named = {id(weight): group["name"] for group in groups for weight in group["params"]}
    assert len(named) == len(list(policy.parameters())) == sum(len(group["params"]) for group in groups)
    for name, weight in policy.named_parameters():
        assert named[id(weight)] == ("critic" if name.startswith("critic") else "trunk"), name


def test_the_predictor_predicts_what_the_actor_sees():
    """S001-15: three numbers, not the two of the critic's key."""
    env = secret_rows()
    policy = make_policy(env, normalise_observations=False, **SEPARATE)
    learner = make_learner(policy, PPOConfig(rollout=23, chunk=7, next_obs_coef=0.5))
    rollout = make_actor(env, policy, rollout=23, chunk=7).collect()
    assert learner.predictor is not None
    targets = learner.predictor.targets(policy, rollout)
    known = targets[KNOWN]
    assert torch.equal(targets[TARGET][known], rollout.obs["seen"][1:][known])


def test_a_run_says_what_the_critic_sees(capsys):
    """At its start, with the other parts of the observation."""
    rc.train(SecretEnv, **SMALL | SEPARATE | {"progress": "plain", "steps": 69})
    text = capsys.readouterr().err
    assert "critic: an encoder and LSTM of its own, which also sees secret" in text
    assert "secret 2 float32" not in text
