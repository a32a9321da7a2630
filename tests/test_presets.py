"""Presets: what `rc.train` picks for a built-in task by itself."""

from __future__ import annotations

import pytest

import recollect as rc
from recollect.presets import preset


@pytest.mark.parametrize(
    ("task", "options", "expected"),
    [
        ("delayed-cue", {"horizon": 10}, {}),
        ("delayed-cue", {"horizon": 40}, {"recurrent_mode", "num_envs"}),
        ("recollect/DelayedCue-v0", {"horizon": 100}, {"recurrent_mode", "num_envs", "core"}),
        ("t-maze", {"length": 50}, {"recurrent_mode", "num_envs"}),
        ("repeat-previous", {}, {}),
        ("CartPole-v1", {}, {}),
    ],
)
def test_by_how_far_memory_must_reach(task, options, expected):
    assert set(preset(task, {"env_kwargs": options})) == set(expected)


def trained(**settings):
    small = {"steps": 1, "progress": False, "env_kwargs": {"horizon": 100}, "rollout": 8, "minibatches": 1}
    return rc.train("delayed-cue", **small, **settings).config


def test_what_was_chosen_is_told():
    agent = rc.train("t-maze", steps=1, progress=False, rollout=8, minibatches=1, env_kwargs={"length": 50})
    assert agent.preset == {"recurrent_mode": "full", "num_envs": 32}
    assert "preset recurrent_mode='full'; preset num_envs=32" in agent._opening(agent._need_trainer())


def test_the_users_settings_win():
    config = trained()
    assert (config.num_envs, config.ppo.recurrent_mode) == (32, "full")
    assert config.policy.core.chrono == 100
    config = trained(num_envs=4, core="gru", chunk=4)
    assert (config.num_envs, config.ppo.recurrent_mode, config.ppo.chunk) == (4, "stored_state", 4)
    assert config.policy.core == rc.GRUConfig(chrono=100)
    assert trained(core=rc.GRUConfig(hidden=8)).policy.core == rc.GRUConfig(hidden=8)
    assert trained(preset=False, chunk=8).policy.core == "lstm"
