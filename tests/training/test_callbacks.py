"""Callbacks are told everything, in order; they can stop a training, and change nothing else in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import recollect as rc
from recollect.errors import ConfigError
from recollect.training.advice import Advisor
from recollect.training.callbacks import Callback, CallbackList
from recollect.training.run_folder import Run
from recollect.training.trainer import Iteration, Trainer
from tests.support.doomed import SMALL, UPDATE, differing, rows, weights

SETTINGS = SMALL | {"steps": 4 * UPDATE, "eval_every": 2 * UPDATE, "eval_episodes": 3}
EVENTS = tuple(name for name in vars(Callback) if name.startswith("on_"))


class Told(Callback):
    """Remembers what it was told: (event, updates so far, what came with it)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, Any]] = []

    def names(self) -> list[str]:
        return [name for name, _, _ in self.events]


def _remembering(event: str) -> Any:
    def method(self: Told, training: Any, *args: Any) -> None:
        self.events.append((event, training.updates, *(args or (None,))))

    return method


for _event in EVENTS:
    setattr(Told, _event, _remembering(_event))


def raising(event: str) -> Callback:
    def method(self: Callback, training: Any, *_: Any) -> None:
        if training.updates >= 2 or event == "on_start":
            raise ZeroDivisionError(f"in {event}")

    return type("Failing", (Callback,), {event: method})()


def stopping(event: str, at: int) -> Callback:
    def method(self: Callback, training: Any, *_: Any) -> None:
        if training.updates == at:
            training.stop(f"from {event}")

    return type("Stopping", (Callback,), {event: method})()


class Known(gym.Env):
    """Integer rewards, episodes of known lengths; every episode is written down when it ends."""

    log: list[tuple[float, int]]
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.total, self.length = 0.0, 0
        self.limit = int(self.np_random.integers(1, 20))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        reward = float(action) + 0.5
        self.total, self.length = self.total + reward, self.length + 1
        is_over = self.length == self.limit
        if is_over:
            self.log.append((self.total, self.length))
        return self.observation_space.sample(), reward, is_over and self.limit % 2 == 0, is_over, {}


def advised(monkeypatch: pytest.MonkeyPatch, update: int) -> None:
    """Have the trainer warn and the advisor advise after an update."""
    iterate = Trainer.iterate

    def warned(self: Trainer) -> Iteration:
        done = iterate(self)
        return replace(done, warnings=["an actor died"] if done.metrics["updates"] == update else [])

    monkeypatch.setattr(Trainer, "iterate", warned)
    monkeypatch.setattr(
        Advisor, "watch", lambda self, metrics: ["mind the gap"] if metrics["updates"] == update else []
    )


# What is told ----------------------------------------------------------------------------------------------


def test_all_events_come_in_order(tmp_path, monkeypatch):
    """For each update warnings, advice, episodes, the iteration, the evaluation, the checkpoint."""
    advised(monkeypatch, 3)
    told = Told()
    settings = SETTINGS | {"checkpoint_every": 2 * UPDATE, "env_kwargs": {"horizon": 16}}  # 18 steps each
    rc.train("delayed-cue", run=str(tmp_path / "run"), callbacks=[told], **settings)
    ends = (18, 36)  # 12 steps of each of the four envs in an update
    episodes = {u: 4 * sum(12 * (u - 1) < end <= 12 * u for end in ends) for u in range(1, 5)}
    assert episodes == {1: 0, 2: 4, 3: 4, 4: 0}
    expected = ["on_start", "on_checkpoint"]
    for update in range(1, 5):
        expected += ["on_warning", "on_advice"] if update == 3 else []
        expected += ["on_episode"] * episodes[update] + ["on_iteration"]
        if update % 2 == 0:
            expected += ["on_evaluation", "on_checkpoint"]
    assert told.names() == [*expected, "on_end"]
    updates = [updates for _, updates, _ in told.events]
    assert updates == sorted(updates)
    assert [m["updates"] for name, _, m in told.events if name == "on_iteration"] == [1, 2, 3, 4]
    assert [text for name, _, text in told.events if name == "on_warning"] == ["an actor died"]
    assert [text for name, _, text in told.events if name == "on_advice"] == ["mind the gap"]
    assert [event["kind"] for event in Run(tmp_path / "run").events()] == [
        *("start", "checkpoint", "checkpoint", "warning", "advice", "checkpoint", "stop")
    ]
    assert [len(e.returns) for name, _, e in told.events if name == "on_evaluation"] == [3, 3]
    paths = [path for name, _, path in told.events if name == "on_checkpoint"]
    assert [int(path.name) // UPDATE for path in paths] == [0, 2, 4]
    assert told.events[-1] == ("on_end", 4, "steps")


def test_without_a_run_there_are_no_checkpoints():
    told = Told()
    rc.train("delayed-cue", callbacks=[told], **SETTINGS)
    assert "on_checkpoint" not in told.names()
    assert told.names().count("on_evaluation") == 2


def test_a_checkpoint_is_told_when_it_is_there(tmp_path):
    seen = []

    class Look(Callback):
        def on_checkpoint(self, training, path):
            seen.append(rc.load(path).steps == training.steps)
            assert Run(tmp_path / "run").checkpoint("last") == path

    rc.train("delayed-cue", run=str(tmp_path / "run"), callbacks=[Look()], **SETTINGS)
    assert seen == [True] * 5


def test_each_callback_is_told(tmp_path):
    told = [Told(), Told()]
    rc.train("delayed-cue", run=str(tmp_path / "run"), callbacks=told, **SETTINGS)
    assert told[0].names() == told[1].names()
    assert len(told[0].names()) > 10


def test_what_a_callback_can_read():
    """The training's numbers are those of the metrics."""
    seen = []

    def look(training, metrics):
        assert training.metrics is metrics
        assert (training.start, training.end) == (0, 4 * UPDATE)
        assert training.steps == metrics["steps"] == UPDATE * training.updates
        assert training.episodes == metrics["episodes"]
        assert training.history.rows[-1] is metrics
        assert training.agent.config is training.config
        assert training.run is None
        assert training.seconds > 0
        assert "weights" in training.opening
        seen.append(training.updates)

    rc.train("delayed-cue", callbacks=[look], **SETTINGS)
    assert seen == [1, 2, 3, 4]


@pytest.mark.parametrize("num_envs", [1, 4])
def test_episodes_are_those_of_the_env(num_envs):
    """S000-22: return, length and number of every finished episode are what the env itself has counted."""
    log: list[tuple[float, int]] = []
    made = type("Logged", (Known,), {"log": log})
    told = Told()
    rc.train(made, callbacks=[told], **SETTINGS | {"num_envs": num_envs, "eval_every": 0, "minibatches": 1})
    episodes = [(e.return_, e.length) for name, _, e in told.events if name == "on_episode"]
    assert len(episodes) > 10
    if num_envs == 1:
        assert episodes == log
    else:
        assert sorted(episodes) == sorted(log), "each of them once, whatever the row"


# Stopping --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "at", "updates"),
    [
        ("on_start", 0, 1),
        ("on_iteration", 2, 2),
        ("on_episode", 2, 2),
        ("on_evaluation", 2, 2),
        ("on_warning", 3, 3),
        ("on_advice", 3, 3),
        ("on_checkpoint", 1, 1),
        ("on_checkpoint", 0, 1),
        ("on_end", 4, 4),
    ],
)
def test_stop_works_from_every_event(event, at, updates, tmp_path, monkeypatch):
    """S000-30: it ends after that update, with the reason, and with a checkpoint of it."""
    advised(monkeypatch, 3)
    path, told = tmp_path / "run", Told()
    agent = rc.train("delayed-cue", run=str(path), callbacks=[stopping(event, at), told], **SETTINGS)
    assert agent.steps == UPDATE * updates
    reason, state = ("steps", "finished") if event == "on_end" else (f"callback: from {event}", "stopped")
    assert told.events[-1] == ("on_end", updates, reason)
    assert (Run(path).status["state"], Run(path).status["reason"]) == (state, reason)
    assert rc.load(path, checkpoint="last").steps == agent.steps


def test_the_first_who_stops_gives_the_reason(tmp_path):
    told = Told()
    first, second = stopping("on_iteration", 2), stopping("on_episode", 2)
    rc.train("delayed-cue", callbacks=[first, second, told], **SETTINGS)
    assert told.events[-1][2] == "callback: from on_episode", "episodes come before their iteration"


@pytest.mark.parametrize("words", ["error: no", "steps", "target", "interrupt", ""])
def test_a_reason_is_only_words(words, tmp_path):
    """Whatever a callback says, it has stopped the run: nothing failed, and nothing was interrupted."""
    path = tmp_path / "run"
    rc.train("delayed-cue", run=str(path), callbacks=[lambda t, m: t.stop(words)], **SETTINGS)
    assert (Run(path).status["state"], Run(path).status["reason"]) == ("stopped", f"callback: {words}")


# What counts as a callback ---------------------------------------------------------------------------------


def test_functions_count_as_on_iteration():
    """A function, a method, any callable object."""
    seen: list[Any] = []

    class Counter:
        def count(self, training, metrics):
            seen.append(("method", metrics["updates"]))

        def __call__(self, training, metrics):
            seen.append(("object", metrics["updates"]))

    callbacks = [
        lambda training, metrics: seen.append(("function", metrics["updates"])),
        Counter().count,
        Counter(),
    ]
    rc.train("delayed-cue", callbacks=callbacks, **SETTINGS | {"steps": 2 * UPDATE})
    assert seen == [(kind, update) for update in (1, 2) for kind in ("function", "method", "object")]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Told, "holds the class Told: pass an instance"),
        (3, "holds a int"),
        (None, "holds a NoneType"),
        ("print", "holds a str"),
    ],
)
def test_other_things_are_refused_before_training(wrong, words):
    told = Told()
    with pytest.raises(ConfigError, match=words):
        rc.train("delayed-cue", callbacks=[told, wrong], **SETTINGS)
    assert told.names() == []


def test_episodes_are_only_counted_out_to_those_who_ask():
    """A million episodes told to nobody would cost time."""
    assert not CallbackList([Callback(), lambda t, m: None]).wants_episodes
    assert CallbackList([Callback(), Told()]).wants_episodes


# Errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", EVENTS)
def test_an_error_in_a_callback_reaches_the_user_and_the_others_their_end(event, tmp_path, monkeypatch):
    """Whoever has a file to close is told, before and after the one that fails."""
    advised(monkeypatch, 2)
    before, after, path = Told(), Told(), tmp_path / "run"
    with pytest.raises(ZeroDivisionError, match=f"in {event}"):
        rc.train("delayed-cue", run=str(path), callbacks=[before, raising(event), after], **SETTINGS)
    reason = "steps" if event == "on_end" else f"error: in {event}"
    assert before.events[-1][::2] == after.events[-1][::2] == ("on_end", reason)
    assert before.names().count("on_end") == after.names().count("on_end") == 1
    status = Run(path).status
    assert status["state"] == ("finished" if event == "on_end" else "failed")
    if event != "on_start":
        assert rc.load(path, checkpoint="last").steps == status["steps"] >= 2 * UPDATE, "nothing is lost"


def test_an_error_on_top_of_an_error_does_not_hide_it():
    """The first error is raised; the one in on_end is noted."""
    failing = type("Failing", (Callback,), {"on_end": lambda *_: 1 / 0})()
    with pytest.raises(KeyError) as raised:
        rc.train("delayed-cue", callbacks=[failing, lambda t, m: {}["missing"]], **SETTINGS)
    assert raised.value.__notes__ == ["after that, on_end failed too: ZeroDivisionError: division by zero"]


def test_an_error_while_the_error_is_saved_does_not_hide_it(tmp_path):
    def fail(self, training, *_):
        if training.updates == 2:
            raise ZeroDivisionError("again")

    told = Told()
    failing = type("Failing", (Callback,), {"on_checkpoint": fail})()
    with pytest.raises(KeyError) as raised:
        rc.train(
            "delayed-cue",
            run=str(tmp_path / "run"),
            callbacks=[failing, told, lambda t, m: {}["missing"] if t.updates == 2 else None],
            **SETTINGS,
        )
    assert raised.value.__notes__ == ["after that, saving failed too: ZeroDivisionError: again"]
    assert told.events[-1][::2] == ("on_end", "error: 'missing'")
    assert rc.load(tmp_path / "run", checkpoint="last").steps == 2 * UPDATE


def test_a_callback_that_failed_does_not_spoil_the_run(tmp_path):
    """It goes on without it, bit for bit."""
    path = tmp_path / "run"
    whole = rc.train("delayed-cue", **SETTINGS)
    with pytest.raises(ZeroDivisionError):
        rc.train("delayed-cue", run=str(path), callbacks=[raising("on_iteration")], **SETTINGS)
    assert differing(weights(whole), weights(rc.resume(path, progress=False))) == []


# Nothing changes -------------------------------------------------------------------------------------------


class Busy(Told):
    """Draws random numbers, looks at everything, evaluates by itself."""

    def on_iteration(self, training, metrics):
        torch.rand(3)
        torch.manual_seed(training.updates)
        np.random.seed(training.updates)
        training.agent.evaluate(2, eval_mode="sampled")
        training.agent.session(2, deterministic=False).act(np.zeros((2, 3), np.float32))
        training.agent.policy.eval()
        training.agent.policy.train()
        metrics["mine"] = 1.0


@pytest.mark.parametrize(
    "more",
    [
        {"callbacks": [Told(), Busy()]},
        {"eval_every": UPDATE},
        {"progress": "plain"},
        {"progress": "json"},
        {"run": "run"},
        {
            "run": "run",
            "eval_every": UPDATE,
            "checkpoint_every": 1,
            "callbacks": [Busy()],
            "progress": "plain",
        },
        {"run": "run", "sinks": ("tensorboard",)},
    ],
    ids=["callbacks", "evaluations", "plain", "json", "run", "everything", "tensorboard"],
)
def test_watching_changes_nothing(more, tmp_path, monkeypatch, capfd):
    """S001-5, S000-19: weights, metrics and the state of the trainer are bitwise those of a run alone."""
    if "sinks" in more:
        pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    settings = SETTINGS | {"eval_every": 0, "normalise_observations": True, "normalise_value": True}
    alone, watched = rc.train("delayed-cue", **settings), rc.train("delayed-cue", **settings | more)
    assert differing(weights(alone), weights(watched)) == []
    one, two = (agent._trainer.learned(live=True) for agent in (alone, watched))
    assert differing(one.optimizer, two.optimizer) == []
    assert differing(one.trainer.tensors, two.trainer.tensors) == []
    plain = [
        [
            {k: v for k, v in row.items() if not k.startswith("speed/") and k != "mine"}
            for row in agent.history.rows
        ]
        for agent in (alone, watched)
    ]
    assert plain[0] == plain[1]
    if "run" in more:
        assert [{k: v for k, v in row.items() if k != "mine"} for row in rows(Path("run"))] == plain[0]


def test_a_callback_that_changes_the_weights_is_seen():
    """The comparison above can fail."""

    def nudge(training, metrics):
        with torch.no_grad():
            next(training.agent.policy.parameters()).view(-1)[0] += 1e-3

    alone = rc.train("delayed-cue", **SETTINGS)
    assert differing(weights(alone), weights(rc.train("delayed-cue", callbacks=[nudge], **SETTINGS))) != []
