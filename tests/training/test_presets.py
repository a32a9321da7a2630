"""Presets: what `rc.train` picks for a built-in task by itself."""

from __future__ import annotations

import pytest

import recollect as rc
from recollect.config.core_choice import core_config, reaching
from recollect.config.impala import ImpalaConfig
from recollect.config.ppo import PPOConfig
from recollect.config.train import TrainConfig
from recollect.runtimes.run_summary import run_opening
from recollect.tasks import TASKS, make_task
from recollect.training.presets import FAR, LONG_STEPS, OWN, preset


@pytest.mark.parametrize(
    ("task", "options", "expected"),
    [
        ("delayed-cue", {"horizon": 10}, set()),
        ("delayed-cue", {"horizon": 40}, {"recurrent_mode", "num_envs"}),
        ("recollect/DelayedCue-v0", {"horizon": 100}, {"recurrent_mode", "num_envs", "core"}),
        ("t-maze", {"length": 50}, {"recurrent_mode", "num_envs"}),
        ("repeat-previous", {}, set()),
        ("repeat-first", {}, {"recurrent_mode", "num_envs"}),
    ],
)
def test_by_how_far_memory_must_reach(task, options, expected):
    found = preset(task, {"env_kwargs": options})
    own = {id_: OWN[name] for name, kind in TASKS.items() for id_ in (name, kind.id)}[task]
    assert set(found) == expected | set(own)


def test_other_envs_have_none():
    assert preset("CartPole-v1", {}) == preset("popgym:popgym-RepeatFirstEasy-v0", {}) == {}


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_its_own_number_of_steps(task):
    """Enough at its default size, as bench/presets.py measures; more where memory must reach further."""
    assert preset(task, {})["steps"] == OWN[task]["steps"] <= LONG_STEPS
    TrainConfig().override(**preset(task, {}))  # all of it are settings


FAR_TASKS = {"delayed-cue": "hard", "repeat-previous": "medium", "repeat-first": "medium"}
"""The sizes from which on memory must reach so far that a task has settings of its own."""


@pytest.mark.parametrize(("task", "size"), FAR_TASKS.items())
def test_far_memory_has_its_own_settings(task, size):
    """A core that learns it, unless one is named, and rollouts of whole episodes; a user's settings win."""
    far, kwargs = FAR[task][1], {"env_kwargs": {"size": size}}
    found = preset(task, kwargs)
    episode = make_task(task, 1, size=size).max_episode_steps
    assert (found["rollout"], found["recurrent_mode"]) == (episode, "full")
    assert type(found["core"]) is type(core_config(far["core"]))
    assert all(found[name] == value for name, value in far.items() if name != "core")
    TrainConfig().override(**found)
    named = preset(task, kwargs | {"core": "mamba_gru", "num_envs": 7, "entropy": 0.5})
    assert "num_envs" not in named
    assert "entropy" not in named
    assert named["core"] == reaching("mamba_gru", make_task(task, 1, size=size).horizon)
    assert "gamma" in named
    assert preset(task, kwargs | {"algo": "impala"}).get("rollout") != episode, "measured with PPO alone"


@pytest.mark.parametrize("task", ["delayed-cue", "t-maze"])
def test_larger_sizes_get_more_steps(task):
    assert preset(task, {"env_kwargs": {"size": "medium"}})["steps"] == LONG_STEPS
    assert "steps" not in preset(task, {"env_kwargs": {"size": "medium"}, "steps": 5})


def trained(**settings):
    small = {"steps": 1, "progress": False, "env_kwargs": {"horizon": 100}, "rollout": 8, "minibatches": 1}
    return rc.train("delayed-cue", **small, **settings).config


def test_what_was_chosen_is_told():
    agent = rc.train("t-maze", steps=1, progress=False, rollout=8, minibatches=1, env_kwargs={"length": 50})
    assert agent.preset == {"recurrent_mode": "full", "num_envs": 32, "entropy": 0.03}
    opening = run_opening(agent.network, agent.config, agent.need_trainer().collector, agent.preset)
    assert "preset recurrent_mode='full'" in opening
    assert "preset num_envs=32" in opening


def test_the_users_settings_win():
    config = trained()
    assert (config.num_envs, config.algo.recurrent_mode) == (32, "full")
    assert config.policy.core.chrono == 100
    config = trained(num_envs=4, core="gru", chunk=4)
    assert (config.num_envs, config.algo.recurrent_mode, config.algo.chunk) == (4, "stored_state", 4)
    assert config.policy.core == rc.GRUConfig(chrono=100)
    assert trained(core=rc.GRUConfig(hidden=8)).policy.core == rc.GRUConfig(hidden=8)
    assert trained(preset=False, chunk=8).policy.core == "lstm"


def test_impala_gets_what_carries_over():
    """What says how far to look does; how fast PPO learns, and how often it looks at a rollout, does not."""
    ppo, impala = (preset("copy", {"algo": algo}) for algo in ("ppo", "impala"))
    assert ppo.keys() - impala.keys() == {"learning_rate", "epochs"}
    assert all(ppo[name] == value for name, value in impala.items())
    long = preset("delayed-cue", {"algo": "impala", "env_kwargs": {"horizon": 100}})
    assert (long["recurrent_mode"], long["rollout"], long["num_envs"]) == ("full", 128, 32)
    assert set(preset("position-pendulum", {"algo": ImpalaConfig()})) == {"steps", "num_envs"}


def test_a_whole_part_is_the_users():
    """With a PPOConfig or a PolicyConfig nothing of that part is chosen, also not where it has a default."""
    own = preset("position-pendulum", {"algo": PPOConfig()})
    assert set(own) == {"steps", "num_envs"}
    long = {"env_kwargs": {"size": "medium"}}
    assert set(preset("delayed-cue", long | {"algo": PPOConfig()})) == {"steps", "num_envs", "core"}
    assert "core" not in preset("delayed-cue", long | {"policy": rc.PolicyConfig()})
    for name, value in preset("position-pendulum", {}).items():
        assert name not in preset("position-pendulum", {name: value})
