"""Envs by name: tasks and Gymnasium ids stay names, ``module:attr`` is imported."""

from __future__ import annotations

import sys
import textwrap

import gymnasium as gym
import pytest

import recollect as rc
from recollect.envs.env_names import is_importing, resolve_env
from recollect.errors import ConfigError

WORLD = """
    import gymnasium as gym

    class MyEnv(gym.Env):
        observation_space = gym.spaces.Discrete(2)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return 0, {}

        def step(self, action):
            return 0, float(action), True, False, {}

    class Worlds:
        make = MyEnv

    def make_world(size=3):
        return MyEnv()

    LIMIT = 5
    gym.register("named_tests/Mine-v0", entry_point=MyEnv)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, of which nothing stays imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = dict(sys.modules)
    yield tmp_path
    gym.registry.pop("named_tests/Mine-v0", None)
    for name in set(sys.modules) - set(before):
        if name.startswith(("named_", "_env_")):
            del sys.modules[name]


def put(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


@pytest.mark.parametrize("name", ["t-maze", "CartPole-v1", "recollect/TMaze-v0", "anything"])
def test_names_stay_names(name):
    assert resolve_env(name) == name
    assert not is_importing(name)


@pytest.mark.parametrize("name", ["my.module:Env", "file.py:Env", "module:Env-v0"])
def test_what_would_run_code(name):
    assert is_importing(name)


def test_modules_of_the_current_folder(folder):
    put(folder, "named_package/worlds.py", WORLD)
    env = resolve_env("named_package.worlds:MyEnv")
    assert env.__module__ == "named_package.worlds"
    assert resolve_env("named_package.worlds:Worlds.make") is env
    assert isinstance(resolve_env("named_package.worlds:make_world")(size=1), env)
    assert sys.path[0] == str(folder)
    resolve_env("named_package.worlds:MyEnv")
    assert sys.path.count(str(folder)) == 1


def test_files(folder):
    path = put(folder, "deep/named_file.py", "from named_beside import SIZE\n" + textwrap.dedent(WORLD))
    put(folder, "deep/named_beside.py", "SIZE = 3")
    env = resolve_env("deep/named_file.py:MyEnv")
    assert env.__module__ == "named_file"
    assert resolve_env(f"{path}:MyEnv") is env, "imported once"


def test_a_file_with_the_name_of_a_module(folder):
    put(folder, "random.py", WORLD)
    env = resolve_env("random.py:MyEnv")
    assert env.__module__ == "_env_random"
    assert sys.modules["random"].__file__ != str(folder / "random.py")
    assert resolve_env("random.py:MyEnv") is env


def test_versioned_ids_are_gymnasium_s(folder):
    put(folder, "named_ids.py", WORLD)
    assert resolve_env("named_ids:named_tests/Mine-v0") == "named_ids:named_tests/Mine-v0"
    assert sys.path[0] == str(folder), "so that Gymnasium finds the module"
    assert resolve_env("named_ids.py:named_tests/Mine-v0") == "named_tests/Mine-v0"


def test_an_env_of_ones_own_is_trained_on(folder):
    put(folder, "named_mine.py", WORLD)
    agent = rc.train(
        resolve_env("named_mine:MyEnv"), steps=1, rollout=8, chunk=8, minibatches=1, progress=False
    )
    assert agent.steps > 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("named_nowhere:Env", "there is no module 'named_nowhere' in .* or among the installed packages"),
        ("named_ok.sub:Env", "there is no module 'named_ok.sub'"),
        ("nowhere.py:Env", r"there is no file .*nowhere.py"),
        ("named_ok:myenv", r"named_ok has no 'myenv' \(did you mean 'MyEnv'\?\)"),
        ("named_ok:zzz", "named_ok has no 'zzz'$"),
        ("named_ok:Worlds.mak", r"Worlds has no 'mak' \(did you mean 'make'\?\)"),
        ("named_ok:LIMIT", "is of type int: it must be an Env class, or a function that makes a new env"),
        ("named_ok:", "a side of ':' is empty"),
        (":MyEnv", "a side of ':' is empty"),
        ("named_needs:Env", r"importing named_needs failed with ModuleNotFoundError: .*named_absent.*line 2"),
        ("named_fails.py:Env", r"importing named_fails.py failed with ZeroDivisionError: .*line 3\)"),
        ("named_syntax:Env", r"failed with SyntaxError: .*line 2\)"),
    ],
)
def test_what_is_wrong_is_told(folder, name, message):
    put(folder, "named_ok.py", WORLD)
    put(folder, "named_needs.py", "\nimport named_absent")
    put(folder, "named_fails.py", "\n\n1 / 0")
    put(folder, "named_syntax.py", "\ndef")
    with pytest.raises(ConfigError, match=message):
        resolve_env(name)
    assert "named_fails" not in sys.modules
