"""The command line as people use it: in a process of its own, with real signals."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

import recollect as rc
from recollect.cli import COMMANDS, main
from recollect.training.run_folder import Run

TINY = "--num-envs 4 --rollout 16 --chunk 8 --core.hidden 8 --encoder.hidden 8 --threads 1".split()


def start(*args: str, cwd: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"COLUMNS": "80"}
    return subprocess.Popen(
        [sys.executable, "-m", "recollect", *args],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Under nohup the tests themselves ignore it, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )


def call(*args: str, cwd: Path) -> tuple[int, str, str]:
    process = start(*args, cwd=cwd)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def here(capsys, *args: str) -> tuple[int, str, str]:
    """In this process: quicker, where no signal and no import matters."""
    code = main(args)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def trained(tmp_path, monkeypatch) -> Path:
    """A finished run in the current folder."""
    monkeypatch.chdir(tmp_path)
    run = ["--run", "runs/one", "--steps", "256", "--eval-every", "128", "--eval-episodes", "4"]
    assert main(["train", "delayed-cue", *TINY, *run, "--quiet", "--no-report"]) == 0
    return tmp_path / "runs" / "one"


def test_help_needs_no_torch():
    """Nor does any other heavy import slow down the first contact."""
    code = textwrap.dedent("""
        import sys
        from recollect.cli import main
        for args in (["--help"], ["train", "--help"], ["train", "--help", "all"], ["resume", "--help"]):
            assert main(args) == 0, args
        heavy = {"torch", "matplotlib", "IPython", "wandb", "tensorboard"} & set(sys.modules)
        assert not heavy, heavy
    """)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert re.search(rf"^\s*{name}\s", done.stdout, re.MULTILINE), name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_in_80_columns(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = here(capsys, name, "--help")
    assert code == 0
    assert len(out.splitlines()) > 5
    assert max(map(len, out.splitlines())) <= 80


def test_a_run_from_beginning_to_end(trained, capsys):
    """S000-30: train, evaluate, go on, evaluate again."""
    assert Run(trained).status["state"] == "finished"
    code, out, _ = here(capsys, "eval", str(trained), "--episodes", "7", "--json")
    assert code == 0
    assert len(json.loads(out)["returns"]) == 7
    code, out, _ = here(capsys, "eval", str(trained), "--task.horizon", "3")
    assert "length 5," in out
    code, _, err = here(capsys, "resume", str(trained))
    assert (code, "--steps N" in err) == (2, True)
    assert main(["resume", str(trained), "--steps", "128", "--quiet", "--no-report", "--no-eval"]) == 0
    assert Run(trained).status["steps"] == 384


def test_config_files_and_flags_agree(trained, capsys, tmp_path):
    """The config that a run saved makes the same run again; flags go on top."""
    again = ["--config", str(trained / "config.yaml"), "--quiet", "--no-report", "--no-eval"]
    assert main(["train", *again, "--run", "runs/two"]) == 0
    assert main(["train", *again, "--run", "runs/three", "--seed", "5"]) == 0
    one, two, three = (
        rc.load(tmp_path / "runs" / name).policy.state_dict() for name in ("one", "two", "three")
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], three[name]) for name in one)
    code, out, _ = here(capsys, "train", "--config", str(trained / "config.yaml"), "--print-config")
    assert code == 0
    assert out == (trained / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("trian x", "did you mean 'train'"),
        ("train", "which env? recollect train ENV"),
        ("train delayd-cue --quiet", "did you mean 'delayed-cue'"),
        ("train delayed-cue --learing-rate 1", "did you mean --learning-rate"),
        ("train delayed-cue --task.horizn 1", "did you mean 'horizon'"),
        ("train delayed-cue --core.hiden 4", "did you mean 'hidden'"),
        ("train delayed-cue --steps many", "it needs a whole number"),
        ("train delayed-cue --chunk 999 --quiet", "lower chunk, raise rollout"),
        ("train delayed-cue --config nowhere.yaml", "there is no such file"),
        ("train nowhere:Env --quiet", "nowhere"),
        ("eval nowhere", "there is no folder nowhere"),
        ("resume nowhere", "is not a run"),
        ("report nowhere", "nowhere"),
    ],
)
def test_mistakes_are_told_in_a_line(args, words, capsys, tmp_path, monkeypatch):
    """S000-26: what, and the fix; no traceback, no folder left behind, exit code 2."""
    monkeypatch.chdir(tmp_path)
    code, _, err = here(capsys, *args.split())
    assert code == 2
    assert words in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_names_of_other_libraries_are_answered_with_ours(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--total-timesteps", "64", "--lr", "1e-4", "--ent-coef", "0.02", "--plain", "--no-report"]
    code, _, err = here(capsys, "train", "delayed-cue", *TINY, *flags, "--no-eval", "--run", "run")
    assert code == 0
    for ours in ("--steps", "--learning-rate", "--entropy"):
        assert f"is called {ours}" in err
    config = Run("run").description["config"]
    assert (config["steps"], config["algo"]["learning_rate"], config["algo"]["entropy"]) == (64, 1e-4, 0.02)


@pytest.mark.usefixtures("warm_children")
def test_json_is_for_programs(tmp_path):
    code, out, err = call(
        "train", "delayed-cue", *TINY, "--steps", "128", "--json", "--no-report", cwd=tmp_path
    )
    assert code == 0, err
    events = [json.loads(line) for line in out.splitlines()]
    assert [e["steps"] for e in events if e["event"] == "iteration"] == [64, 128]
    assert err == ""


def wait_for(condition, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGHUP, 129),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),  # tests/faults/test_stopped.py has it
    ],
)
def test_a_signal_saves_and_says_how_to_go_on(number, code, tmp_path):
    """S000-30: the run ends after its update, and the command that is printed goes on bit for bit."""
    steps = ["--steps", "100k", "--run", "run", "--plain", "--no-report"]
    process = start("train", "delayed-cue", *TINY, *steps, cwd=tmp_path)
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.is_file() and metrics.read_text().count("\n") >= 3, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in err
    assert "recollect resume run" in err
    run = Run(tmp_path / "run")
    assert run.status["state"] == "stopped"
    assert run.status["reason"] == "interrupt"
    stopped = run.status["steps"]
    assert int(run.checkpoints()[-1].name) == stopped
    goal = stopped + 128
    assert main(["resume", str(run.path), "--steps", "128", "--quiet", "--no-report", "--no-eval"]) == 0
    assert run.status["steps"] == goal


OWN = """
import gymnasium as gym

class Coin(gym.Env):
    observation_space, action_space = gym.spaces.Discrete(2), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return int(action), float(action), False, bool(self.np_random.random() < 0.2), {}
"""


def test_an_env_of_ones_own_is_named_again(tmp_path, capsys, monkeypatch):
    """A run never makes Recollect import what it names; the user does."""
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def command(*args: str) -> tuple[int, str, str]:
        sys.modules.pop("mine", None)
        return here(capsys, *args)

    flags = ["--steps", "64", "--run", "run", "--quiet", "--no-report"]
    code, _, err = command("train", "mine:Coin", *TINY, *flags)
    assert code == 0, err
    shutil.copytree("run", "copied")
    code, _, err = command("eval", "copied", "--episodes", "3")
    assert code == 2
    assert "give it again" in err
    assert "mine" not in sys.modules
    code, out, err = command("eval", "copied", "--episodes", "3", "--env", "mine:Coin")
    assert (code, "3 episodes" in out) == (0, True), err
    more = ["--steps", "64", "--env", "mine.py:Coin", "--quiet", "--no-report", "--no-eval"]
    code, _, err = command("resume", "copied", *more)
    assert code == 0, err
    sys.modules.pop("mine", None)


def test_fine_tuning_from_the_command_line(trained, capsys):
    more = ["--init-from", str(trained), "--steps", "64", "--run", "runs/tuned", "--quiet", "--no-report"]
    small = ["--num-envs", "4", "--rollout", "16", "--chunk", "8"]
    assert main(["train", "delayed-cue", "--task.horizon", "4", *small, *more, "--no-eval"]) == 0
    assert Run("runs/tuned").description["config"]["init_from"] == str(trained)
