"""What the command line writes where, and how it ends: JSON alone on stdout, no traceback for a Ctrl-C."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from recollect.base import interrupts
from recollect.cli import main

TINY = "--num-envs 4 --rollout 16 --chunk 8 --core.hidden 8 --encoder.hidden 8 --threads 1".split()

LOUD = """
import ctypes, os
import gymnasium as gym

print("a module")

class Loud(gym.Env):
    observation_space, action_space = gym.spaces.Discrete(2), gym.spaces.Discrete(2)

    def __init__(self):
        print("a maker")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        os.write(1, b"a descriptor\\n")
        self.t = 0
        return 0, {}

    def step(self, action):
        print("a step")
        ctypes.CDLL(None).puts(b"a line of C")  # buffered by C until the process ends
        self.t += 1
        return 1, float(action), False, self.t == 5, {}
"""
SAID = ("a module", "a maker", "a descriptor", "a step", "a line of C")


def call(*args: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """``recollect`` in a process of its own; ``path``: what can be imported beside the usual."""
    found = os.pathsep.join(filter(None, [str(path or ""), os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | {"PYTHONPATH": found, "COLUMNS": "80"}
    environment.pop("PYTHONUNBUFFERED", None)  # which also keeps C from buffering
    return subprocess.run(
        [sys.executable, "-m", "recollect", *args],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


RUN = ["--steps", "128", "--run", "run", "--no-report", "--eval-episodes", "2"]


def unheard(text: str) -> list[str]:
    """What the loud env has said, and is not in ``text``."""
    return [words for words in SAID if words not in text.splitlines()]


@pytest.mark.usefixtures("warm_children")
def test_an_env_that_prints_leaves_json_alone(tmp_path):
    """From Python, from C and past both: on stderr with --json, and else where the env likes it."""
    (tmp_path / "mine.py").write_text(LOUD)
    done = call("train", "mine:Loud", *TINY, *RUN, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert events.count("iteration") == 2
    assert events[-1] == "evaluation"
    assert unheard(done.stderr) == []
    done = call("eval", "run", "--env", "mine:Loud", "--episodes", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert unheard(done.stdout) == []


@pytest.fixture
def loud(tmp_path, monkeypatch):
    """The loud env in the current folder, for commands in this process."""
    (tmp_path / "mine.py").write_text(LOUD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("mine", None)


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("flags", ["--env-workers 1", "--runtime processes --actors 2"])
def test_children_that_print_leave_json_alone(flags, loud, capfd):
    assert main(["train", "mine:Loud", *TINY, *flags.split(), *RUN, "--no-eval", "--json"]) == 0
    out, err = capfd.readouterr()
    assert [json.loads(line)["event"] for line in out.splitlines()].count("iteration") == 2
    if "workers" in flags:  # actors in processes write into a log
        assert unheard(err) == []


def test_afterwards_output_is_as_before(loud, capfd):
    """And ``verify`` leaves JSON alone, too."""
    before = sys.stdout
    assert main(["verify", "mine:Loud", *TINY, "--json"]) == 0
    out, err = capfd.readouterr()
    json.loads(out)
    assert unheard(err) == []
    assert sys.stdout is before
    print("afterwards")
    os.write(1, b"as before\n")
    assert sorted(capfd.readouterr().out.splitlines()) == ["afterwards", "as before"]


def test_the_config_is_printed_with_json_too(capfd):
    assert main(["train", "delayed-cue", "--print-config", "--json"]) == 0
    out, err = capfd.readouterr()
    assert "env: delayed-cue" in out
    assert err == ""


# Ctrl-C --------------------------------------------------------------------------------------------------

INTERRUPTER = """
import os, signal, sys

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupter())
"""
"""Presses Ctrl-C at the moment in which a module is imported."""


@pytest.mark.parametrize(
    "module", ["gymnasium", "recollect.cli.train", "torch.nn", "recollect.training.run_loop"]
)
def test_ctrl_c_during_imports_shows_no_traceback(module, tmp_path):
    """Wherever it comes: exit code 130, nothing on stdout, at most a line on stderr, and no run begun."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(INTERRUPTER.format(module=module))
    done = call("train", "delayed-cue", *TINY, "--steps", "64", cwd=tmp_path, path=folder)
    assert done.returncode == 130, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("program", "words", "is_command"),
    [
        ("/usr/bin/recollect", "python /usr/bin/recollect train", True),
        ("-m", "python -m recollect train", True),
        ("-m", "python -X importtime -mrecollect train", True),
        ("-m", "python -mtheirs recollect", False),
        ("-m", "python -m theirs -m recollects", False),
        ("train.py", "python train.py -m recollect", False),
        ("-c", "python -c pass", False),
        ("", "python", False),
    ],
)
def test_the_command_line_is_told_from_other_programs(program, words, is_command, monkeypatch):
    monkeypatch.setattr(sys, "argv", [program])
    monkeypatch.setattr(sys, "orig_argv", words.split())
    assert interrupts._is_command() is is_command


def test_a_program_that_imports_recollect_keeps_its_ctrl_c():
    """Only the command line ends at once; elsewhere KeyboardInterrupt is raised, as Python does it."""
    code = """
        import os, signal
        import recollect, recollect.cli
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            print("raised")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("raised\n", 0), done.stderr


def test_an_ignored_ctrl_c_stays_ignored(tmp_path):
    """As a shell sets it for jobs in the background."""
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + INTERRUPTER
    (tmp_path / "sitecustomize.py").write_text(code.format(module="gymnasium"))
    done = call("--version", cwd=tmp_path, path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("recollect ")
