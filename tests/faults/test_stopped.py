"""Signals, errors, other processes and clocks: the run ends in order, and goes on bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import recollect as rc
from recollect.base import files
from recollect.errors import DivergedError, EnvError, Interrupted, RecollectError
from recollect.training import checkpoints, run_folder, run_loop
from recollect.training.run_folder import Run
from tests.support import doomed
from tests.support.doomed import UPDATE, differing, weights
from tests.support.helpers import ScriptedEnv
from tests.support.whole import SETTINGS, STOPPED, Stop

# Signals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_stops(whole, number, tmp_path):
    """S000-30: after the update; the run is whole, says why, and goes on bit for bit."""
    path, ready, said = tmp_path / "run", tmp_path / "ready", tmp_path / "said"
    settings = SETTINGS | {"checkpoint_every": 1000}
    process = doomed.start(doomed.waits_for_signal, str(path), settings, 3, str(ready), str(said))
    doomed.wait_for(ready.exists, process)
    assert Run(path).status["state"] == "running"
    assert process.pid is not None
    os.kill(process.pid, number)
    assert doomed.ended(process) == 128 + number
    text = json.loads(said.read_text())
    assert (text["type"], text["signal"]) == ("Interrupted", number)
    assert text["text"] == f"stopped at step {STOPPED} and saved"
    assert text["restored"], "the signals mean again what they meant before"
    status = Run(path).status
    assert (status["state"], status["reason"], status["steps"]) == ("stopped", "interrupt", STOPPED)
    assert int(Run(path).checkpoint("last").name) == STOPPED
    assert Run(path).events()[-1]["kind"] == "stop"
    whole.assert_same(path, rc.resume(path, progress=False))


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    """An env that never answers does not keep the process alive."""
    path, ready, said = tmp_path / "run", tmp_path / "ready", tmp_path / "said"
    settings = SETTINGS | {"eval_every": 0, "checkpoint_every": 2 * UPDATE}
    process = doomed.start(doomed.blocks, str(path), settings, str(ready), 3 * 12, str(said))
    doomed.wait_for(ready.exists, process)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    doomed.wait_for(lambda: "Ctrl-C again ends at once" in said.read_text(), process)
    os.kill(process.pid, signal.SIGINT)  # at once: the same Ctrl-C, forwarded by a wrapper
    time.sleep(1.2)
    assert process.is_alive(), "the first lets the update end, which never comes"
    os.kill(process.pid, signal.SIGINT)
    assert doomed.ended(process) != 0
    status = Run(path).status
    assert (status["state"], status["reason"]) == ("stopped", "interrupt")
    assert int(Run(path).checkpoint("last").name) == 2 * UPDATE
    assert rc.resume(path, env=ScriptedEnv, progress=False).steps == 5 * UPDATE


@pytest.mark.usefixtures("warm_children")
def test_a_script_ends_as_after_ctrl_c(tmp_path):
    """What a shell sees of a script without any handling: no success."""
    script = (
        "import sys; from tests.support import doomed; import recollect as rc;"
        "rc.train('delayed-cue', run=sys.argv[1], callbacks=[doomed.WaitForSignal(2, sys.argv[2])],"
        " **doomed.SMALL | {'steps': 480})"
    )
    ready = tmp_path / "ready"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "run"), str(ready)],
        cwd=Path(__file__).parent.parent.parent,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        doomed.wait_for(lambda: ready.exists() or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=doomed.TIMEOUT)
    finally:
        process.kill()
    assert process.returncode != 0
    assert f"stopped at step {2 * UPDATE} and saved" in err
    assert Run(tmp_path / "run").status["reason"] == "interrupt"


def test_signals_without_a_reader_of_stderr(tmp_path, monkeypatch):
    """A daemon whose stderr is closed still stops as asked."""

    def closed(*_: Any) -> int:
        raise OSError(9, "Bad file descriptor")

    def ask(training, metrics):
        if training.updates == 2:
            monkeypatch.setattr(training_os, "write", closed)
            signal.raise_signal(signal.SIGTERM)
            monkeypatch.undo()

    training_os = run_loop.os
    with pytest.raises(Interrupted):
        rc.train("delayed-cue", run=str(tmp_path / "run"), callbacks=[ask], **SETTINGS)
    assert Run(tmp_path / "run").status["reason"] == "interrupt"


# Errors while training -------------------------------------------------------------------------------------


class Fragile(ScriptedEnv):
    """Breaks in one of its steps: raises, or gives NaN."""

    def __init__(self, at: int, how: str):
        super().__init__()
        self.at, self.how = at, how

    def step(self, action):
        obs, reward, *rest = super().step(action)
        self.at -= 1
        if self.at == 0 and self.how == "raises":
            raise RuntimeError("the motor is hot")
        if self.at == 0:
            reward = float("nan")
        return obs, reward, *rest


@pytest.mark.parametrize(
    ("how", "error", "words"), [("raises", RuntimeError, "motor"), ("nan", EnvError, "reward is nan")]
)
def test_an_env_that_fails_loses_nothing(how, error, words, tmp_path):
    """The error reaches the user, the run says so, and what was learned before it is kept."""
    path, settings = tmp_path / "run", SETTINGS | {"eval_every": 0, "checkpoint_every": 1000}
    healthy = rc.train(ScriptedEnv, callbacks=[Stop()], **settings)
    with pytest.raises(error, match=words):
        rc.train(lambda: Fragile(3 * 12 + 5, how), run=str(path), **settings)
    status = Run(path).status
    assert (status["state"], status["steps"]) == ("failed", 3 * UPDATE)
    assert words in status["reason"]
    assert Run(path).events()[-1]["kind"] == "error"
    assert [int(p.name) // UPDATE for p in Run(path).checkpoints()] == [0, 3]
    kept = weights(rc.load(path, checkpoint="last"))
    assert differing(kept, weights(healthy)) == [], "what went wrong is not in it"
    assert rc.resume(path, env=ScriptedEnv, progress=False).steps == 5 * UPDATE


def test_a_diverged_run_keeps_the_checkpoint_before(whole, tmp_path):
    """What has diverged is not saved, and never in the place of what has not."""
    path = tmp_path / "run"
    settings = SETTINGS | {"checkpoint_every": 2 * UPDATE}
    with pytest.raises(DivergedError):
        rc.train("delayed-cue", run=str(path), callbacks=[doomed.Poison(3)], **settings)
    status = Run(path).status
    assert (status["state"], status["steps"]) == ("failed", 3 * UPDATE)
    assert status["reason"].startswith("error: ")
    assert [int(p.name) // UPDATE for p in Run(path).checkpoints()] == [0, 2]
    kept = weights(rc.load(path, checkpoint="last"))
    assert all(tensor.isfinite().all() for tensor in kept.values())
    whole.assert_same(path, rc.resume(path, progress=False))


def test_an_error_in_the_middle_of_an_update_is_honest_about_it(tmp_path, monkeypatch):
    """What is saved then goes on in new episodes, and does not claim to be exact."""
    from recollect.learning.learner import Learner

    path, update = tmp_path / "run", Learner.update

    def fails(self, rollout, progress, *, lag):
        result = update(self, rollout, progress, lag=lag)
        if self.updates == 3:
            raise MemoryError("no more")
        return result

    monkeypatch.setattr(Learner, "update", fails)
    with pytest.raises(MemoryError):
        rc.train("delayed-cue", run=str(path), **SETTINGS | {"checkpoint_every": 1000, "eval_every": 0})
    monkeypatch.undo()
    saved = checkpoints.read(Run(path).checkpoint("last"))
    assert saved.learned.trainer is not None
    assert not any(name.startswith("actor/") for name in saved.learned.trainer.tensors)
    assert rc.resume(path, progress=False).steps == 5 * UPDATE


# Two processes ---------------------------------------------------------------------------------------------


def test_a_run_in_use_is_only_read(whole, stopped, tmp_path):
    """Two processes never train in one folder; the lock is the system's, and goes with its owner."""
    ready = tmp_path / "ready"
    process = doomed.start(doomed.holds_the_lock, str(stopped), str(ready))
    doomed.wait_for(ready.exists, process)
    before = sorted((p, p.stat().st_mtime_ns) for p in stopped.rglob("*") if p.is_file())
    with pytest.raises(RecollectError, match=r"is in use by another process: wait for it, or end it"):
        rc.resume(stopped, progress=False)
    with pytest.raises(RecollectError, match=r"is a run already"):
        rc.train("delayed-cue", run=str(stopped), **SETTINGS)
    assert Run(stopped).is_active
    assert len(Run(stopped).metrics()) == 3
    assert rc.load(stopped, checkpoint="last").steps == STOPPED
    assert sorted((p, p.stat().st_mtime_ns) for p in stopped.rglob("*") if p.is_file()) == before
    process.kill()
    doomed.ended(process)
    assert not Run(stopped).is_active
    whole.assert_same(stopped, rc.resume(stopped, progress=False))


def test_who_looks_does_not_get_in_the_way(stopped, monkeypatch):
    """Asking whether a run is active takes a lock for a moment, which others have to bear."""
    import fcntl

    with (stopped / "lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # somebody asks just now
        assert not Run(stopped).is_active
        monkeypatch.setattr(files.time, "sleep", lambda _: fcntl.flock(other, fcntl.LOCK_UN))
        with Run(stopped).writing():
            assert Run(stopped).is_active
    assert not Run(stopped).is_active


# Clocks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-1e9, 1e9], ids=["back", "forward"])
def test_a_clock_that_is_set_changes_nothing(whole, jump, tmp_path, monkeypatch):
    """Seconds, limits and checkpoints hang on the monotonic clock."""
    path, moment = tmp_path / "run", [time.time()]

    def wall() -> float:
        moment[0] += jump
        return moment[0]

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromtimestamp(2e9 + jump + len(moment), tz)

    monkeypatch.setattr(time, "time", wall)
    monkeypatch.setattr(run_folder, "datetime", Clock)
    settings = SETTINGS | {"max_seconds": 1e4, "checkpoint_every": None}
    rc.train("delayed-cue", run=str(path), callbacks=[Stop()], **settings)
    agent = rc.resume(path, progress=False)
    assert differing(whole.weights, weights(agent)) == []
    seconds = [row["seconds"] for row in Run(path).metrics()]
    assert seconds == sorted(seconds)
    assert 0 < seconds[0] <= seconds[-1] < 1e4
    names = [p.name for p in Run(path).checkpoints()]
    assert f"{UPDATE:012d}" not in names, "a minute has not passed"
    started = datetime.strptime(Run(path).description["started"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert abs(started.timestamp() - (2e9 + jump)) < 10, "or the clock was not the one that was set"


def test_the_monotonic_clock_decides(tmp_path, monkeypatch):
    """Of max_seconds and of a checkpoint a minute; seconds before a resume count."""

    class Monotonic:
        offset = 0.0

        def __call__(self) -> float:
            return real() + self.offset

    real, clock = time.monotonic, Monotonic()
    monkeypatch.setattr(run_loop.time, "monotonic", clock)

    def later(training, metrics):
        clock.offset += {2: 61.0, 4: 5000.0}.get(training.updates, 0.0)

    settings = SETTINGS | {"steps": 20 * UPDATE, "eval_every": 0, "checkpoint_every": None}
    settings |= {"max_seconds": 1000.0, "keep_checkpoints": 9}
    path = tmp_path / "run"
    rc.train("delayed-cue", run=str(path), callbacks=[later], **settings)
    assert Run(path).status["reason"] == "time"
    assert [int(p.name) // UPDATE for p in Run(path).checkpoints()] == [0, 2, 4]
    assert Run(path).status["seconds"] > 5000
    with pytest.raises(RecollectError, match="has used its 1000 seconds"):
        rc.resume(path, progress=False)
    assert (Run(path).status["state"], Run(path).status["reason"]) == ("stopped", "time")
    assert rc.resume(path, progress=False, max_seconds=1e6).steps == 20 * UPDATE
