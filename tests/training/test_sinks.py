"""The metrics in TensorBoard and Weights & Biases: what is written, read back with their own formats."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import recollect as rc
from recollect.acting.evaluate import Evaluation
from recollect.errors import ConfigError
from recollect.training.callbacks import Callback
from recollect.training.run_folder import Run
from recollect.training.sinks import EVALUATION, Sink, TensorBoardSink, WandbSink, exit_code, make_sinks
from tests.support.agents import SMALL, small_agent

PLACE = "recollect.training.sinks.find_spec"


@pytest.fixture(scope="module")
def agent() -> rc.Agent:
    return small_agent()


def make_training(agent: rc.Agent, run: Path | None, steps: int = 0) -> Any:
    if run is not None:
        run.mkdir(exist_ok=True)
    where = None if run is None else SimpleNamespace(path=run)
    return SimpleNamespace(agent=agent, config=agent.config, run=where, steps=steps)


def tell(sink: Sink, training: Any, *steps: int, **more: float) -> None:
    for now in steps:
        training.steps = now
        sink.on_iteration(training, {"steps": float(now), "return": now / 7} | more)


class CtrlC(Callback):
    """Somebody presses it in the first iteration."""

    def on_iteration(self, training: Any, metrics: dict[str, float]) -> None:
        signal.raise_signal(signal.SIGINT)


# Which


def test_sinks_have_names():
    pytest.importorskip("tensorboard")
    assert [type(sink) for sink in make_sinks(["tensorboard", "tensorboard"])] == [TensorBoardSink]
    assert make_sinks(()) == []
    with pytest.raises(ConfigError, match=r"no sink 'tensorbord' \(did you mean 'tensorboard'\?\): choose"):
        make_sinks(["tensorbord"])


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
@pytest.mark.parametrize("spec", [None, SimpleNamespace(origin=None)])
def test_a_missing_package_is_told_before_training(monkeypatch, name, spec):
    """Also if a folder of that name lies here, as those that the two write do."""
    monkeypatch.setattr(PLACE, lambda package: spec)
    with pytest.raises(ConfigError, match=rf"{name} is not installed: pip install 'recollect\[{name}\]'"):
        make_sinks([name])


# What all do


class Kept(Sink):
    """Remembers what it was sent."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.reasons: list[str] = []
        self.fails = False

    def write(self, steps: int, numbers: dict[str, float]) -> None:
        if self.fails:
            raise OSError(28, "No space left on device")
        self.rows.append((steps, numbers))

    def close(self, reason: str) -> None:
        self.reasons.append(reason)
        if self.fails:
            raise OSError(28, "No space left on device")


def test_after_the_first_thousand_one_a_second_and_the_last():
    now = [0.0]
    sink = Kept(burst=10, every=1.0, clock=lambda: now[0])
    training = SimpleNamespace(steps=0)
    sink.on_start(training)  # type: ignore[arg-type]
    for i in range(1, 61):
        now[0] = i / 20
        tell(sink, training, i)
    assert [steps for steps, _ in sink.rows] == [*range(1, 11), 30, 50]
    sink.on_end(training, "steps")  # type: ignore[arg-type]
    assert [steps for steps, _ in sink.rows][-2:] == [50, 60]
    sink.on_end(training, "steps")  # type: ignore[arg-type]
    assert sink.reasons == ["steps"]


def test_what_has_no_value_is_not_sent():
    sink = Kept()
    training = SimpleNamespace(steps=0)
    sink.on_start(training)  # type: ignore[arg-type]
    tell(sink, training, 8, kl=math.nan, entropy=math.inf)
    assert sink.rows == [(8, {"steps": 8.0, "return": 8 / 7, "entropy": math.inf})]


def test_a_failure_is_told_once_and_the_run_goes_on():
    sink = Kept()
    training = SimpleNamespace(steps=0)
    sink.on_start(training)  # type: ignore[arg-type]
    sink.fails = True
    with pytest.warns(RuntimeWarning, match="sink failed .OSError.*the run continues"):
        tell(sink, training, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        tell(sink, training, 2, 3)
        sink.on_evaluation(training, Evaluation(np.ones(3), np.ones(3)))  # type: ignore[arg-type]
        sink.on_end(training, "steps")  # type: ignore[arg-type]
    assert sink.reasons == ["steps"]  # it is closed all the same


def test_before_its_start_a_sink_does_nothing():
    """Another callback may fail first, and then only the end is told."""
    sink = Kept()
    sink.on_end(SimpleNamespace(steps=0), "error: something")  # type: ignore[arg-type]
    assert sink.rows == sink.reasons == []


@pytest.mark.parametrize(
    ("reason", "code"), [("steps", 0), ("target", 0), ("good enough", 0), ("interrupt", 255), ("error: x", 1)]
)
def test_exit_codes(reason, code):
    assert exit_code(reason) == code


# TensorBoard


def events_in(folder: Path) -> Any:
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = module.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def curve(events: Any, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_tensorboard_reads_what_was_measured(tmp_path):
    """All metrics of a real run over env steps, its evaluations and its config."""
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    settings = SMALL | {"steps": 64, "eval_every": 32, "eval_episodes": 4, "sinks": ("tensorboard",)}
    rc.train("delayed-cue", run=str(run), progress=False, **settings)
    events = events_in(run / "tensorboard")
    rows = Run(run).metrics()
    assert len(rows) == 4
    names = {name for row in rows for name in row} - {"steps", "seconds"}
    for name in names:
        expected = [(row["steps"], row[name]) for row in rows if row.get(name) is not None]
        if expected:
            measured = curve(events, name)
            assert [step for step, _ in measured] == [step for step, _ in expected], name
            assert [v for _, v in measured] == pytest.approx([v for _, v in expected], rel=1e-6), name
    scores = Run(run).evaluations()
    assert curve(events, "evaluation/mean") == [(row["steps"], row["mean"]) for row in scores]
    lows = [value for _, value in curve(events, "evaluation/low")]
    assert lows == pytest.approx([row["interval"][0] for row in scores], rel=1e-6)
    assert set(events.Tags()["scalars"]) <= names | set(EVALUATION)
    (text,) = events.Tensors("config/text_summary")
    config = json.loads(text.tensor_proto.string_val[0])
    assert (config["env"], config["num_envs"], config["algo"]["rollout"]) == ("delayed-cue", 2, 8)


def test_a_resumed_run_has_one_curve(tmp_path, agent):
    """What an earlier process wrote after the checkpoint is dropped."""
    pytest.importorskip("tensorboard")
    for start, ends in ((0, (10, 20, 30, 40)), (20, (31, 41))):
        sink = TensorBoardSink()
        training = make_training(agent, tmp_path / "run", start)
        sink.on_start(training)
        tell(sink, training, *ends)
        sink.on_end(training, "steps")
    events = events_in(tmp_path / "run" / "tensorboard")
    assert [step for step, _ in curve(events, "return")] == [10, 20, 31, 41]


def test_advice_and_warnings_are_texts_at_their_step(tmp_path, agent):
    pytest.importorskip("tensorboard")
    sink = TensorBoardSink(tmp_path / "here")
    training = make_training(agent, None)
    sink.on_start(training)
    training.steps = 48
    sink.on_advice(training, "raise learning_rate")
    sink.on_warning(training, "actor 1 died")
    sink.on_end(training, "steps")
    (event,) = events_in(tmp_path / "here").Tensors("advice/text_summary")
    assert (event.step, event.tensor_proto.string_val[0]) == (48, b"raise learning_rate")
    (event,) = events_in(tmp_path / "here").Tensors("warning/text_summary")
    assert (event.step, event.tensor_proto.string_val[0]) == (48, b"actor 1 died")


def test_without_a_run_folder_each_training_has_its_own(tmp_path, agent, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        sink = TensorBoardSink()
        training = make_training(agent, None)
        sink.on_start(training)
        sink.on_end(training, "steps")
    folders = sorted((tmp_path / "tensorboard").iterdir())
    assert len(folders) == 2
    assert all(folder.name.startswith("delayed-cue-2") for folder in folders)


def test_a_place_that_cannot_be_written_stops_the_run_at_once(tmp_path, agent):
    pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="event file for TensorBoard cannot be written"):
        TensorBoardSink(tmp_path / "file").on_start(make_training(agent, None))


# Weights & Biases


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """W&B without a network. What it would send lands in a port of ours, and must not; nor may its helper
    process stay."""
    wandb = pytest.importorskip("wandb")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            monkeypatch.delenv(name)
        for name in ("WANDB_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            monkeypatch.setenv(name, address)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("WANDB_DIR", str(tmp_path / "elsewhere"))
        monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv("WANDB_SILENT", "true")
        yield wandb
        wandb.teardown()
        assert not wandb_processes()
        server.settimeout(0)
        with pytest.raises(BlockingIOError):  # nobody called
            server.accept()


def wandb_processes() -> list[str]:
    """The helper processes that this one has, by Linux's list of processes."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:  # it has just ended
            continue
        state, parent = fields.split()[:2]
        if "wandb" in name and int(parent) == os.getpid() and state != "Z":
            found.append(name)
    return found


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline run: protobuf in LevelDB's log format, in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = file.read_bytes(), 7, b""  # after the header
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if kind == 0:
            break
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record = Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def offline_runs(folder: Path) -> list[dict[str, Any]]:
    """What each offline run of a folder holds."""
    pytest.importorskip("wandb").teardown()  # what its process still holds is written
    found = []
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda f: f.stat().st_mtime):
        records = list(wandb_records(file))
        rows = [
            {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in r.history.item}
            for r in records
            if r.HasField("history")
        ]
        runs = [r.run for r in records if r.HasField("run")]
        config = {
            item.key or item.nested_key[0]: json.loads(item.value_json)
            for r in [*(run.config for run in runs), *(r.config for r in records if r.HasField("config"))]
            for item in r.update
        }
        codes = [r.exit.exit_code for r in records if r.HasField("exit")]
        found.append(
            {
                "id": runs[0].run_id,
                "project": runs[0].project,
                "name": runs[0].display_name,
                "rows": rows,
                "config": config,
                "codes": codes,
            }
        )
    return found


def test_wandb_holds_what_was_measured(tmp_path, offline):
    """A real run and its resume: all numbers, one id, the config, how each part ended; nothing is sent."""
    run = tmp_path / "cue-7"
    settings = SMALL | {"steps": 64, "eval_every": 32, "eval_episodes": 4, "sinks": ("wandb",)}
    with pytest.raises(KeyboardInterrupt):
        rc.train("delayed-cue", run=str(run), progress=False, callbacks=[CtrlC()], **settings)
    rc.resume(run, progress=False, sinks=("wandb",))
    assert offline.run is None
    first, second = offline_runs(run)
    assert first["id"] == second["id"] == (run / "wandb" / "id.txt").read_text().strip()
    assert (first["project"], first["name"]) == ("recollect", "cue-7")
    assert (first["config"]["env"], first["config"]["algo"]["rollout"]) == ("delayed-cue", 8)
    assert (first["codes"], second["codes"]) == ([255], [0])
    sent = [row for part in (first, second) for row in part["rows"]]
    expected = Run(run).metrics()
    losses = [(row["steps"], row["loss/policy"]) for row in sent if "loss/policy" in row]
    assert losses == [(row["steps"], row["loss/policy"]) for row in expected]
    scores = [(row["steps"], row["evaluation/mean"]) for row in sent if "evaluation/mean" in row]
    assert scores == [(row["steps"], row["mean"]) for row in Run(run).evaluations()]
    assert not (tmp_path / "elsewhere").exists()


def test_the_environment_decides(tmp_path, offline, agent, monkeypatch):
    """Project, name and id of a first run."""
    for name, value in {"PROJECT": "mine", "NAME": "called", "RUN_ID": "chosen"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    sink = WandbSink()
    training = make_training(agent, tmp_path / "run")
    assert sink._options(training, offline)["resume"] == "allow"  # offline it makes no difference
    sink.on_start(training)
    assert wandb_processes()  # or the check that none is left would check nothing
    sink.on_end(training, "error: env broke")
    (only,) = offline_runs(tmp_path / "run")
    assert (only["project"], only["name"], only["id"], only["codes"]) == ("mine", "called", "chosen", [1])


def test_a_wandb_run_of_the_program_is_used_and_left_open(tmp_path, offline, agent):
    with offline.init(dir=tmp_path, project="own") as own:
        sink = WandbSink()
        training = make_training(agent, tmp_path / "run")
        sink.on_start(training)
        tell(sink, training, 10)
        sink.on_end(training, "steps")
        own.log({"mine": 1})
    (only,) = offline_runs(tmp_path)
    assert [row.get("return") or row.get("mine") for row in only["rows"]] == [10 / 7, 1]
    assert only["config"]["env"] == "delayed-cue"
    assert not (tmp_path / "run" / "wandb").exists()


def test_a_dead_wandb_does_not_stop_the_run(tmp_path, offline, agent, monkeypatch):
    sink = WandbSink()
    training = make_training(agent, tmp_path / "run")
    sink.on_start(training)
    monkeypatch.setattr(offline.run, "log", lambda *_: (_ for _ in ()).throw(ConnectionResetError("lost")))
    with pytest.warns(RuntimeWarning, match="Weights & Biases failed .ConnectionResetError: lost"):
        tell(sink, training, 10)
    tell(sink, training, 20)
    sink.on_end(training, "steps")
    assert offline.run is None  # closed, or it would seem to go on


def test_a_wandb_that_does_not_start_says_what_to_do(tmp_path, offline, agent, monkeypatch):
    monkeypatch.setattr(offline, "init", lambda **_: (_ for _ in ()).throw(ValueError("no API key")))
    with pytest.raises(ConfigError, match=r"no API key.: log in with `wandb login`, or set WANDB_MODE"):
        WandbSink().on_start(make_training(agent, tmp_path / "run"))
