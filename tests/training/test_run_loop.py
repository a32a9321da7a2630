"""The loop around a trainer: when it evaluates, saves and stops, and what it leaves alone."""

from __future__ import annotations

import gc
import signal
import threading
import types
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

import recollect as rc
from recollect.agent import Agent
from recollect.display import make_display
from recollect.errors import ConfigError, Interrupted, StorageError
from recollect.training.metrics import History
from recollect.training.run_folder import Run
from tests.support.doomed import SMALL, UPDATE, differing, rows, weights, without
from tests.support.helpers import ScriptedEnv

SETTINGS = SMALL | {"steps": 4 * UPDATE, "keep_checkpoints": 50}
HANDLERS = (signal.SIGINT, signal.SIGTERM)


def saved(path: Path) -> list[int]:
    """The steps of the checkpoints."""
    return [int(folder.name) for folder in Run(path).checkpoints()]


def new_agent(env: Any = "delayed-cue", **settings: Any) -> Agent:
    config = without(SETTINGS | settings, "progress")
    return Agent.create(env, rc.TrainConfig().override(**config))


# When ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (1, [0, 48, 96, 144, 192]),
        (48, [0, 48, 96, 144, 192]),
        (50, [0, 96, 144, 192]),  # 50, 100 and 150 are passed; the last one always comes
        (96, [0, 96, 192]),
        (100, [0, 144, 192]),
        (1000, [0, 192]),
        (None, [0, 192]),
    ],
)
def test_checkpoints_come_when_a_multiple_is_passed(every, expected, tmp_path):
    """S000-30: and always one at the beginning and one at the end."""
    rc.train("delayed-cue", run=str(tmp_path / "run"), **SETTINGS | {"checkpoint_every": every})
    assert saved(tmp_path / "run") == expected


@pytest.mark.parametrize(
    ("every", "expected"), [(1, [48, 96, 144, 192]), (50, [96, 144, 192]), (96, [96, 192]), (1000, [])]
)
@pytest.mark.parametrize("at", [None, 1, 2, 3])
def test_evaluations_come_when_a_multiple_is_passed(every, expected, at, tmp_path):
    """S001-5: at the same steps in one piece and after a resume."""

    def stop(training, metrics):
        if training.updates == at:
            training.stop()

    settings = SETTINGS | {"eval_every": every, "eval_episodes": 1, "checkpoint_every": 1000}
    rc.train("delayed-cue", run=str(tmp_path / "run"), callbacks=[stop], **settings)
    if at is not None:
        rc.resume(tmp_path / "run", progress=False)
    assert [row["steps"] for row in Run(tmp_path / "run").evaluations()] == expected


def test_no_checkpoint_is_written_twice(tmp_path):
    """The last update has an evaluation, a checkpoint of its own and the final one: one folder, one event."""
    path, seen = tmp_path / "run", []

    class Look(rc.Callback):
        def on_checkpoint(self, training, path):
            seen.append((path.name, path.stat().st_ino))

    settings = SETTINGS | {"eval_every": 96, "eval_episodes": 1}
    rc.train("delayed-cue", run=str(path), callbacks=[Look()], **settings)
    assert [int(name) for name, _ in seen] == [0, 48, 96, 144, 192]
    assert [folder.stat().st_ino for folder in Run(path).checkpoints()] == [inode for _, inode in seen]
    texts = [event["text"] for event in Run(path).events() if event["kind"] == "checkpoint"]
    assert texts == [name for name, _ in seen]


def test_the_last_metrics_come_back():
    agent = new_agent()
    metrics = agent.train(progress=False)
    assert metrics is agent.history.rows[-1]
    assert (metrics["steps"], metrics["updates"]) == (192, 4)


# Legs ------------------------------------------------------------------------------------------------------


def test_a_second_leg_goes_on_in_the_same_folder(tmp_path):
    """Steps, metrics and checkpoints go on; its end is known to who resumes it."""
    path, ends = tmp_path / "run", []

    class Look(rc.Callback):
        def on_start(self, training):
            ends.append((training.start, training.steps, training.end))

        def on_iteration(self, training, metrics):
            if training.updates == 6:
                training.stop()

    agent = new_agent(run=str(path), checkpoint_every=1000)
    agent.train(progress=False, callbacks=[Look()])
    agent.train(4 * UPDATE, progress=False, callbacks=[Look()])
    assert [row["updates"] for row in Run(path).metrics()] == [1, 2, 3, 4, 5, 6]
    assert saved(path) == [0, 192, 288]
    resumed = rc.resume(path, progress=False, callbacks=[Look()], checkpoint=192)
    assert resumed.steps == 288
    rc.resume(path, progress=False, callbacks=[Look()])
    assert ends == [(0, 0, 192), (192, 192, 384), (192, 192, 384), (192, 288, 384)]
    assert [row["steps"] for row in Run(path).metrics()] == [UPDATE * k for k in range(1, 9)]
    whole = new_agent()
    whole.train(progress=False)
    whole.train(4 * UPDATE, progress=False)
    assert differing(weights(whole), weights(rc.load(path, checkpoint="last"))) == []


def test_a_leg_that_was_over_makes_no_update(tmp_path):
    """Resumed where it ended: told so at once, with nothing changed."""
    path, told = tmp_path / "run", []

    class Look(rc.Callback):
        def on_iteration(self, training, metrics):
            told.append("iteration")

        def on_end(self, training, reason):
            told.append(reason)

    first = rc.train("delayed-cue", run=str(path), **SETTINGS)
    before = rows(path)
    agent = rc.resume(path, checkpoint=192, progress=False, callbacks=[Look()])
    assert told == ["steps"]
    assert differing(weights(first), weights(agent)) == []
    assert rows(path) == before


# Signals and threads ---------------------------------------------------------------------------------------


def test_signals_mean_again_what_they_meant(tmp_path):
    """After the end, after an error and after an interruption."""
    before = [signal.getsignal(number) for number in HANDLERS]
    inside = []

    def look(training, metrics):
        inside.append([signal.getsignal(number) for number in HANDLERS] != before)

    def fail(training, metrics):
        raise ZeroDivisionError

    def interrupt(training, metrics):
        if training.updates == 2:
            signal.raise_signal(signal.SIGTERM)

    for number, callback in enumerate((look, fail, interrupt)):
        with suppress(ZeroDivisionError, Interrupted):
            rc.train("delayed-cue", run=str(tmp_path / str(number)), callbacks=[callback], **SETTINGS)
        assert [signal.getsignal(each) for each in HANDLERS] == before
    assert all(inside)
    assert Run(tmp_path / "2").status["reason"] == "interrupt"


def test_an_interrupt_is_stronger_than_a_callback(tmp_path):
    def both(training, metrics):
        training.stop("mine")
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=r"stopped at step 48 and saved"):
        rc.train("delayed-cue", run=str(tmp_path / "run"), callbacks=[both], **SETTINGS)
    assert Run(tmp_path / "run").status["reason"] == "interrupt"


@pytest.fixture
def _pythons_own_ctrl_c() -> Iterator[None]:
    """Who runs the tests in the background, or in parallel, has switched it off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_pythons_own_ctrl_c")
def test_without_a_folder_ctrl_c_is_pythons_own():
    """There is nothing to save to: the training ends at once, and callbacks are told."""
    told = []

    class Look(rc.Callback):
        def on_iteration(self, training, metrics):
            told.append(training.updates)
            if training.updates == 2:
                signal.raise_signal(signal.SIGINT)
                told.append("not reached")

        def on_end(self, training, reason):
            told.append(reason)

    with pytest.raises(KeyboardInterrupt):
        rc.train("delayed-cue", callbacks=[Look()], **SETTINGS)
    assert told == [1, 2, "interrupt"]


def test_a_training_in_a_thread(tmp_path):
    """Where Python allows no handlers, everything else works."""
    done: list[Any] = []

    def work() -> None:
        done.append(rc.train("delayed-cue", run=str(tmp_path / "run"), **SETTINGS))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(120)
    assert done[0].steps == 4 * UPDATE
    assert differing(weights(done[0]), weights(rc.train("delayed-cue", **SETTINGS))) == []


# Evaluations -----------------------------------------------------------------------------------------------


class Closing(ScriptedEnv):
    made: list[Closing]

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False
        self.made.append(self)

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("fails", [False, True])
def test_the_env_of_evaluations_is_closed(fails):
    """Also after an error: it may hold a simulator."""
    env = type("Counted", (Closing,), {"made": []})

    def fail(training, metrics):
        if fails and training.updates == 3:
            raise ZeroDivisionError

    settings = SETTINGS | {"eval_every": UPDATE, "eval_episodes": 2}
    with suppress(ZeroDivisionError):
        rc.train(env, callbacks=[fail], **settings)
    assert len(env.made) == 4 + 2, "four to train in, two to evaluate in, made once"
    # After an error nobody gets the agent, so that its own envs are closed as well.
    assert [each.is_closed for each in env.made] == [fails] * 4 + [True] * 2


def test_a_config_that_cannot_be_is_refused_before_anybody_is_told(tmp_path):
    """An env object cannot be made twice. Nothing has begun, so the same folder can be used again."""
    told, path = [], tmp_path / "run"

    class Look(rc.Callback):
        def on_start(self, training):
            told.append("start")

        def on_end(self, training, reason):
            told.append("end")

    env = gym.make_vec("recollect/DelayedCue-v0", num_envs=4)
    with pytest.raises(ConfigError, match="eval_every needs a second instance"):
        rc.train(env, run=str(path), callbacks=[Look()], **SETTINGS | {"eval_every": 48})
    assert told == []
    assert rc.train("delayed-cue", run=str(path), **SETTINGS).steps == 192


# Memory ----------------------------------------------------------------------------------------------------


def reachable(root: Any) -> int:
    """How many objects, and numbers in lists, deques and dicts, are kept alive by ``root``."""
    skipped = (type, types.ModuleType, types.FunctionType, types.CodeType, types.FrameType, torch.Tensor)
    seen: dict[int, Any] = {}
    queue = [root]
    while queue:
        value = queue.pop()
        if id(value) in seen or isinstance(value, skipped):
            continue
        seen[id(value)] = value
        queue.extend(gc.get_referents(value))
    return sum(len(value) for value in seen.values() if isinstance(value, list | dict | set | tuple)) + len(
        seen
    )


class Weigh(rc.Callback):
    """Counts what the training holds after some updates."""

    def __init__(self, *updates: int):
        self.updates, self.counts = updates, []

    def on_iteration(self, training, metrics):
        if training.updates in self.updates:
            gc.collect()
            counts, self.counts = self.counts, []
            parts = [training._callbacks.all, training.history, training._advisor, training._trainer.episodes]
            self.counts = [*counts, sum(reachable(part) for part in parts)]

    def on_episode(self, training, episode):
        pass


def test_nothing_grows_with_the_run(tmp_path):
    """S000-18: recorder, display, history, episodes, advisor hold as much after 150 updates as after 75."""
    weigh = Weigh(75, 150)
    settings = {"run": str(tmp_path / "run"), "steps": 150 * UPDATE, "env_kwargs": {"horizon": 1}}
    settings |= {"eval_every": 10 * UPDATE, "eval_episodes": 1, "target_episodes": 20, "keep_checkpoints": 2}
    agent = new_agent(**settings, checkpoint_every=25 * UPDATE)
    agent.history = History(limit=20)
    quiet = make_display("plain", make_console())
    agent.train(progress=False, callbacks=[quiet, rc.EarlyStopping("entropy", patience=10**9), weigh])
    small, large = weigh.counts
    assert Run(tmp_path / "run").metrics()[-1]["episodes"] == 150 * UPDATE / 3
    assert large < small + 75 / 2, "less than one object for two updates: caches come and go"


def make_console() -> Any:
    from rich.console import Console

    return Console(file=open("/dev/null", "w"), width=100)


def test_lines_that_wait_are_bounded(tmp_path, monkeypatch):
    """S000-18: a disk that never comes back ends the run, before memory does."""
    from recollect.base import files
    from recollect.training.recorder import Recorder

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "append_whole", full)
    monkeypatch.setattr(Recorder, "LIMIT", 6)
    with pytest.raises(StorageError, match=r"\.jsonl could not be written: No space left"):
        rc.train("delayed-cue", run=str(tmp_path / "run"), **SETTINGS | {"steps": 100 * UPDATE})
    assert Run(tmp_path / "run").status["state"] == "failed"
    assert 0 < Run(tmp_path / "run").status["updates"] <= 6
