"""Registered parts on every command: ``--import``, other processes, trust, sweeps, and the example."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import recollect as rc
from recollect import cli
from recollect.base.parts import import_parts
from recollect.errors import ConfigError
from recollect.sweep import Sweep
from recollect.training.run_folder import Run
from tests.faults.test_trusted_runs import edit
from tests.support.own_parts import FLAGS, TINY, Flat, World
from tests.support.registered import FILE, NAME, forgetting, place

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_algorithm.py"
QUIET = ["--quiet", "--no-report", "--no-eval"]
PARTS = ["--core=average", "--core.width=6", "--encoder=wide", "--head=sharp", "--head.sharpness=2"]
PARTS += ["--algo=cautious", "--caution=3"]
ENV = ["levels/delayed-cue", "--task.wait=3"]


def recollect(*words: str | Path) -> int:
    return cli.main([str(word) for word in words])


@pytest.fixture
def here(tmp_path):
    with place(tmp_path) as folder:
        yield folder


def trained(here: Path) -> Path:
    """A run that was trained here, whose module is not imported any more."""
    with forgetting(NAME):
        assert recollect("train", *ENV, *FLAGS, *PARTS, f"--import={FILE}", "--run=run", *QUIET) == 0
    (here / "imported").unlink()
    return here / "run"


@pytest.fixture
def run(here) -> Path:
    return trained(here)


COMMANDS = [
    ["eval", "--episodes=1"],
    ["play", "--text", "--episodes=1"],
    ["resume", "--steps=16", *QUIET],
    ["export", "--format=torch", "--no-check"],
]


def test_a_run_that_was_trained_here_finds_its_parts(run):
    saved = Run(run).description["config"]
    assert saved["imports"] == [FILE]
    assert saved["algo"]["name"] == "cautious"
    assert saved["policy"]["core"] == {"name": "average", "width": 6}
    assert saved["policy"]["head"] == {"name": "sharp", "sharpness": 2.0}
    for command, *more in [*COMMANDS, ["report"]]:
        with forgetting(NAME):
            assert recollect(command, run, *more) == 0
    assert "Divides the loss" not in (run / "config.yaml").read_text().split("algo:")[0]
    assert "failed" not in (run / "report.html").read_text().split("<script")[0]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_the_module_is_named_again(run, command, capsys):
    """A copy is not trusted: nothing is imported, and the error says what to name."""
    copy = shutil.copytree(run, run.parent / "copy")
    name, *more = command
    assert recollect(name, copy, *more) == 2
    error = capsys.readouterr().err
    assert f"--import={FILE}" in error
    assert "--trust" in error
    assert not (run.parent / "imported").exists(), "imported without trust"
    options = [] if name == "export" else ["--task.wait=3"]
    with forgetting(NAME):
        assert recollect(name, copy, *more, "--import", FILE, *options) == 0
    with forgetting(NAME):
        assert recollect(name, copy, *more, "--trust") == 0
    with forgetting(NAME):
        assert recollect(name, copy, *more) == 0


def test_a_folder_imports_nothing_but_what_is_trusted():
    """Another module in a trusted folder, or the same name in another place, is not imported."""
    with ExitStack() as stack:
        here = stack.enter_context(place(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        patch, run = stack.enter_context(pytest.MonkeyPatch.context()), trained(here)
        (here / "evil.py").write_text((here / FILE).read_text())
        edit(run, imports=["evil"])
        with forgetting(NAME, "evil"), pytest.raises(ConfigError, match="--import=evil"):
            rc.load(run)
        assert not (here / "imported").exists(), "another module was imported"
        edit(run, imports=[FILE])
        (here / "other").mkdir()
        patch.chdir(here / "other")
        Path(FILE).write_text((here / FILE).read_text())
        with forgetting(NAME), pytest.raises(ConfigError, match=f"--import={FILE}"):
            rc.load(run)
        assert not Path("imported").exists(), "a file in another place was imported"


def test_an_ordinary_import_does_it(run, monkeypatch):
    """In Python, the module is imported, and its parts are known; the run names it for the command line."""
    copy = shutil.copytree(run, run.parent / "copy")
    monkeypatch.setattr(sys, "path", [str(run.parent), *sys.path])
    __import__(NAME)
    loaded = rc.load(copy)
    assert loaded.config.algo.caution == 3
    assert loaded.policy.head.sharpness == 2.0
    agent = rc.train("delayed-cue", progress=False, core="average", run="python", **TINY)
    assert Run("python").description["config"]["imports"] == [NAME]
    tuned = rc.train("delayed-cue", progress=False, init_from=agent.run.path, **TINY)
    assert type(tuned.policy.core).__name__ == "Averages"


LAYOUTS = {
    "processes": ["--runtime=processes"],
    "learners": ["--learners=2"],
    "ray": ["--runtime=ray"],
}


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_processes_have_the_parts(here, layout):
    """Actors and learners in fresh processes know what ``--import`` has registered; the same is learned."""
    if layout == "ray":
        pytest.importorskip("ray")
    words = [*ENV, *FLAGS, *PARTS, "--import", FILE, *QUIET]
    for name, more in {"one": [], "other": LAYOUTS[layout]}.items():
        with forgetting(NAME):
            assert recollect("train", *words, *more, f"--run={name}") == 0
    with forgetting(NAME):
        one, other = (rc.load(name).policy.state_dict() for name in ("one", "other"))
        assert all(one[key].allclose(other[key], atol=1e-5) for key in one)


@pytest.mark.usefixtures("warm_children")
def test_parts_are_carried_to_other_processes():
    """Those of a file with the name of another module, and those that no import would register again."""
    with tempfile.TemporaryDirectory() as name, place(Path(name)), forgetting("_env_random"):
        Path(FILE).rename("random.py")
        import_parts(["random.py"])
        rc.register("env", "inner")(lambda source: Flat(World(int(source))))
        with rc.train("inner/3", progress=False, core="average", runtime="processes", **TINY) as agent:
            assert agent.steps == TINY["steps"]


MAIN = """
from dataclasses import dataclass
import recollect as rc
from tests.support.own_parts import TINY, Average, Flat, World

@dataclass(frozen=True, slots=True)
class Config(rc.CoreConfig):
    width: int = 3

@rc.register("core", "mine", config=Config)
class Mine(Average):
    def __init__(self, input_size, config):
        super().__init__(input_size, config.width)

@rc.register("env", "mine")
def mine(source, length=4):
    return Flat(World(length))

with rc.train("mine/x", core="mine", runtime="processes", env_workers=2, progress=False, **TINY) as agent:
    print(agent.steps, agent.policy.core.output_size)
"""


@pytest.mark.usefixtures("warm_children")
def test_parts_of_a_script_reach_other_processes(here):
    """Classes of ``__main__`` cannot be imported: they are sent."""
    (here / "script.py").write_text(MAIN)
    where = os.environ | {"PYTHONPATH": str(EXAMPLE.parents[1])}
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=where)
    assert done.stdout.split() == ["32", "3"], done.stderr


@pytest.mark.usefixtures("warm_children")
def test_a_sweep_of_registered_parts(here, capsys):
    """Its runs import the module, and a sweep of a stranger does not."""
    words = ["sweep", "delayed-cue", *FLAGS, "--import", FILE, "--algo=cautious", "--caution=1,2", "--quiet"]
    with forgetting(NAME):
        assert recollect(*words, "--out=sweep", "--jobs=1", "--no-report", "--eval-episodes=1") == 0
    runs = [Run(path) for path in Path("sweep").glob("*/seed-0")]
    assert {run.description["config"]["algo"]["caution"] for run in runs} == {1.0, 2.0}
    shutil.rmtree(runs[0].path)
    (here / "imported").unlink()
    with forgetting(NAME):
        assert recollect("sweep", "--resume=sweep", "--dry-run") == 2
    assert "--import" in capsys.readouterr().err
    assert not (here / "imported").exists()
    for more in (["--import", FILE], ["--trust"]):
        with forgetting(NAME):
            assert recollect("sweep", "--resume=sweep", "--dry-run", *more) == 0
        assert f"--import={FILE}" in capsys.readouterr().out
    with forgetting(NAME):
        assert Sweep.plan("delayed-cue", {"imports": FILE, "algo": "cautious"}).variants[0].flags


def start(*words: str | Path) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", "recollect", *map(str, words)], stderr=subprocess.PIPE)


@pytest.mark.usefixtures("warm_children")
def test_the_example_from_the_command_line(here):
    """REINFORCE is trained, killed, verified, resumed, evaluated and reported, each in its own process."""
    words = ["train", "delayed-cue", "--import", EXAMPLE, "--algo=reinforce", "--baseline=mean", *FLAGS[1:]]
    killed = start(*words, "--steps=1m", "--checkpoint-every=64", "--run=own", "--quiet")
    deadline = time.monotonic() + 60
    while not (Run.is_run("own") and Run("own").checkpoints()) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert Run("own").checkpoints(), "no checkpoint was written"
    for command in (
        ["verify", "delayed-cue", "--import", EXAMPLE, "--algo=reinforce"],
        ["resume", "own", "--steps=64", "--quiet"],
        ["eval", "own", "--episodes=2", "--json"],
        ["report", "own"],
    ):
        done = start(*command)
        _, error = done.communicate(timeout=120)
        assert done.returncode == 0, (command, error)
    config = json.loads((Path("own") / "run.json").read_text())["config"]
    assert (config["algo"]["name"], config["algo"]["baseline"]) == ("reinforce", "mean")
    assert Run("own").status["state"] == "finished"
    assert "baseline" in (Path("own") / "report.html").read_text()
