"""PettingZoo envs in ``rc.train``, in every form in which one can be given."""

from __future__ import annotations

import importlib
import types
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from pettingzoo.utils.conversions import parallel_to_aec

import recollect as rc
from recollect.cli import main
from recollect.envs import make_grouped_env
from recollect.errors import ConfigError, RecollectError, SpaceError
from tests.support.grouped_worlds import EARLY, LATE, Camp
from tests.support.helpers import TensorWorld

NAME = "pettingzoo/rps_v2"
SMALL: dict[str, Any] = {"steps": 96, "rollout": 8, "chunk": 4, "minibatches": 1, "epochs": 1}


def camp() -> Camp:
    return Camp(LATE)


def turns() -> Any:
    return parallel_to_aec(Camp(EARLY))


def chess() -> Any:
    """An env whose agents move in turn."""
    return importlib.import_module("pettingzoo.classic.tictactoe_v3").env()


def unequal() -> Camp:
    return Camp(wide=("bob",))


def batched(num_envs: int) -> Camp:
    return Camp()


FORMS: dict[str, Any] = {
    "parallel object": camp,
    "AEC object": turns,
    "groups object": lambda: make_grouped_env(camp, 2),
    "class": lambda: Camp,
    "function": lambda: camp,
    "AEC function": lambda: turns,
    "module": lambda: importlib.import_module("pettingzoo.classic.rps_v2"),
    "function of the package": lambda: importlib.import_module("pettingzoo.classic.rps_v2").parallel_env,
    "name": lambda: NAME,
    "code by name": lambda: "tests.support.grouped_worlds:Camp",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_trains(form: str, tmp_path: Path):
    """S001-29: trained with a run folder, evaluated, saved, loaded, and evaluated with equal returns."""
    env = FORMS[form]()
    size = {} if form.endswith("object") else {"num_envs": 2}
    with rc.train(env, run=tmp_path / "run", progress=False, **SMALL, **size) as agent:
        assert agent.steps >= SMALL["steps"]
        found = agent.evaluate(episodes=6)
        agent.save(tmp_path / "agent")
    given = {} if env == NAME else {"env": env}
    with rc.load(tmp_path / "agent", **given) as again:
        assert again.evaluate(episodes=6).returns.tolist() == found.returns.tolist()
    assert len(found.returns) == 6


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (chess, {}, "turn-based.*turn_based_aec_to_parallel"),
        (lambda: chess, {}, "turn-based.*turn_based_aec_to_parallel"),
        (unequal, {}, "'ann' and 'bob' .*pad the smaller"),
        (lambda: unequal, {}, "'ann' and 'bob' .*pad the smaller"),
        (lambda: batched, {}, "must make a BatchedEnv or a VectorEnv"),
        (camp, {"runtime": "processes"}, "runtime = .*cannot be recreated"),
        (turns, {"runtime": "processes"}, "runtime = .*cannot be recreated"),
        (FORMS["groups object"], {"runtime": "processes"}, "runtime = .*cannot be recreated"),
        (FORMS["groups object"], {"env_workers": 2}, "env_workers = .*cannot be recreated"),
        (camp, {"num_envs": 3}, "num_envs = 3.*give a callable"),
        (camp, {"env_kwargs": {"lives": EARLY}}, "env_kwargs = .*give a callable"),
        (lambda: Camp, {"env_kwargs": {"foo": 1}}, "does not take the options .*env_kwargs"),
        (camp, {"wrap": gym.Wrapper}, "wrap is for Gymnasium envs.*function of your own"),
        (lambda: Camp, {"wrap": gym.Wrapper}, "wrap is for Gymnasium envs.*function of your own"),
        (lambda: camp, {"wrap": gym.Wrapper}, "wrap is for Gymnasium envs.*function of your own"),
        (lambda: NAME, {"drop_obs": ["x"]}, "drop_obs is for Gymnasium envs.*function of your own"),
        (lambda: camp, {"drop_obs": ["x"]}, "drop_obs is for Gymnasium envs.*function of your own"),
        (lambda: types.ModuleType("pettingzoo.x.y_v0"), {}, "neither parallel_env nor env"),
        (lambda: "pettingzoo/rps_v9", {}, "did you mean 'pettingzoo/rps_v2'"),
    ],
)
def test_errors_name_the_fix(make: Any, settings: dict[str, Any], words: str):
    with pytest.raises((ConfigError, SpaceError), match=words):
        rc.train(make(), progress=False, **SMALL | settings)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture):
    """Trained, evaluated, played and reported by name; ``verify`` has no finding."""
    run = str(tmp_path / "run")
    flags = [f"--{name}={value}" for name, value in SMALL.items()]
    assert main(["train", NAME, *flags, "--num-envs=2", "--run", run]) == 0
    for command in (["eval", run, "--episodes=4"], ["play", run, "--text"], ["report", run]):
        assert main(command) == 0
    assert main(["verify", NAME, "--num-envs=2", "--rollout=8", "--chunk=4"]) == 0
    out = capsys.readouterr().out
    assert "Episode 1 of 3, agent player_0, seed 0" in out
    assert "warning" not in out
    assert main(["train", "pettingzoo/tictactoe_v3", *flags]) == 2
    assert "turn-based" in capsys.readouterr().err


def test_others_are_not_taken_for_one():
    """An env with agents as rows; an env of the old gym package is still told what to do."""
    rc.train(TensorWorld(2), steps=16, rollout=8, chunk=4, minibatches=1, progress=False).close()
    with pytest.raises(RecollectError, match="old gym package"):
        rc.train(lambda: types.SimpleNamespace(agents=1, step=None), steps=1, progress=False)
