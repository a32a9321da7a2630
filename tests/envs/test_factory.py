"""make_env: whatever a user calls an env."""

from __future__ import annotations

import gymnasium as gym
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from recollect.envs import BatchedEnv, GymLoop, GymVector, make_env
from recollect.envs.checks import check_batched_env
from recollect.errors import ConfigError, EnvError
from recollect.tasks import TASKS
from tests.support.worlds import Counter, Scripted


def test_gymnasium_id() -> None:
    env = make_env("CartPole-v1", 2)
    assert isinstance(env, GymLoop)
    assert env.reset(0).shape == (2, 4)
    names = set()
    inner: gym.Env = env.envs[0]
    while isinstance(inner, gym.Wrapper):
        names.add(type(inner).__name__)
        inner = inner.env
    assert "TimeLimit" in names
    assert "PassiveEnvChecker" not in names


def test_env_kwargs() -> None:
    env = make_env("Pendulum-v1", 1, env_kwargs={"g": 1.5})
    assert isinstance(env, GymLoop)
    assert env.envs[0].unwrapped.g == 1.5  # pyright: ignore[reportAttributeAccessIssue]
    env = make_env(Counter, 1, env_kwargs={"length": 3})
    assert isinstance(env, GymLoop)
    assert env.envs[0].length == 3  # pyright: ignore[reportAttributeAccessIssue]


def test_a_module_with_its_env() -> None:
    pytest.importorskip("popgym")
    env = make_env("popgym:popgym-RepeatPreviousEasy-v0", 2)
    assert env.observation_space == gym.spaces.Discrete(4)
    assert make_env("popgym-RepeatPreviousEasy-v0", 2).reset(0).dtype == torch.int64
    seen = check_batched_env(env, steps=120)
    assert seen.truncated + seen.terminated > 2


@pytest.mark.parametrize("kind", ["name", "id"])
def test_built_in_tasks(kind: str) -> None:
    name, task = next(iter(TASKS.items()))
    env = make_env(name if kind == "name" else task.id, 3)
    assert isinstance(env, task)
    assert env.num_envs == 3


def test_callables_and_made_envs() -> None:
    assert isinstance(make_env(Counter, 3), GymLoop)
    assert isinstance(make_env(lambda: Counter(), 3), GymLoop)
    assert isinstance(make_env(Counter(), 1), GymLoop)
    assert isinstance(make_env(SyncVectorEnv([Counter] * 3), 3), GymVector)
    env = GymLoop([Counter] * 3)
    assert isinstance(env, BatchedEnv)
    assert make_env(env, 3) is env


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("CartPol-v1", r"no env is registered as 'CartPol-v1' .*did you mean 'CartPole-v\d'"),
        ("cartpole", r"did you mean 'CartPole-v\d'"),
        ("CartPole-v77", r"did you mean 'CartPole-v\d'"),
        ("delayed_cue", r"did you mean 'delayed-cue'"),
        ("qqqqq", r"no env is registered as 'qqqqq'\. An env of another package needs its module"),
        ("no_such_module:Env-v0", r"no env is registered as .*No module named 'no_such_module'"),
    ],
)
def test_unknown_names(name: str, pattern: str) -> None:
    with pytest.raises(ConfigError, match=pattern):
        make_env(name, 1)


def test_what_cannot_be_meant() -> None:
    with pytest.raises(ConfigError, match="num_envs is 0: at least one"):
        make_env("CartPole-v1", 0)
    with pytest.raises(ConfigError, match="num_envs is 2, and env is one Counter: give a callable"):
        make_env(Counter(), 2)
    with pytest.raises(ConfigError, match="num_envs is 2, and the given SyncVectorEnv has 3"):
        make_env(SyncVectorEnv([Counter] * 3), 2)
    with pytest.raises(ConfigError, match="num_envs is 2, and the given GymLoop has 1"):
        make_env(GymLoop([Counter]), 2)
    with pytest.raises(ConfigError, match=r"env_kwargs \['length'\] cannot reach a GymLoop"):
        make_env(GymLoop([Counter]), 1, env_kwargs={"length": 3})
    with pytest.raises(ConfigError, match="device is cuda, and the given GymLoop is on cpu"):
        make_env(GymLoop([Scripted]), 1, device="cuda")
    with pytest.raises(ConfigError, match="env is a int: give a task's name"):
        make_env(3, 1)  # pyright: ignore[reportArgumentType]


def test_a_missing_dependency_is_not_a_missing_env():
    """A wrapper without its package: the error names the package and does not doubt the id."""

    def needs_more(env: gym.Env) -> gym.Env:
        raise gym.error.DependencyNotInstalled("easel is not installed")

    with pytest.raises(EnvError, match=r"CartPole-v1 could not be made: .*easel is not installed"):
        make_env("CartPole-v1", 1, wrap=(needs_more,))


def test_a_module_that_lacks_another_one(tmp_path, monkeypatch):
    (tmp_path / "halfinstalled.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvError, match=r"could not be made: .*No module named 'no_such_dependency'"):
        make_env("halfinstalled:Env-v0", 1)
