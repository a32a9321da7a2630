"""Warnings of other packages are shown once per run, not once per process, env or change of a filter."""

from __future__ import annotations

import os
import re
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import recollect as rc
from recollect.base import warnings_once
from recollect.base.child_process import Child

SMALL = {"num_envs": 4, "rollout": 8, "chunk": 4, "minibatches": 1, "steps": 96, "threads": 1}
SMALL |= {"core": rc.LSTMConfig(hidden=4), "progress": False, "eval_every": 32, "eval_episodes": 2}


class Noisy(gym.Env):
    """Warns when it is made, through Gymnasium's logger and without, and in every step."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        gym.logger.warn("Noisy is out of date")
        warnings.warn("made of old parts", UserWarning, stacklevel=1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 5
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        with warnings.catch_warnings():  # Python then forgets the warnings that it has shown
            pass
        warnings.warn("a division by zero", RuntimeWarning, stacklevel=1)
        return np.zeros(2, np.float32), 0.0, self.left == 0, False, {}


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize(
    "more",
    [
        {"actors": 2},
        {"runtime": "processes", "actors": 2},
        {"env_workers": 2},
    ],
    ids="inline processes workers".split(),
)
def test_once_per_run(more, capfd):
    """In all processes together; the next run shows them again."""
    for _ in range(2):
        with warnings.catch_warnings(record=True) as here:
            warnings.simplefilter("default")
            rc.train(Noisy, **SMALL | more).close()
        printed = capfd.readouterr().err
        for text in ("Noisy is out of date", "made of old parts", "a division by zero"):
            shown = sum(text in str(one.message) for one in here)
            shown += len(re.findall(rf"Warning: .*{text}", printed))
            assert shown == 1, text


@pytest.mark.usefixtures("warm_children")
def test_a_log_of_its_own_has_its_own_warnings(tmp_path):
    """There they are of use, and the terminal does not show them."""
    settings = SMALL | {"runtime": "processes", "actors": 2, "run": str(tmp_path / "run")}
    with warnings.catch_warnings(record=True) as here:
        warnings.simplefilter("default")
        rc.train(Noisy, **settings).close()
    assert sum("made of old parts" in str(one.message) for one in here) == 1
    for index in range(2):
        assert "UserWarning: made of old parts" in (tmp_path / f"run/logs/actor-{index}.log").read_text()


def test_nothing_is_left_behind():
    """Neither the hook nor an open file, also after an error; a context inside another is the same one."""

    def fail() -> None:
        with warnings_once.once():
            outer = warnings_once.shared_fd()
            with warnings_once.once():
                assert warnings_once.shared_fd() == outer
            assert warnings_once.shared_fd() == outer
            raise ZeroDivisionError

    show, files = warnings.showwarning, set(os.listdir("/proc/self/fd"))
    with pytest.raises(ZeroDivisionError):
        fail()
    assert warnings_once.shared_fd() is None
    assert warnings.showwarning is show
    assert set(os.listdir("/proc/self/fd")) == files


def _hold(line: Any, fd: int) -> None:
    with warnings_once._locked(fd):
        line.send("held")
        line.recv()


@pytest.mark.usefixtures("warm_children")
def test_a_stopped_process_does_not_block_the_others(monkeypatch):
    """One that holds the lock: the warning is shown all the same."""
    monkeypatch.setattr(warnings_once, "ATTEMPTS", 2)
    with warnings_once.once():
        fd = warnings_once.shared_fd()
        assert fd is not None
        child = Child(_hold, fd, name="holder")
        try:
            assert child.receive(60) == "held"
            assert warnings_once._is_new(fd, "late")
        finally:
            child.stop()
