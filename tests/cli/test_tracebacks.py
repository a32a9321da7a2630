"""Errors in the user's code, on the command line: its frames, one error line, the rest in the run folder."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from recollect.base import tracebacks
from recollect.cli import main
from recollect.training.run_folder import Run

TINY = "--num-envs 4 --rollout 16 --chunk 8 --core.hidden 8 --encoder.hidden 8 --threads 1".split()
TRAIN = [*TINY, "--steps", "256", "--run", "run", "--no-report"]
ENV = """
import os
import gymnasium as gym
import numpy as np

def spin(rotors):
    return rotors["tail"]

class Rotor(gym.Env):
    observation_space, action_space = gym.spaces.Discrete(2), gym.spaces.Discrete(2)

    def __init__(self, blades=2):
        self.breaks, self.count = os.environ.get("BREAKS"), 0
        if self.breaks == "init":
            spin({})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.breaks == "reset":
            spin({})
        return 0, {}

    def step(self, action):
        self.count += 1
        if self.breaks == "step" and self.count == 24:
            spin({})
        return 0, 0.0, False, self.count % 8 == 0, {}

"""
KINDS = {"init": "could not be made: it raised", "reset": "reset raised", "step": "raised"}
RUNTIMES = {
    "inline": [],
    "workers": ["--env-workers", "2"],
    "processes": ["--runtime", "processes", "--actors", "2"],
}


@pytest.fixture(autouse=True)
def _project(tmp_path, monkeypatch, warm_children):
    """A folder with an env of the user's own."""
    (tmp_path / "rotor.py").write_text(ENV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("rotor", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("rotor", "broken"):
        sys.modules.pop(name, None)


def fails(capsys, *args: str, code: int = 1) -> str:
    """What a command that fails prints for people."""
    assert main(list(args)) == code
    return capsys.readouterr().err


def assert_frames(err: str, kind: str) -> None:
    """The user's frames, innermost last, as Python prints them, and none of ours; the error once."""
    name = {"init": "__init__"}.get(kind, kind)
    frames = err[err.index("Traceback (most recent call last):\n") :].splitlines()
    own = Path("rotor.py").resolve()
    assert re.fullmatch(rf'  File "{own}", line \d+, in {name}', frames[1])
    assert frames[2] == "    spin({})"
    assert re.fullmatch(rf'  File "{own}", line 7, in spin', frames[3])
    assert frames[4] == '    return rotors["tail"]'
    assert err.count("Traceback") == err.count(f"{KINDS[kind]} KeyError: 'tail'") == 1
    assert err.count("  File ") == 2
    (line,) = [line for line in frames if line.startswith("error: ")]
    assert KINDS[kind] in line


@pytest.mark.parametrize("kind", ["step", "reset"])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_an_env_that_raises_while_training(runtime, kind, capsys, monkeypatch):
    """The user's frames and one line; the whole traceback and a checkpoint are in the run folder."""
    monkeypatch.setenv("BREAKS", kind)
    err = fails(capsys, "train", "rotor:Rotor", *TRAIN, *RUNTIMES[runtime], "--plain")
    assert_frames(err, kind)
    assert err.splitlines()[-1] == "the whole traceback is in run/traceback.txt"
    assert "failed: the error is below" in err
    whole = Path("run/traceback.txt").read_text()
    assert "recollect/envs/gym_loop.py" in whole
    assert "recollect/training/run_loop.py" in whole
    assert 'return rotors["tail"]' in whole
    run = Run("run")
    assert run.status["state"] == "failed"
    assert "KeyError: 'tail'" in run.status["reason"]
    assert int(run.checkpoints()[-1].name) == run.status["steps"] == (64 if kind == "step" else 0)


@pytest.mark.parametrize("runtime", ["inline", "workers"])
def test_an_env_that_cannot_be_made(runtime, capsys, monkeypatch):
    """There is no run yet, and no folder is made for it."""
    monkeypatch.setenv("BREAKS", "init")
    err = fails(capsys, "train", "rotor:Rotor", *TRAIN, *RUNTIMES[runtime], "--quiet")
    assert_frames(err, "init")
    assert not Path("run").exists()


def test_the_run_goes_on_once_the_env_is_mended(capsys, monkeypatch):
    """The printed command works, also after a resume failed; every traceback is kept."""
    monkeypatch.setenv("BREAKS", "step")
    err = fails(capsys, "train", "rotor:Rotor", *TRAIN, "--plain", "--task.blades", "3")
    (line,) = re.findall(r"recollect (resume run.*)", err)
    assert line == "resume run", "its code is trusted here"
    command = [*shlex.split(line), "--no-report", "--no-eval"]
    monkeypatch.setenv("BREAKS", "init")
    err = fails(capsys, *command, "--quiet")
    assert_frames(err, "init")
    assert err.splitlines()[-1] == "the whole traceback is in run/traceback.txt"
    assert Path("run/traceback.txt").read_text().count("KeyError: 'tail'\nTraceback") == 2
    monkeypatch.setenv("BREAKS", "nothing")
    assert main([*command, "--quiet"]) == 0
    assert Run("run").status["steps"] == 256


def test_a_run_that_failed_before_its_first_checkpoint_starts_again(capsys, monkeypatch):
    """Its folder has nothing but the traceback of the evaluation's env, and is used again."""
    monkeypatch.setattr("recollect.agent.Agent.make_env", lambda *_: {}["tail"])
    err = fails(capsys, "train", "rotor:Rotor", *TRAIN, "--quiet", "--eval-every", "64")
    assert err.splitlines()[-1] == "the whole traceback is in run/traceback.txt"
    assert "_evaluating" in Path("run/traceback.txt").read_text()
    assert main(["train", "rotor:Rotor", *TRAIN, "--quiet", "--no-eval"]) == 0
    assert not Path("run/traceback.txt").exists()


def test_an_evaluation_after_the_training_that_raises(capsys, monkeypatch):
    """The training is saved, and the traceback is in its folder."""
    monkeypatch.setattr("recollect.agent.Agent.evaluate", lambda *_: {}["tail"])
    assert main(["train", "rotor:Rotor", *TRAIN, "--quiet"]) == 1
    assert "in <lambda>" in capsys.readouterr().err
    assert "_finish" in Path("run/traceback.txt").read_text()
    assert Run("run").status["state"] == "finished"


def test_commands_that_play(capsys, monkeypatch):
    assert main(["train", "rotor:Rotor", *TRAIN, "--quiet", "--no-eval"]) == 0
    words = ["run", "--env", "rotor:Rotor", "--episodes", "64"]
    for kind, command in itertools.product(KINDS, ("eval", "play")):
        monkeypatch.setenv("BREAKS", kind)
        assert_frames(fails(capsys, command, *words), kind)
    assert not Path("run/traceback.txt").exists(), "reading a run changes nothing in it"


def test_verify_shows_the_frames_below_the_check(capsys, monkeypatch):
    monkeypatch.setenv("BREAKS", "init")
    assert_frames(fails(capsys, "verify", "rotor:Rotor", *TINY), "init")
    monkeypatch.setenv("BREAKS", "step")
    assert main(["verify", "rotor:Rotor", *TINY]) == 1
    out = capsys.readouterr().out
    assert re.search("FAILED +contract", out)
    assert re.search(r'in step\n +spin\(\{\}\)\n.*in spin\n +return rotors\["tail"\]', out)
    assert main(["verify", "rotor:Rotor", *TINY, "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert 'return rotors["tail"]' in next(c["frames"] for c in checks if c["name"] == "contract")


def test_doctor_shows_the_frames(capsys, monkeypatch):
    monkeypatch.setattr("recollect.doctor.gather._try_bf16", lambda: None)  # seconds in another process
    monkeypatch.setenv("BREAKS", "reset")
    assert_frames(fails(capsys, "doctor", "--env", "rotor:Rotor"), "reset")


def test_a_sweep_shows_the_frames_of_its_runs(capsys, monkeypatch):
    monkeypatch.setenv("BREAKS", "step")
    flags = [*TINY, "--steps", "256", "--out", "sweep", "--no-report", "--plain"]
    err = fails(capsys, "sweep", "rotor:Rotor", *flags)
    told = err[err.index("\nfailed: ") :]
    assert 'return rotors["tail"]' in told
    assert "raised KeyError: 'tail'" in told
    assert "the whole traceback is in" in told
    (line,) = re.findall(r"seed 0: failed: (.*)", err)
    assert line.startswith("error: env ")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("import gymnasium\n\nblades = {}['tail']\n", "    blades = {}['tail']\n"),
        ("def spin(:\n    pass\n", "    def spin(:\n             ^\n"),
    ],
)
def test_a_module_that_cannot_be_imported(text, shown, capsys):
    Path("broken.py").write_text(text)
    err = fails(capsys, "train", "broken:Env", *TRAIN, code=2)
    assert shown in err
    assert err.splitlines()[-1].startswith("error: the env 'broken:Env': importing broken failed")
    assert err.count("  File ") == 1


def test_an_error_of_ours_keeps_its_whole_traceback(monkeypatch):
    """It is a bug, and the frames are needed to find it."""
    monkeypatch.setattr("recollect.cli.train.new_folder", "not callable")
    with pytest.raises(TypeError, match="not callable"):
        main(["train", "delayed-cue", *TINY, "--quiet"])


def test_wrong_settings_leave_no_traceback(capsys):
    assert main(["train", "rotor:Rotor", *TRAIN, "--quiet", "--no-eval"]) == 0
    assert "Traceback" not in fails(capsys, "resume", "run", "--steps", "64", "--env", "rotor:Motor", code=2)
    assert not Path("run", tracebacks.FILE).exists()
