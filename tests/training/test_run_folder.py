"""Run folders: everything about a run is in it, whatever state the run is in, and nothing more is kept."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

import recollect as rc
from recollect.agent import Agent
from recollect.base.run_files import FILES
from recollect.config.toml_yaml import read_config
from recollect.errors import RecollectError
from recollect.policy import compiled
from recollect.training.metrics import GLOSSARY
from recollect.training.run_folder import Run
from tests.support import doomed
from tests.support.doomed import SMALL, UPDATE, differing, weights
from tests.support.helpers import ScriptedEnv

SETTINGS = SMALL | {"steps": 4 * UPDATE, "keep_checkpoints": 50}
ELSEWHERE = (
    *("rho/", "c/"),
    *("time/", "queue/", "restarts", "actors/", "actor/", "speed/wait"),
)
"""Beginnings of metrics of IMPALA, and of actors in other processes."""
ON_REPLAY = ("deviation/q", "epsilon", "gradient_steps", "loss/q", "q/", "replay/", "td_error")
"""Beginnings of metrics of R2D2 and IQN."""
EVERYTHING = SETTINGS | {
    "eval_every": 2 * UPDATE,
    "eval_episodes": 3,
    "normalise_value": True,
    "normalise_observations": True,
    "refresh_states": True,
    "recompute_advantages": True,
    "recurrent_mode": "burn_in",
    "burn_in_steps": 3,
    "learning_rate_schedule": "cosine",
    "entropy_schedule": "linear",
    "value_clip": 0.2,
    "target_kl": 0.05,
    "gauge_every": 1,
    "epochs": 2,
    "last_action_reward": True,
    "accumulate": 2,
    "recompute_activations": True,
    "l2_init": 1e-3,
    "weight_clip": 3.0,
    "next_obs_coef": 0.1,
    "compile": True,
}


@pytest.fixture(scope="module", autouse=True)
def _cheap_compiler():
    """What is captured is captured anyway; Inductor would spend half a minute on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "BACKEND", "eager")
        yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def _full(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "full"
    rc.train("delayed-cue", run=str(path), **EVERYTHING)
    return path


@pytest.fixture
def full(_full, tmp_path) -> Path:
    """A finished run with every option on."""
    return shutil.copytree(_full, tmp_path / "full")


# The folder ------------------------------------------------------------------------------------------------


def test_what_is_in_the_folder(full):
    """Every file, and nothing else."""
    files = {str(p.relative_to(full)) for p in full.rglob("*") if p.is_file()}
    own = {"run.json", "config.yaml", "glossary.json", "metrics.jsonl", "evaluations.jsonl", "events.jsonl"}
    own |= {"status.json", "lock"}
    checkpoints = {f"checkpoints/{UPDATE * k:012d}/{name}" for k in range(5) for name in FILES}
    assert files == own | checkpoints
    assert Run.is_run(full)
    assert not Run.is_run(full / "checkpoints")


def test_the_description(full):
    """Config, versions and machine of the run: enough to make it again."""
    run = Run(full)
    description = run.description
    assert (description["format"], description["name"], description["env"]) == (1, "full", "delayed-cue")
    assert (run.name, run.path) == ("full", full)
    assert description["config"]["steps"] == 4 * UPDATE
    assert description["config"]["algo"]["rollout"] == 12
    core = description["config"]["policy"]["core"]
    assert (core["name"], core["hidden"]) == ("lstm", 8)
    assert {"recollect", "python", "torch", "numpy", "gymnasium"} <= description["versions"].keys()
    assert description["versions"]["torch"] == metadata.version("torch")
    assert {"system", "cpu", "cores", "gpu"} <= description["machine"].keys()
    assert description["started"].endswith("Z")
    assert description["command"] is None


def test_the_command_is_kept(tmp_path):
    agent = Agent.create("delayed-cue", rc.TrainConfig().override(**doomed.without(SETTINGS, "progress")))
    agent.config = replace(agent.config, run=str(tmp_path / "run"))
    agent.train(UPDATE, progress=False, command=["recollect", "train"])
    assert Run(tmp_path / "run").description["command"] == ["recollect", "train"]


def test_the_config_makes_the_same_run_again(full, tmp_path):
    """config.yaml is ready for --config: the same weights come out."""
    again = rc.train(**read_config(full / "config.yaml"), progress=False)
    assert differing(weights(again), weights(rc.load(full, checkpoint="last"))) == []


def test_the_config_of_a_network_that_a_factory_made(tmp_path):
    """What was built is what is written."""

    def factory(observation_space, action_space):
        config = rc.PolicyConfig(encoder=rc.EncoderConfig(hidden=(5,)), core=rc.GRUConfig(hidden=7))
        return rc.Policy(observation_space, action_space, config)

    path = tmp_path / "run"
    rc.train("delayed-cue", policy=factory, run=str(path), **doomed.without(SETTINGS, "encoder", "core"))
    settings = read_config(path / "config.yaml")
    assert settings["core"] == rc.GRUConfig(hidden=7)
    assert rc.train(**settings, progress=False).policy.config.core == rc.GRUConfig(hidden=7)


def test_the_glossary_covers_every_metric(full):
    """No number without its line, and no line for a number that never comes."""
    run = Run(full)
    assert run.glossary == GLOSSARY
    names = {name for row in run.metrics() for name in row}
    assert len(names) > 40
    free = {"seconds", *(n for n in names if n.startswith(("info/", "staleness/epoch_")))}
    assert names - free <= run.glossary.keys()
    assert {"steps", "return", "lag", "staleness", "deviation/log_prob", "speed/total"} <= names
    missing = run.glossary.keys() - names
    on_a_gpu = {"start_seconds"}  # tests/training/test_gpu_graphs.py
    assert missing - on_a_gpu == {name for name in run.glossary if name.startswith(ELSEWHERE + ON_REPLAY)}


@pytest.mark.usefixtures("warm_children")
def test_the_glossary_covers_runs_with_actors_elsewhere(tmp_path):
    """What one process cannot have: correction of a lag, and how the actors do."""
    settings = {"algo": "impala", "runtime": "processes", "mode": "async", "actors": 2}
    rc.train("delayed-cue", run=str(tmp_path / "run"), **SETTINGS | settings).close()
    run = Run(tmp_path / "run")
    names = {re.sub(r"^actor/\d+/", "actor/N/", name) for row in run.metrics() for name in row}
    assert {name for name in run.glossary if name.startswith(ELSEWHERE)} <= names
    assert names - {"seconds", "staleness/epoch_1"} <= run.glossary.keys()


def test_metrics_are_the_history(full):
    """One row an update; NaN is null in the file and NaN again in the history."""
    run = Run(full)
    assert [row["updates"] for row in run.metrics()] == [1, 2, 3, 4]
    assert all(row["seconds"] > 0 for row in run.metrics())
    history = run.history()
    assert history.column("steps")[1] == [48, 96, 144, 192]
    assert rc.load(full).history.column("entropy") == history.column("entropy")


def test_a_metric_without_a_value_is_null(tmp_path):
    """Strict JSON: other programs read it."""

    def spoil(training, metrics):
        metrics["kl"] = math.nan

    class First(rc.Callback):
        def on_episode(self, training, episode):
            training.metrics["entropy"] = math.inf

    path = tmp_path / "run"
    rc.train("delayed-cue", run=str(path), callbacks=[First(), spoil], **SETTINGS)
    text = (path / "metrics.jsonl").read_text()
    for line in text.splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert "null" in text
    assert any(math.isnan(value) for value in Run(path).history().column("entropy")[1])


def test_evaluations_are_kept_whole(full):
    run = Run(full)
    assert [row["steps"] for row in run.evaluations()] == [96, 192]
    for row in run.evaluations():
        own = {"mode", "mean", "std", "interval", "returns", "lengths"}
        assert row.keys() == {"steps", "seconds", *own, "sampled"}
        assert row["sampled"].keys() == own
        assert (row["mode"], row["sampled"]["mode"]) == ("greedy", "sampled")
        assert row["mean"] == np.mean(row["returns"])
        assert row["interval"][0] <= row["mean"] <= row["interval"][1]
        assert row["lengths"] == [12, 12, 12]
    later = rc.load(full, checkpoint="last").evaluate(5)
    run.add_evaluation(192, later)
    assert run.evaluations()[-1]["returns"] == later.returns.tolist()
    assert len(run.evaluations()) == 3


def test_events_tell_what_happened(full):
    events = Run(full).events()
    assert [event["kind"] for event in events] == ["start", *["checkpoint"] * 5, "stop"]
    assert [event["steps"] for event in events] == [0, 0, 48, 96, 144, 192, 192]
    assert events[0]["text"] == "start at step 0, to step 192"
    assert events[-1]["text"] == "steps"
    assert all(event.keys() == {"steps", "seconds", "time", "kind", "text"} for event in events)


def test_the_status(full):
    status = Run(full).status
    assert (status["state"], status["reason"]) == ("finished", "steps")
    assert (status["steps"], status["end"], status["updates"]) == (192, 192, 4)
    assert status["episodes"] == Run(full).metrics()[-1]["episodes"] == 16
    assert status["seconds"] > 0
    assert status["best"]["checkpoint"] in (f"{96:012d}", f"{192:012d}")
    assert status["best"]["mean"] == max(row["mean"] for row in Run(full).evaluations())


def test_the_commit_is_recorded(tmp_path, monkeypatch):
    """Of the folder that the run was started in, and whether it had changes; none outside of a checkout."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)

    def git(*args: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *args]
        return subprocess.run(
            command, cwd=checkout, check=True, capture_output=True, text=True
        ).stdout.strip()

    monkeypatch.chdir(checkout)
    settings = SETTINGS | {"steps": UPDATE}
    rc.train("delayed-cue", run=str(tmp_path / "none"), **settings)
    git("init", "--quiet")
    (checkout / "mine.py").write_text("x = 1\n")
    git("add", "mine.py")
    git("commit", "--quiet", "-m", "first")
    rc.train("delayed-cue", run=str(tmp_path / "clean"), **settings)
    (checkout / "mine.py").write_text("x = 2\n")
    rc.train("delayed-cue", run=str(tmp_path / "dirty"), **settings)
    commit = git("rev-parse", "HEAD")
    assert Run(tmp_path / "none").description["git"] is None
    assert Run(tmp_path / "clean").description["git"] == {"commit": commit, "dirty": False}
    assert Run(tmp_path / "dirty").description["git"] == {"commit": commit, "dirty": True}


# Making one ------------------------------------------------------------------------------------------------


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    "files",
    [
        {"photo.png": "meow"},
        {"config.yaml": "steps: 100"},
        {"glossary.json": "{}", "photo.png": "meow"},
        {"checkpoints/mine.txt": "x"},
        {"glossary.json": "{}", "checkpoints/mine/weights": "x"},
        {".hidden": "x"},
        {"metrics.jsonl": "{}"},
    ],
    ids=lambda files: "+".join(files),
)
def test_a_folder_with_something_else_in_it_is_refused(files, tmp_path):
    """Nobody's files are overwritten."""
    path = tmp_path / "mine"
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    before = contents(path)
    with pytest.raises(RecollectError, match=r"mine is not empty; choose another folder with run="):
        rc.train("delayed-cue", run=str(path), **SETTINGS)
    assert contents(path) == before


def test_a_file_or_a_run_is_refused(full, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RecollectError, match="file is a file; choose another folder"):
        rc.train("delayed-cue", run=str(tmp_path / "file"), **SETTINGS)
    before = contents(full)
    with pytest.raises(RecollectError, match=r"is a run already.*recollect resume.*run="):
        rc.train("delayed-cue", run=str(full), **SETTINGS)
    assert contents(full) == before


def test_an_empty_folder_and_one_that_is_not_there_are_taken(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "deep" / "deeper"):
        rc.train("delayed-cue", run=str(path), **SETTINGS)
        assert Run(path).status["state"] == "finished"


def test_what_ended_before_its_first_checkpoint_is_begun_anew(tmp_path):
    """The folder of a run that failed at once is no obstacle to the next try."""
    path = tmp_path / "run"

    class Fails(rc.Callback):
        def on_start(self, training):
            raise ZeroDivisionError("at once")

    with pytest.raises(ZeroDivisionError):
        rc.train("delayed-cue", run=str(path), callbacks=[Fails()], **SETTINGS)
    assert Run(path).status["state"] == "failed"
    with pytest.raises(RecollectError, match=r"has no checkpoint yet.*train into the same folder"):
        rc.resume(path, progress=False)
    rc.train("delayed-cue", run=str(path), **SETTINGS)
    assert Run(path).status["state"] == "finished"
    assert Run(path).events()[0]["text"] == "start at step 0, to step 192"


def test_what_is_no_run_is_told(full, tmp_path):
    with pytest.raises(RecollectError, match=r"other .*run\.json; runs beside it: full"):
        Run(tmp_path / "other")
    with pytest.raises(RecollectError, match=r"it has no run\.json$"):
        Run(tmp_path / "deep" / "other")


# Reading ---------------------------------------------------------------------------------------------------


def test_reading_does_not_write(full):
    """Runs may lie where one cannot write, or be somebody else's."""
    before = {p: p.stat().st_mtime_ns for p in full.rglob("*")}
    run = Run(full)
    run.status, run.is_active, run.glossary, run.metrics(), run.evaluations(), run.events(), run.history()
    rc.load(full).evaluate(2)
    assert {p: p.stat().st_mtime_ns for p in full.rglob("*")} == before
    assert repr(run) == f"Run({str(full)!r})"


def test_reading_while_it_trains(tmp_path):
    """Whoever looks between two updates sees whole files that agree with one another."""
    path = tmp_path / "run"
    seen = []

    def look(training, metrics):
        run = Run(path)
        assert [row["updates"] for row in run.metrics()] == list(range(1, training.updates + 1))
        assert run.status["state"] == "running"
        seen.append(rc.load(path, checkpoint="last").steps)

    rc.train("delayed-cue", run=str(path), callbacks=[look], **SETTINGS)
    assert seen == [0, 48, 96, 144]


def test_an_env_without_a_name(tmp_path):
    """Its class is code, and code is not saved."""
    path = tmp_path / "run"
    rc.train(ScriptedEnv, run=str(path), **SETTINGS)
    assert Run(path).description["env"] is None
    assert "env: null" in (path / "config.yaml").read_text()
