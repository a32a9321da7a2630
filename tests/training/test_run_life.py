"""The life of a run: which checkpoints stay, what the status says, when it stops, how it goes back."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import recollect as rc
from recollect.acting.evaluate import Evaluation
from recollect.agent import Agent
from recollect.errors import RecollectError
from recollect.training import recorded_episodes
from recollect.training.run_folder import Run
from tests.support import doomed
from tests.support.doomed import SMALL, UPDATE, differing, rows, weights

SETTINGS = SMALL | {"steps": 4 * UPDATE, "keep_checkpoints": 50}


def saved(path: Path) -> list[int]:
    """The checkpoints, as numbers of updates."""
    return [int(folder.name) // UPDATE for folder in Run(path).checkpoints()]


def stop_at(updates: int) -> Any:
    return lambda training, metrics: training.stop("enough") if training.updates == updates else None


@pytest.fixture
def finished(tmp_path) -> Path:
    """A run that has made all its steps."""
    rc.train("delayed-cue", run=str(tmp_path / "finished"), **SETTINGS)
    return tmp_path / "finished"


# Checkpoints -----------------------------------------------------------------------------------------------


def evaluating(monkeypatch: pytest.MonkeyPatch, means: list[float]) -> None:
    """Have the evaluations, one an update, come out with these means."""
    left = iter(means)
    monkeypatch.setattr(
        Agent, "evaluate", lambda self, *_, **__: Evaluation(np.full(3, next(left)), np.full(3, 1))
    )


@pytest.mark.parametrize(
    ("keep", "means", "kept", "best"),
    [
        (1, [1, 2, 3, 4, 5, 6], [6], 6),
        (1, [9, 2, 3, 4, 5, 6], [1, 6], 1),
        (2, [1, 9, 3, 4, 5, 6], [2, 5, 6], 2),
        (3, [1, 2, 3, 4, 9, 6], [4, 5, 6], 5),
        (3, [1, 5, 3, 7, 5, 6], [4, 5, 6], 4),
        (2, [5, 5, 5, 5, 5, 5], [5, 6], 6),
        (2, [-3, -2, -9, -2, -3, -1], [5, 6], 6),
        (2, [math.nan, 1, math.nan, 2, 0, math.nan], [4, 5, 6], 4),
        (50, [6, 5, 4, 3, 2, 1], [0, 1, 2, 3, 4, 5, 6], 1),
    ],
)
def test_the_latest_and_the_best_stay(keep, means, kept, best, tmp_path, monkeypatch):
    """S000-30: keep_checkpoints of the latest, and the best by evaluation (the last of equals)."""
    evaluating(monkeypatch, means)
    path = tmp_path / "run"
    settings = SETTINGS | {"steps": 6 * UPDATE, "eval_every": UPDATE, "keep_checkpoints": keep}
    rc.train("delayed-cue", run=str(path), **settings)
    run = Run(path)
    assert saved(path) == kept
    expected = {"checkpoint": f"{best * UPDATE:012d}", "mean": means[best - 1], "steps": best * UPDATE}
    expected["mode"] = "greedy"
    assert run.status["best"] == expected
    assert run.checkpoint("best").name == expected["checkpoint"]
    assert rc.load(path).steps == best * UPDATE, "the best is what is loaded"
    assert rc.load(path, checkpoint="last").steps == 6 * UPDATE


def test_the_best_is_saved_when_it_is_seen(tmp_path, monkeypatch):
    """Also if no checkpoint was due then."""
    evaluating(monkeypatch, [1, 3, 2, 2])
    settings = SETTINGS | {"eval_every": UPDATE, "checkpoint_every": 1000, "keep_checkpoints": 1}
    agent = rc.train("delayed-cue", run=str(tmp_path / "run"), **settings)
    assert saved(tmp_path / "run") == [2, 4]
    assert agent.run is not None
    monkeypatch.undo()
    assert agent.run.is_better(4)
    assert agent.run.is_better(3), "trained for longer"
    assert not agent.run.is_better(2.9)
    assert not agent.run.is_better(math.nan)


def test_without_evaluations_the_best_is_the_last(tmp_path):
    rc.train("delayed-cue", run=str(tmp_path / "run"), **SETTINGS)
    run = Run(tmp_path / "run")
    assert run.status["best"] is None
    assert run.checkpoint() == run.checkpoint("best") == run.checkpoint("last")


def test_choosing_a_checkpoint(finished):
    run = Run(finished)
    assert run.checkpoint("last") == run.checkpoint(192) == run.checkpoint("192") == run.checkpoints()[-1]
    assert run.checkpoint(0).name == f"{0:012d}"
    assert run.checkpoint("000000000048") == run.checkpoint(48)
    for wrong in (50, "50", "newest", "", -48, "best "):
        with pytest.raises(
            RecollectError, match=r"has no checkpoint .*: choose best, last, or one of 0, 48, 96"
        ):
            run.checkpoint(wrong)
    shutil.rmtree(finished / "checkpoints")
    with pytest.raises(RecollectError, match="has no checkpoint yet"):
        run.checkpoint("last")


# The life of a run -----------------------------------------------------------------------------------------


def test_the_status_over_the_life_of_a_run(tmp_path):
    """new, running, then how it ended, and running again."""
    path, seen = tmp_path / "run", []

    class Look(rc.Callback):
        def on_start(self, training):
            seen.append(("start", Run(path).status["state"], Run(path).is_active))

        def on_iteration(self, training, metrics):
            if training.updates == 2:
                seen.append(("iteration", Run(path).status["state"], Run(path).is_active))

    agent = Agent.create("delayed-cue", rc.TrainConfig().override(**doomed.without(SETTINGS, "progress")))
    with Run.creating(path, agent) as run:
        assert run.status == {"state": "new", "reason": None, "steps": 0, "best": None}
    assert not Run(path).is_active
    rc.train("delayed-cue", run=str(path), callbacks=[Look(), stop_at(2)], **SETTINGS)
    assert seen == [("start", "running", True), ("iteration", "running", True)]
    assert Run(path).status["state"] == "stopped"
    assert not Run(path).is_active

    def fail(training, metrics):
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        rc.resume(path, progress=False, callbacks=[fail])
    assert (Run(path).status["state"], Run(path).status["reason"]) == ("failed", "error: no")
    rc.resume(path, progress=False)
    assert Run(path).status["state"] == "finished"
    kinds = [event["kind"] for event in Run(path).events() if event["kind"] != "checkpoint"]
    assert kinds == ["start", "stop", "resume", "error", "resume", "stop"]


def test_a_killed_run_says_so(finished):
    """Nobody could write it down: it follows from the lock that nobody holds."""
    file = finished / "status.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"state": "running", "reason": None}))
    assert (Run(finished).status["state"], Run(finished).status["reason"]) == (
        "killed",
        "its process is gone",
    )
    with Run(finished).writing():
        assert Run(finished).status["state"] == "running"
    assert json.loads(file.read_text())["state"] == "running", "reading changes nothing"


def test_a_run_that_ends_while_one_looks_was_not_killed(finished, monkeypatch):
    """The lock is let go of after the last status is written, not before."""
    file = finished / "status.json"
    text = file.read_text()
    file.write_text(json.dumps(json.loads(text) | {"state": "running"}))

    def ends(self):
        file.write_text(text)
        return False

    monkeypatch.setattr(Run, "is_active", property(ends))
    assert Run(finished).status["state"] == "finished"


class Constant(gym.Env):
    """Episodes of three steps and a return of 1.5."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.age += 1
        return np.zeros(2, np.float32), 0.5, self.age == 3, False, {}


@pytest.mark.parametrize(
    ("settings", "updates", "state", "reason"),
    [
        ({"steps": 3 * UPDATE}, 3, "finished", "steps"),
        ({"steps": 3 * UPDATE - 1}, 3, "finished", "steps"),
        ({"steps": 1}, 1, "finished", "steps"),
        # 16 episodes an update, all with a return of 1.5
        ({"target_return": 1.5, "target_episodes": 16}, 1, "finished", "target"),
        ({"target_return": 1.5, "target_episodes": 17}, 2, "finished", "target"),
        ({"target_return": 1.5, "target_episodes": 33}, 3, "finished", "target"),
        ({"target_return": 1.5001, "target_episodes": 1}, 5, "finished", "steps"),
        ({"target_return": 1.5, "target_episodes": 1000}, 5, "finished", "steps"),
        ({"max_seconds": 1e-9}, 1, "stopped", "time"),
        ({"max_seconds": 1e9}, 5, "finished", "steps"),
        # whatever comes first
        ({"target_return": 1.5, "target_episodes": 16, "steps": UPDATE}, 1, "finished", "target"),
    ],
    ids=str,
)
def test_stopping(settings, updates, state, reason, tmp_path):
    """S000-30: on steps, on a target return over a window with a minimum of episodes, on wall time; each
    leaves a final checkpoint that loads."""
    path = tmp_path / "run"
    agent = rc.train(
        Constant, run=str(path), **SETTINGS | {"steps": 5 * UPDATE, "checkpoint_every": 1000} | settings
    )
    assert agent.steps == updates * UPDATE
    assert (Run(path).status["state"], Run(path).status["reason"]) == (state, reason)
    last = rc.load(path, checkpoint="last", env=Constant)
    assert last.steps == agent.steps
    assert differing(weights(agent), weights(last)) == []


def test_the_target_looks_at_a_window(tmp_path):
    """S000-30: at the mean of the last episodes, not of all and not of a lucky one."""

    class Improving(Constant):
        played = 0

        def step(self, action):
            obs, _, terminated, truncated, info = super().step(action)
            Improving.played += terminated
            return obs, float(terminated and Improving.played > 40), terminated, truncated, info

    settings = SETTINGS | {"steps": 50 * UPDATE, "num_envs": 1, "minibatches": 1, "rollout": 12}
    agent = rc.train(Improving, run=str(tmp_path / "run"), **settings, target_return=1.0, target_episodes=10)
    recorded = recorded_episodes.EPISODES  # for the report, after the training
    assert Improving.played == 52 + recorded, "ten of the good ones: number 50, its update ends with 52"
    assert agent.steps == 3 * 52
    assert Run(tmp_path / "run").metrics()[-1]["return"] == 1.0


# Going back ------------------------------------------------------------------------------------------------


def test_rewinding_drops_what_came_after(tmp_path, monkeypatch):
    """Checkpoints, metrics and evaluations; the best is then the best of what is left."""
    evaluating(monkeypatch, [1, 5, 3, 7])
    path = tmp_path / "run"
    rc.train("delayed-cue", run=str(path), **SETTINGS | {"eval_every": UPDATE})
    run = Run(path)
    assert run.status["best"]["steps"] == 4 * UPDATE
    with run.writing():
        run.rewind(3 * UPDATE)
    assert saved(path) == [0, 1, 2, 3]
    assert [row["updates"] for row in run.metrics()] == [1, 2, 3]
    assert [row["mean"] for row in run.evaluations()] == [1, 5, 3]
    assert run.status["best"] == {"checkpoint": f"{96:012d}", "mean": 5, "steps": 96, "mode": "greedy"}
    assert run.checkpoint("best").name == f"{96:012d}"
    with run.writing():
        run.rewind(0)
    assert (saved(path), run.metrics(), run.evaluations()) == ([0], [], [])
    assert run.status["best"] is None


def test_a_best_that_was_not_noted_is_found(tmp_path, monkeypatch):
    """The evaluation and its checkpoint are there, but the process was killed before the status was."""
    evaluating(monkeypatch, [1, 5, 3, 4])
    path = tmp_path / "run"
    rc.train("delayed-cue", run=str(path), **SETTINGS | {"eval_every": UPDATE})
    run = Run(path)
    run.update_status(best={"checkpoint": f"{48:012d}", "mean": 1.0, "steps": 48})
    with run.writing():
        run.rewind(192)
    assert run.status["best"] == {"checkpoint": f"{96:012d}", "mean": 5, "steps": 96, "mode": "greedy"}
    shutil.rmtree(run.checkpoint(96))
    with run.writing():
        run.rewind(192)
    of_those = {"checkpoint": f"{192:012d}", "mean": 4, "steps": 192, "mode": "greedy"}
    assert run.status["best"] == of_those, "of those there are"


def test_resuming_from_the_best(tmp_path, monkeypatch):
    """The curve is then as if nothing had come after it."""
    evaluating(monkeypatch, [1, 5, 3, 4])
    path = tmp_path / "run"
    rc.train("delayed-cue", run=str(path), **SETTINGS | {"eval_every": UPDATE})
    monkeypatch.undo()
    before = rows(path)
    rc.resume(path, checkpoint="best", progress=False)
    assert rows(path) == before
    assert [event["text"] for event in Run(path).events() if event["kind"] == "resume"] == [
        "resume at step 96, to step 192"
    ]
