"""Tracebacks: which frames are the user's, and what a run folder keeps."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

from recollect.base import tracebacks
from recollect.base.child_process import describe_raised, raised_error
from recollect.base.tracebacks import FILE, keeping, kept_in, one_line, user_frames
from recollect.envs.factory import make_env
from recollect.errors import ChildError, ConfigError, EnvError, LostError


class Brittle(gym.Env):
    """Raises in ``reset``, from an error that it has caught."""

    observation_space = action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        try:
            return {}["tail"]
        except KeyError as error:
            raise RuntimeError("no rotor") from error


def raised(work: Any) -> Exception:
    """The error of ``work``, called by Recollect."""
    try:
        with keeping(None):
            work()
    except Exception as error:
        return error
    raise AssertionError("it did not raise")


def reset(make: Any) -> Any:
    return make_env(make, 1).reset(0)


def test_the_frames_of_an_env_with_its_own_cause():
    """Both tracebacks of the env, without the frames of Recollect and without the message."""
    shown = user_frames(raised(lambda: reset(Brittle))).splitlines()
    assert [line for line in shown if line.startswith("  File")] == [
        f'  File "{__file__}", line {line}, in reset' for line in (27, 29)
    ]
    assert shown[0] == "Traceback (most recent call last):"
    assert "KeyError: 'tail'" in shown
    assert shown[-1] == '    raise RuntimeError("no rotor") from error'


def test_an_env_of_a_library_shows_the_frames_of_the_library():
    env = make_env("CartPole-v1", 1)
    env.reset(0)
    env.envs[0].unwrapped.state = None  # pyright: ignore
    shown = user_frames(raised(lambda: env.step(torch.tensor([0]))))
    assert "cartpole.py" in shown
    assert "gym_loop.py" not in shown


def test_errors_of_ours_have_no_frames_of_the_user(monkeypatch):
    """Even if a library raised them, such as a reader of files."""
    for error in (ConfigError("no such setting"), LostError("killed"), ZeroDivisionError("ours")):
        assert user_frames(error) == ""
    monkeypatch.setattr(tracebacks, "_OURS", str(Path(__file__).parent))
    assert user_frames(raised(lambda: int("x"))) == ""


def test_frames_and_summary_cross_processes():
    """Also twice, from an env worker by an actor to the learner; of any error."""
    error = raised(lambda: reset(Brittle))
    for who in ("env worker 0", "actor 1"):
        sent = pickle.loads(pickle.dumps(describe_raised(error)))
        again = raised_error(sent, who)
        assert user_frames(again) == user_frames(error) != ""
        assert one_line(again) == one_line(error)
        error = again
    odd = describe_raised(raised(lambda: Brittle().reset()))
    child = raised_error(odd, "actor 2")
    assert isinstance(child, ChildError)
    assert one_line(child) == "actor 2 failed: RuntimeError: no rotor"
    assert user_frames(child).endswith('raise RuntimeError("no rotor") from error')


def test_an_error_without_a_text_has_its_type():
    class MuteError(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert one_line(MuteError()) == "MuteError"
    assert one_line(KeyError("x")) == "KeyError: 'x'"
    assert one_line(EnvError()) == "EnvError"
    assert describe_raised(MuteError()).summary == "MuteError"


def test_a_run_folder_keeps_the_whole_traceback_once(tmp_path):
    with pytest.raises(EnvError) as caught, keeping(tmp_path), keeping(tmp_path):
        reset(Brittle)
    text = (tmp_path / FILE).read_text()
    assert kept_in(caught.value) == tmp_path / FILE
    assert text.count("The above exception was the direct cause") == 2
    assert "gym_loop.py" in text
    assert "Brittle" in text.splitlines()[0]
    with pytest.raises(KeyError), keeping(tmp_path):
        {}["second"]
    later = (tmp_path / FILE).read_text()
    assert later.startswith(text)
    assert "KeyError: 'second'" in later


@pytest.mark.parametrize("error", [ConfigError("steps = 0"), KeyboardInterrupt()])
def test_what_is_no_failure_is_not_kept(error, tmp_path, monkeypatch):
    monkeypatch.setattr(tracebacks, "_OURS", str(Path(__file__).parent))
    with pytest.raises(type(error)), keeping(tmp_path):
        raise error
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_through_a_link(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyError) as caught, keeping(tmp_path / "run"):
        {}["x"]
    assert not (tmp_path / "elsewhere").exists()
    assert kept_in(caught.value) is None


def test_a_disk_that_fails_does_not_hide_the_error(tmp_path):
    with pytest.raises(KeyError) as caught, keeping(tmp_path / "missing"):
        {}["x"]
    assert kept_in(caught.value) is None
