"""Sweeps with real runs: whatever ends one, the same command goes on, and nothing is trained twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from recollect.cli import main
from recollect.errors import ConfigError, RecollectError
from recollect.reports.statistics import bootstrap_interval
from recollect.sweep import Sweep
from recollect.training.run_folder import Run
from tests.support import doomed, warm

pytestmark = pytest.mark.usefixtures("warm_children")

TINY = "--num-envs 2 --rollout 16 --chunk 8 --minibatches 1 --epochs 1 --core.hidden 8 --encoder.hidden 8"
FLAGS = f"{TINY} --steps 96 --eval-episodes 4".split()


def sweep_json(path: Path) -> dict[str, Any]:
    return json.loads((path / "sweep.json").read_text())


def states(path: Path) -> dict[str, str]:
    return {
        f"{variant['folder']}/{run['folder']}": run["state"]
        for variant in sweep_json(path)["variants"]
        for run in variant["runs"]
    }


def starts(path: Path) -> dict[str, int]:
    """How often each run was started, by its log."""
    found = {}
    for log in sorted(path.glob("*/*.log")):
        lines = log.read_text().splitlines()
        found[str(log.relative_to(path))] = sum(line.startswith("$ ") for line in lines)
    return found


# Two variants with two seeds each --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep whose last run failed, because somebody had put a file into its folder."""
    path = tmp_path_factory.mktemp("sweep") / "cores"
    command = ["sweep", "delayed-cue", "--core", "lstm,gru", "--seeds", "2", "--out", str(path), *FLAGS]
    sweep = Sweep.plan("delayed-cue", ["--core", "lstm,gru", *FLAGS], seeds=2, out=path)
    assert not path.exists()
    note = path / "core=gru" / "seed-1" / "note.txt"
    note.parent.mkdir(parents=True)
    note.write_text("mine")
    with warm.used():
        assert not sweep.run(jobs=2, progress=False)
    return path, command, sweep


def test_a_run_that_fails_stops_no_other(swept):
    path, _, sweep = swept
    assert states(path) == {
        "core=lstm/seed-0": "finished",
        "core=lstm/seed-1": "finished",
        "core=gru/seed-0": "finished",
        "core=gru/seed-1": "failed",
    }
    ((member, text),) = sweep.failures
    assert member.name == "core=gru seed 1"
    assert "is not empty" in text
    assert "is not empty" in member.log.read_text()
    assert Sweep.open(path).failures[0][1] == text


def test_the_runs_are_those_of_the_command_line(swept, tmp_path):
    """Settings, seeds and numbers are those of ``recollect train``; the cores are shared."""
    path, _, _ = swept
    for core in ("lstm", "gru"):
        config = Run(path / f"core={core}" / "seed-0").description["config"]
        assert config["policy"]["core"]["name"] == core
        assert (config["policy"]["core"]["hidden"], config["steps"], config["num_envs"]) == (8, 96, 2)
    seeds = [Run(path / "core=lstm" / f"seed-{seed}").description["config"]["seed"] for seed in (0, 1)]
    assert seeds == [0, 1]
    assert Run(path / "core=lstm" / "seed-0").description["config"]["threads"] >= 1
    alone = tmp_path / "alone"
    assert (
        main(["train", "delayed-cue", "--core=lstm", *FLAGS, "--run", str(alone), "--quiet", "--no-report"])
        == 0
    )
    ours, theirs = (Run(run) for run in (path / "core=lstm" / "seed-0", alone))
    assert [row["return"] for row in ours.metrics()] == [row["return"] for row in theirs.metrics()]
    assert ours.evaluations()[-1]["mean"] == theirs.evaluations()[-1]["mean"]


def test_the_same_command_again_starts_only_what_failed(swept, capsys):
    """And ends in a table, a report, and the exit code that tells whether all went well."""
    path, command, _ = swept
    before = starts(path)
    (path / "core=gru" / "seed-1" / "note.txt").unlink()
    assert main([*command, "--plain"]) == 0
    out, err = capsys.readouterr()
    changed = {log for log, count in starts(path).items() if count != before[log]}
    assert changed == {"core=gru/seed-1.log"}
    assert set(states(path).values()) == {"finished"}
    assert [line.split()[:2] for line in out.splitlines()[:3]] == [
        ["variant", "seeds"],
        ["core=lstm", "2"],
        ["core=gru", "2"],
    ]
    assert "2 variants x 2 seeds = 4 runs (1 to do, 1 at a time)" in err
    assert f"report: {path / 'report.html'}" in err
    assert "core=gru" in (path / "report.html").read_text()
    # A third time nothing is started; what is known is told as JSON.
    assert main(["sweep", "--resume", str(path), "--json", "--no-report"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    scores = [Run(path / "core=gru" / f"seed-{seed}").evaluations()[-1]["mean"] for seed in (0, 1)]
    assert rows[1]["scores"] == {"0": scores[0], "1": scores[1]}
    assert rows[1]["iqm"] == pytest.approx(sum(scores) / 2)
    assert (rows[1]["low"], rows[1]["high"]) == tuple(bootstrap_interval(scores))
    assert {log for log, count in starts(path).items() if count != before[log]} == changed


def test_a_run_that_ended_before_its_last_evaluation_gets_it(swept, tmp_path):
    path, _, _ = swept
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    shutil.rmtree(copy / "core=gru" / "seed-1")
    file = copy / "core=lstm" / "seed-1" / "evaluations.jsonl"
    before = file.read_text()
    file.unlink()
    sweep = Sweep.open(copy)
    assert [m.left() for m in sweep.members] == ["nothing", "evaluate", "nothing", "train"]
    assert sweep.results()[0].scores[1] is None
    from recollect.sweep.member import evaluate

    evaluate(str(copy / "core=lstm" / "seed-1"))
    assert [json.loads(line)["returns"] for line in file.read_text().splitlines()] == [
        json.loads(line)["returns"] for line in before.splitlines()
    ]
    assert sweep.members[1].left() == "nothing"


def test_another_command_in_the_same_folder_is_refused(swept, capsys):
    path, command, _ = swept
    others = {
        "its seeds are 0; 1, not 0; 1; 2": {"--seeds": "3"},
        "its variants are core=lstm; core=gru, not core=gru; core=lstm": {"lstm,gru": "gru,lstm"},
        "there, not delayed-cue --core=lstm": {"96": "128"},
    }
    for message, changes in others.items():
        words = list(command)
        for old, new in changes.items():
            if old.startswith("--"):
                words[words.index(old) + 1] = new
            else:
                words[words.index(old)] = new
        assert main(words) == 2
        err = capsys.readouterr().err
        assert "holds another sweep" in err
        assert message in err
        assert f"recollect sweep --resume {path}" in err


def damaged(swept: Path, path: Path, file: str, text: str) -> Path:
    """A copy of the sweep: one run that is damaged, one that is gone, the others finished."""
    shutil.copytree(swept, path)
    (path / "core=lstm" / "seed-0" / file).write_text(text)
    shutil.rmtree(path / "core=gru" / "seed-1")
    return path


@pytest.mark.parametrize("file", ["run.json", "status.json"])
def test_a_damaged_run_fails_and_stops_no_other(file, swept, tmp_path, capsys):
    path = damaged(swept[0], tmp_path / "copy", file, '{"format": ')
    assert main(["sweep", "--resume", str(path), "--plain"]) == 1
    out, err = capsys.readouterr()
    assert states(path) == {
        "core=lstm/seed-0": "failed",
        "core=lstm/seed-1": "finished",
        "core=gru/seed-0": "finished",
        "core=gru/seed-1": "finished",
    }
    ((member, text),) = Sweep.open(path).failures
    assert member.name == "core=lstm seed 0"
    assert f"{member.path / file} is damaged" in text
    assert f"failed: {member.name}\n    {text}" in err
    assert [line.split()[:4] for line in out.splitlines()[1:3]] == [
        ["core=lstm", "1", "of", "2"],
        ["core=gru", "2", *out.splitlines()[2].split()[2:4]],
    ]
    assert (path / "report.html").is_file()
    if file == "run.json":  # what the error proposes
        assert text.endswith(f"or remove {member.path} to restart this run")
        shutil.rmtree(member.path)
        assert main(["sweep", "--resume", str(path), "--quiet", "--no-report"]) == 0
        assert set(states(path).values()) == {"finished"}


def test_a_dry_run_tells_of_a_damaged_run(swept, tmp_path, capsys):
    path = damaged(swept[0], tmp_path / "copy", "run.json", "")
    assert main(["sweep", "--resume", str(path), "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[:3] for line in out.splitlines()] == [["recollect", "train", "delayed-cue"]]
    assert "would fail: core=lstm seed 0: " in err
    assert "run.json is damaged" in err


# What needs no run -----------------------------------------------------------------------------------------


def test_a_dry_run_writes_nothing_and_shows_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (
        main(["sweep", "delayed-cue", "--core", "lstm,gru", "--seed", "3,4", "--dry-run", "--jobs=2", *FLAGS])
        == 0
    )
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len(lines) == 4
    # Every variant with the first seed before any with the second.
    words = [[w for w in line.split() if w.startswith(("--core=", "--seed="))] for line in lines]
    assert words == [[f"--core={core}", f"--seed={seed}"] for seed in (3, 4) for core in ("lstm", "gru")]
    assert lines[0].startswith("recollect train delayed-cue --core=lstm")
    assert "--threads=" in lines[0]
    assert "nothing was started" in err
    assert list(tmp_path.iterdir()) == []


def test_threads_that_the_user_chose_stay(tmp_path):
    sweep = Sweep.plan("delayed-cue", [*FLAGS, "--threads=1"], out=tmp_path / "x")
    (member,), jobs = sweep.to_do(8)
    assert (member.threads, jobs) == (None, 1)
    assert [word for word in member.command() or [] if word.startswith("--threads")] == ["--threads=1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sweep"], "which env"),
        (["sweep", "delayed-cue", "--jobs", "0"], "jobs = 0"),
        (["sweep", "delayed-cue", "--task.horizon", "5,-1"], "task.horizon=-1: "),
        (["sweep", "--resume", "."], "is not a sweep: it has no sweep.json"),
        (["sweep", "--resume", ".", "--core", "lstm"], "--core would change it"),
        (["sweep", "--resume", ".", "--seeds", "3"], "--seeds would change it"),
        (["sweep", "a:A", "--resume", ".", "--env=b:B"], "the env is a:A, and --env says b:B"),
        (["sweep", "delayed-cue", "--out", "full"], "full is not empty and holds no sweep"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_written(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").touch()
    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert [p.name for p in tmp_path.rglob("*")] == ["full", "letter.txt"]


def test_the_runs_read_copies_of_config_files(tmp_path, monkeypatch):
    """A file that changes while the sweep goes on changes no run."""
    file = tmp_path / "base.yaml"
    file.write_text("env: delayed-cue\nrollout: 8\nchunk: 8\nminibatches: 1\nnum_envs: 2\n")
    sweep = Sweep.plan(None, [f"--config={file}", "--core=lstm,gru"], out=tmp_path / "x")
    monkeypatch.setattr("recollect.sweep.sweep_folder.run_members", lambda *_, **__: 0)
    sweep.run(progress=False)
    (copy,) = (tmp_path / "x" / "configs").iterdir()
    assert copy.read_text() == file.read_text()
    for member in Sweep.open(tmp_path / "x").members:
        assert f"--config={copy}" in (member.command() or [])
    file.write_text("env: delayed-cue\nsteps: 200\n")
    with pytest.raises(ConfigError, match=f"the file {file} has changed since"):
        Sweep.plan(None, [f"--config={file}", "--core=lstm,gru"], out=tmp_path / "x")
    file.unlink()
    assert len(Sweep.open(tmp_path / "x").to_do()[0]) == 2


def test_failures_are_told_at_the_end(tmp_path, capsys, monkeypatch):
    """With the last lines of the run and where to find the rest, and with exit code 1."""

    def run_members(members: Any, jobs: int, *, on_change: Any, **_: Any) -> int:
        for member in members:
            on_change(member, "running", "")
            on_change(member, "failed", "Traceback ...\nValueError: it broke\nexit code 1")
        return 0

    monkeypatch.setattr("recollect.sweep.sweep_folder.run_members", run_members)
    path = tmp_path / "x"
    assert main(["sweep", "delayed-cue", *FLAGS, "--out", str(path)]) == 1
    out, err = capsys.readouterr()
    assert "all runs seed 0: failed: ValueError: it broke" in err
    end = err[err.index("failed: all runs seed 0") :].splitlines()
    assert [line.strip() for line in end] == [
        "failed: all runs seed 0",
        "Traceback ...",
        "ValueError: it broke",
        "exit code 1",
        f"its log: {path / 'runs' / 'seed-0.log'}",
    ]
    assert out.splitlines()[1].split() == ["all", "runs", "0", "of", "1", "-"]
    assert states(path) == {"runs/seed-0": "failed"}


def test_two_processes_do_not_share_a_sweep(tmp_path):
    sweep = Sweep.plan("delayed-cue", FLAGS, out=tmp_path / "x")
    with sweep._working(), pytest.raises(RecollectError, match="another process runs the sweep"):
        Sweep.plan("delayed-cue", FLAGS, out=tmp_path / "x").run(progress=False)


# Killed, stopped, and gone on with -------------------------------------------------------------------------

GATED = '''
import time
from pathlib import Path

import gymnasium as gym
import numpy as np

class Gated(gym.Env):
    """Waits at its 40th step until the next gate is open; later ones, in a new process, at the next gate."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, folder):
        self.folder, self.count = Path(folder), 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        if self.count == 40:
            gate = next((g for g in ("1", "2") if not (self.folder / f"open-{g}").exists()), None)
            if gate is not None:
                (self.folder / f"at-{gate}").touch()
                limit = time.monotonic() + 120
                while not (self.folder / f"open-{gate}").exists() and time.monotonic() < limit:
                    time.sleep(0.01)
        return np.zeros(1, np.float32), 1.0, self.count % 4 == 0, False, {}
'''


def sweep_in_doomed_process(folder: str, command: list[str]) -> None:
    os.chdir(folder)
    main(command)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere runs outlive a killed sweep")
def test_killed_then_interrupted_then_finished(tmp_path, capsys, monkeypatch):
    """Whoever is killed or stopped, each run goes on from where it was saved, and no process is left."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gated.py").write_text(GATED)
    tiny = TINY.replace("--num-envs 2", "--num-envs 1")
    flags = f"{tiny} --steps 128 --eval-episodes 2 --task.folder {tmp_path}".split()
    command = ["sweep", "gated.py:Gated", *flags, "--out", "gated", "--quiet", "--no-report"]
    run = tmp_path / "gated" / "runs" / "seed-0"

    # The sweep is killed in a way that nobody can handle: the system tells its run, which saves and ends.
    process = doomed.start(sweep_in_doomed_process, str(tmp_path), command)
    doomed.wait_for((tmp_path / "at-1").exists, process)
    process.kill()
    assert doomed.ended(process) == -signal.SIGKILL
    assert states(tmp_path / "gated") == {"runs/seed-0": "running"}
    (tmp_path / "open-1").touch()
    doomed.wait_for(lambda: not Run(run).is_active)
    assert (Run(run).status["state"], Run(run).status["steps"]) == ("stopped", 48)

    # The same command again: it resumes. Ctrl-C is passed on, and the exit code tells of it.
    log, words = run.with_name("seed-0.log"), "stopping after this update"
    before = log.read_text().count(words)  # some systems tell of a parent's death more than once

    def press_ctrl_c() -> None:
        doomed.wait_for((tmp_path / "at-2").exists)
        os.kill(os.getpid(), signal.SIGINT)
        doomed.wait_for(lambda: log.read_text().count(words) > before)
        (tmp_path / "open-2").touch()

    helper = threading.Thread(target=press_ctrl_c, daemon=True)
    helper.start()
    assert main([word for word in command if word != "--quiet"]) == 130
    helper.join(doomed.TIMEOUT)
    assert "Resume: recollect sweep gated.py:Gated --resume gated" in capsys.readouterr().err
    assert states(tmp_path / "gated") == {"runs/seed-0": "stopped"}
    assert Run(run).status["steps"] == 96

    # And once more, now to the end: every step was trained once.
    again = ["sweep", "gated.py:Gated", "--resume", "gated"]
    assert main([*again, "--quiet", "--no-report"]) == 2, "options of one's own env are named again"
    assert main([*again, "--task.folder", str(tmp_path), "--quiet", "--no-report"]) == 0
    assert [event["kind"] for event in Run(run).events() if event["kind"] != "checkpoint"] == [
        *("start", "stop", "resume", "stop", "resume", "stop")
    ]
    assert [row["steps"] for row in Run(run).metrics()] == [16, 32, 48, 64, 80, 96, 112, 128]
    assert Sweep.open("gated").results()[0].scores == {0: 4.0}
    assert starts(tmp_path / "gated") == {"runs/seed-0.log": 3}
    assert not Run(run).is_active
