"""Time: limits and the resume after them, the first checkpoint, the steps in status.json."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import recollect as rc
from recollect.cli import main
from recollect.errors import ConfigError, RecollectError
from recollect.training import recorder, run_loop
from recollect.training.run_folder import Run
from tests.support.doomed import SMALL, UPDATE, differing, rows, weights, without

SETTINGS = without(SMALL, "checkpoint_every") | {"steps": 10 * UPDATE, "keep_checkpoints": 99}
TINY = "--num-envs 4 --rollout 16 --chunk 8 --core.hidden 8 --encoder.hidden 8 --threads 1".split()
ENV = """
import gymnasium as gym

class Coin(gym.Env):
    observation_space, action_space = gym.spaces.Discrete(2), gym.spaces.Discrete(2)

    def __init__(self, sides=2):
        self.sides = sides

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return int(action), float(action), False, bool(self.np_random.random() < 0.2), {}
"""


class Clock:
    """The clock of the run loop: it stands still but for what callbacks add."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def ticks(self, seconds: float) -> Any:
        """A callback: every update takes so many seconds."""

        def tick(training: Any, metrics: Any) -> None:
            self.now += seconds

        return tick


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(run_loop.time, "monotonic", clock)
    return clock


class Killed(rc.Callback):
    """Ends a training after some updates without a checkpoint, as a kill does."""

    def __init__(self, updates: int):
        self.updates = updates

    def on_iteration(self, training: Any, metrics: Any) -> None:
        if training.updates == self.updates:
            raise KeyboardInterrupt


def saved(path: Path) -> list[int]:
    """The updates at which there are checkpoints."""
    return [int(p.name) // UPDATE for p in Run(path).checkpoints()]


def steps_on_disk(path: Path) -> int:
    return json.loads((path / "status.json").read_text())["steps"]


# Limits ----------------------------------------------------------------------------------------------------


def test_a_limit_given_on_resume_counts_from_there(tmp_path, clock):
    """The seconds before it do not count; a limit that is not given again is that of the whole run."""
    path, tick = tmp_path / "run", clock.ticks(10)
    rc.train("delayed-cue", run=str(path), max_seconds=30, callbacks=[tick], **SETTINGS)
    assert (Run(path).status["reason"], Run(path).status["updates"]) == ("time", 3)
    with pytest.raises(RecollectError, match=r"has used its 30 seconds: give max_seconds=N"):
        rc.resume(path, progress=False)
    with pytest.raises(ConfigError, match="max_seconds"):
        rc.resume(path, progress=False, max_seconds=-1)
    rc.resume(path, progress=False, max_seconds=20, callbacks=[tick])
    assert (Run(path).status["reason"], Run(path).status["updates"]) == ("time", 5)
    assert Run(path).status["seconds"] == 50


def test_a_killed_leg_uses_up_the_rest_of_its_limit(tmp_path, clock):
    path, tick = tmp_path / "run", clock.ticks(10)
    rc.train("delayed-cue", run=str(path), max_seconds=30, callbacks=[tick], **SETTINGS)
    with pytest.raises(KeyboardInterrupt):
        rc.resume(path, progress=False, max_seconds=40, callbacks=[tick, Killed(5)])
    assert saved(path)[-1] == 4
    rc.resume(path, progress=False, callbacks=[tick])
    assert (Run(path).status["updates"], Run(path).status["seconds"]) == (7, 70)


def test_no_limit_can_be_given(tmp_path, clock):
    path = tmp_path / "run"
    rc.train("delayed-cue", run=str(path), max_seconds=30, callbacks=[clock.ticks(10)], **SETTINGS)
    assert rc.resume(path, progress=False, max_seconds=None).steps == 10 * UPDATE


def resume_line(err: str) -> list[str]:
    (line,) = re.findall(r"^  recollect (resume .*)$", err, re.MULTILINE)
    return shlex.split(line)


def test_the_line_after_the_time_is_up_resumes_the_run(tmp_path, monkeypatch, capsys, clock):
    """With the limit again; its own env is trusted. Copied as it is, it works."""
    (tmp_path / "coin.py").write_text(ENV)
    monkeypatch.chdir(tmp_path)
    flags = ["--run", "my run", "--steps", "6400", "--max-seconds", "30", "--task.sides", "3", "--plain"]
    end = ["--no-report", "--no-eval"]
    advance = run_loop.Training._iterate

    def iterate(training: Any) -> None:
        advance(training)
        clock.now += 10

    monkeypatch.setattr(run_loop.Training, "_iterate", iterate)
    assert main(["train", f"{tmp_path / 'coin.py'}:Coin", *TINY, *flags, *end]) == 0
    line = resume_line(capsys.readouterr().err)
    assert line == ["resume", "my run", "--max-seconds", "30"]
    for updates in (6, 9):
        assert main([*line, *end, "--plain"]) == 0
        assert (Run("my run").status["reason"], Run("my run").status["updates"]) == ("time", updates)
        assert resume_line(capsys.readouterr().err) == line


def test_a_run_that_python_alone_can_resume_says_how(tmp_path, capsys, clock):
    """Its env is a function, which has no name on the command line."""
    from tests.support.helpers import ScriptedEnv

    settings = without(SETTINGS, "progress") | {"max_seconds": 30, "run": str(tmp_path / "run")}
    rc.train(lambda: ScriptedEnv(), progress="plain", callbacks=[clock.ticks(10)], **settings)
    assert re.search(r"  recollect\.resume\('.*run', env=\.\.\., max_seconds=30\)\n", capsys.readouterr().err)


# Checkpoints -----------------------------------------------------------------------------------------------


def test_the_first_checkpoint_comes_early(tmp_path, clock):
    """After 10 seconds, then one a minute; after a resume, again after 10 seconds."""
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        rc.train("delayed-cue", run=str(path), callbacks=[clock.ticks(10), Killed(8)], **SETTINGS)
    assert saved(path) == [0, 1, 7]
    rc.resume(path, progress=False, callbacks=[clock.ticks(10)])
    assert saved(path) == [0, 1, 7, 8, 10]


def test_a_run_killed_after_20_seconds_goes_on_bit_for_bit(tmp_path, clock):
    """From its early checkpoint, not from the start."""
    whole = rc.train("delayed-cue", run=str(tmp_path / "whole"), **SETTINGS)
    path, resumed = tmp_path / "run", []
    with pytest.raises(KeyboardInterrupt):
        rc.train("delayed-cue", run=str(path), callbacks=[clock.ticks(5), Killed(4)], **SETTINGS)
    agent = rc.resume(path, progress=False, callbacks=[lambda training, _: resumed.append(training.updates)])
    assert resumed[0] == 3
    assert differing(weights(whole), weights(agent)) == []
    assert rows(path) == rows(tmp_path / "whole")


def test_steps_between_checkpoints_are_the_users(tmp_path, clock):
    """With ``checkpoint_every`` no clock decides."""
    path, settings = tmp_path / "run", SETTINGS | {"checkpoint_every": 4 * UPDATE}
    rc.train("delayed-cue", run=str(path), callbacks=[clock.ticks(100)], **settings)
    assert saved(path) == [0, 4, 8, 10]


# Status ----------------------------------------------------------------------------------------------------


def test_the_status_has_the_steps_of_now(tmp_path, clock):
    """No older than two seconds, while no checkpoint is written."""
    path, made, ages = tmp_path / "run", {0.0: 0}, []

    def look(training: Any, metrics: Any) -> None:
        made.setdefault(training.seconds, training.steps)
        status = json.loads((path / "status.json").read_text())
        assert status["steps"] == made[status["seconds"]]
        ages.append(training.seconds - status["seconds"])
        clock.now += 0.75

    rc.train("delayed-cue", run=str(path), callbacks=[look], checkpoint_every=10**6, **SETTINGS)
    assert max(ages) == 1.5
    assert steps_on_disk(path) == 10 * UPDATE


def test_the_status_after_a_kill_and_a_resume(tmp_path, clock, monkeypatch):
    """The steps that were made; from the resume on, those that it starts from."""
    path, tick = tmp_path / "run", clock.ticks(2)
    monkeypatch.setattr(recorder.Recorder, "on_end", lambda *_: None)  # a kill leaves no time for it
    with pytest.raises(KeyboardInterrupt):
        rc.train("delayed-cue", run=str(path), callbacks=[tick, Killed(9)], **SETTINGS)
    monkeypatch.undo()
    assert saved(path) == [0, 5]
    status = Run(path).status
    assert (status["state"], status["steps"], status["updates"]) == ("killed", 9 * UPDATE, 9)
    seen = []

    class Look(rc.Callback):
        def on_start(self, training: Any) -> None:
            seen.append(steps_on_disk(path))

    monkeypatch.setattr(recorder.Recorder, "on_start", lambda *_: None)
    rc.resume(path, progress=False, callbacks=[Look()])
    assert seen == [5 * UPDATE], "the rewind says it, before anything else can fail"
    assert Run(path).status["steps"] == 10 * UPDATE
