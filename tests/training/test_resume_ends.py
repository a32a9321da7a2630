"""Runs that end, fail or are refused in the middle, and what is there for the next to go on with."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import recollect as rc
from recollect.errors import ConfigError, RecollectError
from recollect.training.run_folder import Run
from tests.support.helpers import ScriptedEnv
from tests.support.resumed import SMALL, STEPS, Stop, rows


def test_an_agent_from_a_run_is_free_of_its_folder(tmp_path):
    """Loaded, it may train on without a folder, or in a new one; the run stays as it was."""
    path = tmp_path / "run"
    rc.train("delayed-cue", steps=96, run=str(path), **SMALL)
    agent = rc.load(path)
    assert agent.train(48, progress=False)["steps"] == 144
    assert agent.run is None
    assert Run(path).status["steps"] == 96


def test_a_solved_run_trains_on_past_its_target(tmp_path):
    path = tmp_path / "run"
    settings = SMALL | {"target_return": -1.0, "target_episodes": 1}
    agent = rc.train("delayed-cue", steps=STEPS, run=str(path), **settings)
    assert (Run(path).status["reason"], agent.steps) == ("target", 48)
    assert rc.resume(path, steps=144, progress=False).steps == 192


def test_training_twice_goes_on_with_the_clock_and_takes_one_callback_alone(tmp_path):
    agent = rc.train("delayed-cue", steps=96, run=str(tmp_path / "run"), callbacks=Stop(48), **SMALL)
    assert agent.steps == 48
    agent.train(48, progress=False, callbacks=lambda training, metrics: None)
    seconds = [row["seconds"] for row in Run(tmp_path / "run").metrics()]
    assert seconds == sorted(seconds)
    assert seconds[-1] > 0


class Raising(rc.Callback):
    """Fails at the start of a training, or at a number of steps."""

    def __init__(self, at: int | None = None):
        self.at = at

    def on_start(self, training):
        if self.at is None:
            raise RuntimeError("at the start")

    def on_iteration(self, training, metrics):
        if self.at is not None and training.steps >= self.at:
            raise RuntimeError("on the way")


@pytest.mark.parametrize("at", [None, 144])
def test_a_leg_that_died_early_is_not_forgotten(at, tmp_path):
    """Nothing of it is in a checkpoint yet, but how far it was to go is known."""
    path = tmp_path / "run"
    settings = SMALL | {"checkpoint_every": 10**6}
    rc.train("delayed-cue", steps=96, run=str(path), **settings)
    with pytest.raises(RuntimeError):
        rc.resume(path, steps=192, progress=False, callbacks=[Raising(at)])
    assert rc.resume(path, progress=False).steps == 288
    straight = tmp_path / "straight"
    rc.train("delayed-cue", steps=96, run=str(straight), **settings)
    rc.resume(straight, steps=192, progress=False)
    if at is None:
        assert rows(path) == rows(straight)


@pytest.mark.parametrize("steps", [0, -5])
def test_a_leg_has_steps(steps, tmp_path):
    path = tmp_path / "run"
    rc.train("delayed-cue", steps=96, run=str(path), **SMALL)
    with pytest.raises(ConfigError, match=f"steps = {steps}: it must be at least 1"):
        rc.resume(path, steps=steps, progress=False)
    assert Run(path).status["steps"] == 96


def test_a_run_whose_time_is_used_up_says_so(tmp_path):
    path = tmp_path / "run"
    rc.train("delayed-cue", steps=STEPS, run=str(path), max_seconds=1e-9, **SMALL)
    with pytest.raises(RecollectError, match=r"1e-09 seconds.*max_seconds"):
        rc.resume(path, progress=False)
    assert rc.resume(path, progress=False, max_seconds=None).steps == STEPS


def test_a_target_is_passed_from_any_checkpoint(tmp_path):
    path = tmp_path / "run"
    rc.train("delayed-cue", steps=STEPS, run=str(path), target_return=-1.0, target_episodes=1, **SMALL)
    assert rc.resume(path, steps=144, checkpoint=48, progress=False).steps == 192


def test_a_run_without_its_checkpoints_is_not_overwritten(tmp_path):
    """Somebody removed them to save space: the metrics are still worth keeping."""
    path = tmp_path / "run"
    rc.train("delayed-cue", steps=96, run=str(path), **SMALL)
    shutil.rmtree(path / "checkpoints")
    with pytest.raises(RecollectError, match="is a run already"):
        rc.train("delayed-cue", steps=48, run=str(path), **SMALL)
    assert len(Run(path).metrics()) == 2


def test_the_last_evaluation_counts_for_the_best(tmp_path):
    path = tmp_path / "run"
    agent = rc.train("delayed-cue", steps=96, run=str(path), eval_every=48, eval_episodes=4, **SMALL)
    assert agent.run is not None
    agent.run.add_evaluation(96, rc.Evaluation(np.full(3, 99.0), np.full(3, 1)))
    assert Run(path).status["best"]["mean"] == 99.0
    assert rc.load(path).steps == 96


def test_an_evaluation_that_failed_is_made_up(tmp_path, monkeypatch):
    path = tmp_path / "run"
    settings = SMALL | {"eval_every": 96, "eval_episodes": 2}
    evaluate = rc.Agent.evaluate
    monkeypatch.setattr(rc.Agent, "evaluate", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        rc.train("delayed-cue", steps=192, run=str(path), **settings)
    monkeypatch.setattr(rc.Agent, "evaluate", evaluate)
    rc.resume(path, progress=False)
    assert len(Run(path).evaluations()) == 2


class Counted(ScriptedEnv):
    """Knows how many of its kind are open."""

    open = 0

    def __init__(self, size: Any = None):
        super().__init__()
        Counted.open += 1

    def close(self) -> None:
        Counted.open -= 1


def test_no_env_is_left_open(tmp_path):
    """Whatever fails, and whoever would have got the agent."""
    with pytest.raises(ConfigError):
        rc.train(Counted, minibatches=1000, progress=False)
    with pytest.raises(RuntimeError, match="on the way"):
        rc.train(Counted, steps=96, run=str(tmp_path / "run"), callbacks=[Raising(48)], **SMALL)
    with pytest.raises(RuntimeError, match="at the start"):
        rc.resume(tmp_path / "run", env=Counted, progress=False, callbacks=[Raising()])
    assert Counted.open == 0


def test_options_of_another_world_are_told(tmp_path):
    """By name they are dropped; a callable gets them from the user alone, and says if it takes none."""
    path = tmp_path / "run"
    rc.train("delayed-cue", steps=96, run=str(path), env_kwargs={"horizon": 5}, **SMALL)
    assert rc.load(path, env="recollect/DelayedCue-v0").evaluate(2).lengths.tolist() == [12, 12]
    with pytest.raises(ConfigError, match=r"options for the env ScriptedEnv.*env_kwargs=\{'horizon': 5\}"):
        rc.load(path, env=ScriptedEnv).evaluate(2)
    with pytest.raises(ConfigError, match=r"ScriptedEnv does not take the options \{'horizon': 5\}"):
        rc.load(path, env=ScriptedEnv, env_kwargs={"horizon": 5}).evaluate(2)
    with pytest.raises(ConfigError, match="torch sees no GPU here"):
        rc.load(path, device="cuda:9")


def test_keys_that_json_changes_are_not_saved_silently(tmp_path):
    with pytest.warns(UserWarning, match="env_kwargs"):
        rc.train(Counted, steps=96, run=str(tmp_path / "run"), env_kwargs={"size": {0: "a"}}, **SMALL)


@pytest.mark.usefixtures("warm_children")
def test_three_that_start_together_do_not_share_a_folder(tmp_path):
    """One of them gets it; what it describes is what it holds."""
    code = (
        "import sys, recollect as rc;"
        "rc.train('delayed-cue', run=sys.argv[1], seed=int(sys.argv[2]), steps=96, num_envs=4, rollout=12,"
        " chunk=4, core=rc.LSTMConfig(hidden=8), progress=False)"
    )
    path = tmp_path / "run"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), str(seed)], stderr=subprocess.PIPE, text=True
        )
        for seed in range(3)
    ]
    errors = [process.communicate(timeout=120)[1] for process in started]
    assert sorted(process.returncode for process in started) == [0, 1, 1], errors
    run = Run(path)
    winner = next(seed for seed, process in enumerate(started) if process.returncode == 0)
    assert run.description["config"]["seed"] == rc.load(path).config.seed == winner
    assert [row["steps"] for row in run.metrics()] == [48, 96]


def test_no_training_inside_of_itself():
    def again(training, metrics):
        training.agent.train(48, progress=False)

    with pytest.raises(ConfigError, match="is in training already"):
        rc.train("delayed-cue", steps=96, callbacks=[again], **SMALL)


def test_a_refused_training_leaves_the_one_under_way_as_it_was():
    ends: list[int] = []

    def again(training, metrics):
        with pytest.raises(ConfigError):
            training.agent.train(48, progress=False)
        ends.append(training.end)

    assert rc.train("delayed-cue", steps=192, callbacks=[again], **SMALL).steps == 192
    assert ends == [192] * 4


def test_a_stop_reaches_an_evaluation_that_never_ends(tmp_path):
    """Of an env without a time limit: it is given up, and the run ends as asked."""

    class Endless(ScriptedEnv):
        def step(self, action):
            obs, reward, *_ = super().step(action)
            self.left = 10**9
            return obs, reward, False, False, {}

    path = tmp_path / "run"
    settings = SMALL | {"eval_every": 48, "max_seconds": 2.0}
    rc.train(Endless, steps=STEPS, run=str(path), **settings)
    assert Run(path).status["reason"] == "time"
    assert Run(path).evaluations() == []


def test_paths_may_begin_at_home_and_be_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    rc.train("delayed-cue", steps=48, run="~/one", **SMALL)
    rc.train("delayed-cue", steps=48, run=tmp_path / "two", **SMALL)
    assert rc.load("~/one").steps == rc.load(tmp_path / "two").steps == 48
