"""PettingZoo envs are not supported yet, and the error says so, however one is given."""

from __future__ import annotations

import importlib
import types
from typing import Any

import gymnasium as gym
import pytest

import recollect as rc
from recollect.cli import main
from recollect.errors import ConfigError, RecollectError
from tests.support.helpers import TensorWorld

PLAINLY = "PettingZoo envs are not supported yet"


class Parallel:
    """The interface of a ParallelEnv."""

    metadata = {"name": "two_walkers_v0"}  # noqa: RUF012
    possible_agents = ["left", "right"]  # noqa: RUF012

    def observation_space(self, agent: str) -> gym.Space:
        return gym.spaces.Discrete(2)

    def action_space(self, agent: str) -> gym.Space:
        return gym.spaces.Discrete(2)


class Aec:
    """The interface of an AEC env behind its wrappers: ``agents`` cannot be read before a reset."""

    def __getattr__(self, name: str) -> Any:
        if name == "possible_agents":
            return ["left", "right"]
        raise AttributeError(f"{name} cannot be accessed before reset")

    observation_space = action_space = Parallel.observation_space


def batched(num_envs: int) -> Parallel:
    return Parallel()


@pytest.mark.parametrize(
    "env",
    [
        Parallel(),
        Aec(),
        Parallel,
        lambda: Aec(),
        batched,
        types.ModuleType("pettingzoo.butterfly.pistonball_v6"),
        "pettingzoo.butterfly.pistonball_v6:env",
        "pettingzoo.mpe.simple_v3:parallel_env",
    ],
    ids="parallel aec class function batch module aec-name parallel-name".split(),
)
@pytest.mark.parametrize("runtime", ["inline", "processes"])
def test_it_is_said_plainly(env, runtime):
    with pytest.raises(ConfigError, match=PLAINLY):
        rc.train(env, steps=1, runtime=runtime, progress=False)


def test_on_the_command_line(capsys):
    assert main(["train", "pettingzoo.butterfly.pistonball_v6:env", "--steps", "10"]) == 2
    error = capsys.readouterr().err
    assert PLAINLY in error
    assert "old gym" not in error


def test_others_are_not_taken_for_one():
    """An env with agents as rows; an env of the old gym package is still told what to do."""
    rc.train(TensorWorld(2), steps=16, rollout=8, chunk=4, minibatches=1, progress=False).close()
    with pytest.raises(RecollectError, match="old gym package"):
        rc.train(lambda: types.SimpleNamespace(agents=1, step=None), steps=1, progress=False)


def test_the_real_package():
    pytest.importorskip("pettingzoo")
    module = importlib.import_module("pettingzoo.classic.rps_v2")
    for env in (module.env(), module.parallel_env(), module.env, lambda: module.parallel_env()):
        with pytest.raises(ConfigError, match=PLAINLY):
            rc.train(env, steps=1, progress=False)
