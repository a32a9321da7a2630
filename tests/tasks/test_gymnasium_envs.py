"""The tasks as Gymnasium envs."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from recollect.base.registry import register_tasks, when_imported
from recollect.config import tasks as options
from recollect.errors import ConfigError, EnvError
from recollect.tasks import TASKS
from recollect.tasks.gymnasium_envs import TaskEnv, TaskVectorEnv
from tests.support.task_worlds import ALONE, SMALL


@pytest.mark.parametrize("name", ALONE)
def test_gymnasium_finds_nothing_to_say(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if name == "position-pendulum":  # Gymnasium's advice about its own action space [-2, 2]
            warnings.filterwarnings("ignore", message=".*symmetric and normalized space.*")
        env = gym.make(TASKS[name].id, **SMALL[name])
        assert isinstance(env.unwrapped, TaskEnv)
        check_env(env.unwrapped)
        vector = gym.make_vec(TASKS[name].id, num_envs=3, **SMALL[name])
        assert isinstance(vector, TaskVectorEnv)
        assert vector.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        obs, _ = vector.reset(seed=0)
        assert vector.observation_space.contains(obs)


def test_every_task_has_its_options() -> None:
    """The registry reads the ids from the options, without importing a task."""
    assert {name: task.Options for name, task in TASKS.items()} == options.TASKS


IMPORTS = {
    "recollect first": "import recollect, sys; assert 'gymnasium' not in sys.modules; import gymnasium",
    "gymnasium first": "import gymnasium, recollect",
    "recollect alone": "import recollect; from gymnasium.envs import registration; import gymnasium",
}


@pytest.mark.parametrize("order", IMPORTS)
def test_importing_recollect_registers_the_tasks(order: str) -> None:
    """In any order; Gymnasium itself is not imported before somebody needs it."""
    code = f"{IMPORTS[order]}; assert gymnasium.spec('recollect/TMaze-v0').kwargs == {{'task': 't-maze'}}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_module_is_imported_as_usual(tmp_path, monkeypatch) -> None:
    """The call comes right after the import, once; a module that is there already gets it at once."""
    (tmp_path / "watched_module.py").write_text("value = 3")
    monkeypatch.syspath_prepend(tmp_path)
    calls: list[int] = []
    when_imported("watched_module", lambda: calls.append(sys.modules["watched_module"].value))
    assert calls == []
    assert importlib.import_module("watched_module").value == 3
    importlib.reload(sys.modules["watched_module"])
    when_imported("watched_module", lambda: calls.append(4))
    monkeypatch.delitem(sys.modules, "watched_module")
    assert calls == [3, 4]


def test_registering_twice_changes_nothing() -> None:
    before = {name: gym.spec(TASKS[name].id) for name in ALONE}
    register_tasks({name: TASKS[name].id for name in ALONE})
    assert all(gym.spec(TASKS[name].id) is spec for name, spec in before.items())


def equal(a, b) -> None:
    """Two values of Gymnasium, in every detail."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            equal(a[key], b[key])
    elif isinstance(a, tuple) or (isinstance(a, np.ndarray) and a.dtype == object):
        assert type(a) is type(b)
        for x, y in zip(a, b, strict=True):
            equal(x, y)
    else:
        assert type(a) is type(b)
        np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.parametrize("name", ALONE)
def test_the_vector_env_equals_gymnasiums_vector_of_single_envs(name: str) -> None:
    """S002-21: row i plays what a single env with seed + i plays, ends and resets included."""
    make = {"id": TASKS[name].id, "num_envs": 3, **SMALL[name]}
    ours = gym.make_vec(**make)
    theirs = gym.make_vec(
        **make,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
    )
    assert isinstance(theirs, SyncVectorEnv)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    ours.action_space.seed(0)
    ends = 0

    def play(steps: int) -> None:
        nonlocal ends
        for _ in range(steps):
            action = ours.action_space.sample()
            a, b = ours.step(action), theirs.step(action)
            for x, y in zip(a, b, strict=True):
                equal(x, y)
            ends += int((a[2] | a[3]).sum())

    equal(ours.reset(seed=5), theirs.reset(seed=5))
    play(205 if name == "position-pendulum" else 60)
    equal(ours.reset(), theirs.reset())  # goes on to the next episode of each stream
    play(9)
    some = np.array([True, False, True])
    equal(ours.reset(options={"reset_mask": some}), theirs.reset(options={"reset_mask": some.copy()}))
    play(9)
    equal(ours.reset(seed=[7, 7, 9]), theirs.reset(seed=[7, 7, 9]))
    play(9)
    assert ends >= 3


@pytest.mark.parametrize("name", ALONE)
def test_seeding_a_single_env(name: str) -> None:
    def first_sights(env: gym.Env, **seed: int) -> list[list[float]]:
        sights = [env.reset(**seed)[0]] + [env.reset()[0] for _ in range(30)]
        return [np.asarray(obs).tolist() for obs in sights]

    env = gym.make(TASKS[name].id, **SMALL[name])
    seeded = first_sights(env, seed=3)
    assert seeded == first_sights(env, seed=3)
    assert seeded != first_sights(env, seed=4)
    assert seeded != first_sights(env)  # continues; does not start again
    fresh = [first_sights(gym.make(TASKS[name].id, **SMALL[name])) for _ in range(2)]
    assert fresh[0] != fresh[1]  # without a seed: another stream each time


def test_options_reach_the_task() -> None:
    env = gym.make("recollect/DelayedCue-v0", size="medium", horizon=3)
    assert env.action_space == gym.spaces.Discrete(4)
    env.reset(seed=0)
    ends = [env.step(0)[2] for _ in range(5)]
    assert ends == [False] * 4 + [True]
    with pytest.raises(EnvError, match=r"call reset"):
        env.step(0)
    env.reset()
    with pytest.raises(ConfigError, match="did you mean 'size'"):
        gym.make("recollect/TMaze-v0", sise="hard")


def test_wrong_actions_are_named() -> None:
    env = gym.make("recollect/TMaze-v0", disable_env_checker=True)
    env.reset(seed=0)
    with pytest.raises(EnvError, match="not in Discrete"):
        env.step(4)
    with pytest.raises(EnvError, match="dtype float64"):
        env.step(1.5)
    vector = gym.make_vec("recollect/TMaze-v0", num_envs=3)
    vector.reset(seed=0)
    with pytest.raises(EnvError, match="for each of 3 rows"):
        vector.step(np.array([0, 1]))
    with pytest.raises(EnvError, match="2 seeds for 3 envs"):
        vector.reset(seed=[0, 1])  # pyright: ignore[reportArgumentType]


def test_rendering_in_words() -> None:
    env = gym.make("recollect/TMaze-v0", length=1, render_mode="ansi")
    env.reset(seed=0)
    assert env.render() in ("sign: left", "sign: right")
    env.step(0)
    assert env.render() == "junction"
    env.step(1)
    assert env.render() == "junction"  # the last sight of the old episode, until reset
    vector = gym.make_vec("recollect/DelayedCue-v0", num_envs=2, horizon=1, render_mode="ansi")
    vector.reset(seed=0)
    assert all(text in ("cue 0", "cue 1") for text in vector.render() or ())
    vector.step(np.zeros(2, np.int64))
    assert vector.render() == ("blank", "blank")
    vector.step(np.zeros(2, np.int64))
    assert vector.render() == ("query", "query")
    cards = gym.make("recollect/RepeatFirst-v0", render_mode="ansi")
    obs, _ = cards.reset(seed=0)
    assert cards.render() == "♠♦♣♥"[obs]
