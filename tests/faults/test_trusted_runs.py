"""Trust in the code of a run: remembered on this machine, for exactly that code of that run."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import recollect as rc
from recollect import cli
from recollect.errors import ConfigError, RecollectError
from recollect.training import trusted_runs
from recollect.training.run_folder import Run
from tests.faults.test_damaged import changed
from tests.support.own_parts import FLAGS, HERE, TINY, Average

WORLD = """
from pathlib import Path
from tests.support.own_parts import World, Average, Flat

Path(__file__).with_name("imported").touch()
"""
QUIET = ["--quiet", "--no-report", "--no-eval"]


def recollect(*words: str | Path) -> int:
    return cli.main([str(word) for word in words])


def forget(*names: str) -> None:
    """Let modules be imported anew, as in a new process."""
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The current folder, with a module ``named_world`` that leaves a file when it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "named_world.py").write_text(WORLD)
    forget("named_world")
    yield tmp_path
    forget("named_world")


@pytest.fixture
def run(place) -> Path:
    """A run that was trained here, and whose module is not imported any more."""
    words = ["named_world:World", *FLAGS, "--core=named_world:Average", "--wrap=named_world:Flat"]
    assert recollect("train", *words, "--task.length=3", "--run=run", *QUIET) == 0
    forget("named_world")
    (place / "imported").unlink()
    return place / "run"


def edit(path: Path, **changes: Any) -> Path:
    """Change settings of a run, as somebody who knows its format would."""
    for checkpoint in Run(path).checkpoints():
        if "factory" in changes:
            network = json.loads((checkpoint / "agent.json").read_text())["config"]["policy"]
            changes = {"policy": network | {"policy": changes["factory"]}}
        changed(checkpoint, **changes)
    return path


def refused(path: Path, *commands: str, capsys: pytest.CaptureFixture[str]) -> str:
    """No command imports code of this run. Returns the last error."""
    mark, error = Path("imported"), ""
    for command in commands or ("eval", "play", "resume", "export"):
        capsys.readouterr()
        more = {"play": ["--text"], "resume": ["--steps=16"]}.get(command, [])
        assert recollect(command, path, *more) == 2
        error = capsys.readouterr().err
        assert "--trust" in error
        assert not mark.exists()
    return error


def trusted_files(place: Path) -> list[Path]:
    return sorted((place / "state" / "recollect" / "trusted").glob("*"))


CONFIG = {
    "env_kwargs": {"length": 3},
    "wrap": [f"{HERE}:Flat"],
    "policy": {
        "policy": None,
        "core": {"name": f"{HERE}:Average", "hidden": 3},
        "encoder": f"{HERE}:Wide",
        "head": f"{HERE}:Sharp",
    },
}
OTHERS: dict[str, dict[str, Any]] = {
    "env": {"env": f"{HERE}:Other"},
    "env_kwargs": {"config": CONFIG | {"env_kwargs": {"length": 4}}},
    "wrap": {"config": CONFIG | {"wrap": [f"{HERE}:Shifted"]}},
    "core": {
        "config": CONFIG | {"policy": CONFIG["policy"] | {"core": {"name": f"{HERE}:Average", "hidden": 4}}}
    },
    "encoder": {"config": CONFIG | {"policy": CONFIG["policy"] | {"encoder": f"{HERE}:Average"}}},
    "head": {"config": CONFIG | {"policy": CONFIG["policy"] | {"head": f"{HERE}:Average"}}},
    "policy": {"config": CONFIG | {"policy": CONFIG["policy"] | {"policy": f"{HERE}:Own"}}},
}
"""What somebody may change in a description."""


def test_trust_is_for_exactly_this_code_of_this_run():
    """Any other setting, folder or place of the code is not trusted; the same again is."""
    trusted = {"env": f"{HERE}:World", "config": CONFIG}
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        patch.setenv("XDG_STATE_HOME", name)
        assert not trusted_runs.is_trusted(folder, trusted)
        assert trusted_runs.remember(folder, trusted)
        assert trusted_runs.is_trusted(folder, json.loads(json.dumps(trusted)))
        for what, change in OTHERS.items():
            assert not trusted_runs.is_trusted(folder, trusted | change), f"another {what}"
        (folder / "copy").mkdir()
        assert not trusted_runs.is_trusted(folder / "copy", trusted), "another folder"
        (folder / "tests").mkdir()
        (folder / "tests" / "__init__.py").touch()
        patch.chdir(folder)
        patch.setattr(sys, "path", [name, *sys.path])
        assert not trusted_runs.is_trusted(folder, trusted), "another place"


def test_fine_tuning_from_a_trusted_run(run):
    """The network of ``init_from`` is code, too."""
    words = ["named_world:World", *FLAGS, "--wrap=named_world:Flat", "--task.length=3", "--init-from", run]
    assert recollect("train", *words, "--run=tuned", *QUIET) == 0
    assert rc.load("tuned").policy.core.output_size == 8
    shutil.copytree(run, "copy")
    forget("named_world")
    assert recollect("train", *words[:-1], "copy", "--run=again", *QUIET) == 2


def test_an_error_of_fine_tuning_names_a_way_that_works(run, capsys):
    """``recollect train`` has no ``--trust``: the run is trusted by another command, or its core is named."""
    shutil.copytree(run, "copy")
    words = ["named_world:World", *FLAGS, "--wrap=named_world:Flat", "--task.length=3", "--init-from=copy"]
    assert recollect("train", *words, "--run=tuned", *QUIET) == 2
    error = capsys.readouterr().err
    (command,) = re.findall(r"recollect (eval copy --trust)", error)
    (core,) = re.findall(r"name it again: (\S+)", error)
    assert "recollect.load('copy', trust=True)" in error
    assert error.count("--trust") == 1
    assert recollect("train", *words, core, "--run=named", *QUIET) == 0
    assert recollect(*command.split(), "--episodes=1") == 0
    assert recollect("train", *words, "--run=tuned", *QUIET) == 0


def test_a_run_that_was_trained_here_is_trusted(run, capsys):
    for words in (
        ["eval", run, "--episodes=1"],
        ["play", run, "--text", "--episodes=1"],
        ["resume", run, "--steps=16", *QUIET],
        ["report", run],
        ["eval", "run", "--checkpoint=last", "--episodes=1"],
    ):
        assert recollect(*words) == 0
        forget("named_world")
    assert "Playing with checkpoint" not in (run / "report.html").read_text()
    assert rc.load(run).evaluate(1).lengths.tolist() == [3]
    (file,) = trusted_files(run.parent)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert capsys.readouterr().err.count("--trust") == 0


def test_a_folder_from_elsewhere_is_not(run, capsys):
    """Not a copy, not the same folder under another name; the error shows all that would be imported."""
    error = refused(shutil.copytree(run, "copy"), capsys=capsys)
    for word in (
        "--env=named_world:World",
        "--task.length=3",
        "--wrap=named_world:Flat",
        "--core=named_world:",
    ):
        assert word in error
    os.rename(run, "moved")
    refused(Path("moved"), capsys=capsys)
    os.symlink("copy", "run")  # what stands where the trusted run was
    refused(Path("run"), capsys=capsys)
    shutil.rmtree("moved")


@pytest.mark.parametrize(
    "changes",
    [
        {"env": "named_world:Flat"},
        {"env_kwargs": {"length": 4}},
        {"env_kwargs": {"length": 3, "more": 1}},
        {"wrap": ["named_world:Flat", "named_world:Flat"]},
        {"wrap": [{"name": "named_world:Flat", "scale": 2}]},
        {"core": {"name": "named_world:Average", "hidden": 9}},
        {"core": "os:system"},
        {"encoder": "named_world:Average"},
        {"head": "named_world:Average"},
        {"factory": "named_world:Average"},
    ],
    ids=str,
)
def test_an_edited_run_is_not_trusted_any_more(run, changes, capsys):
    refused(edit(run, **changes), "eval", capsys=capsys)
    with pytest.raises(ConfigError, match="--trust"):
        rc.load(run).evaluate(1)


def test_trust_is_said_once(run, capsys):
    copy = shutil.copytree(run, "copy")
    refused(copy, "eval", capsys=capsys)
    assert recollect("eval", copy, "--trust", "--episodes=1") == 0
    assert "trusted in copy on this machine from now on: --env=named_world:World" in capsys.readouterr().err
    forget("named_world")
    assert recollect("eval", copy, "--episodes=1") == 0
    forget("named_world")
    Path("imported").unlink()
    refused(edit(copy, env_kwargs={"length": 9}), "eval", capsys=capsys)
    with rc.load(copy, trust=True) as agent:
        assert agent.evaluate(1).lengths.tolist() == [9]
    assert rc.load(copy).evaluate(1).lengths.tolist() == [9]
    assert rc.resume(copy, steps=16, progress=False, trust=True).config.env_kwargs == {"length": 9}


def test_a_name_that_leads_elsewhere_is_not_trusted(run, capsys, monkeypatch):
    """In another folder the same name is another module: it is not the code that was trusted."""
    other = run.parent / "other"
    other.mkdir()
    (other / "named_world.py").write_text(WORLD)
    monkeypatch.chdir(other)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(run.parent)])
    refused(run, capsys=capsys)
    (other / "named_world.py").unlink()  # nor is a module that is not there
    refused(run, "eval", capsys=capsys)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 1, "digest": null}', "\0"])
def test_a_damaged_file_trusts_nothing(run, text, capsys):
    (file,) = trusted_files(run.parent)
    file.write_text(text)
    refused(run, "eval", capsys=capsys)
    assert recollect("eval", run, "--trust", "--episodes=1") == 0


def test_where_nothing_can_be_stored(run, monkeypatch):
    """Trust counts for this call; a training does not fail."""
    (run.parent / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(run.parent / "file"))
    with pytest.warns(UserWarning, match="this time only"):
        assert rc.load(run, trust=True).evaluate(1).lengths.tolist() == [3]
    with pytest.raises(ConfigError, match="--trust"):
        rc.load(run)
    words = ["named_world:World", *FLAGS, "--drop-obs=mission", "--run=more", *QUIET]
    assert recollect("train", *words) == 0


def test_runs_without_code_store_nothing(place):
    assert recollect("train", "delayed-cue", *FLAGS, "--task.horizon=3", "--run=plain", *QUIET) == 0
    assert rc.load("plain", trust=True).evaluate(1).lengths.tolist() == [5]
    assert trusted_files(place) == []


def test_a_relative_state_folder_is_not_used(place, monkeypatch):
    """As the XDG standard has it: a path relative to a stranger's folder would hold a stranger's trust."""
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(place / "home"))
    about = {"env": "named_world:World", "config": {"policy": {}}}
    assert trusted_runs.remember(place, about)
    assert [p.name for p in place.iterdir() if p.is_dir()] == ["home"]
    assert trusted_runs.is_trusted(place, about)


def test_trust_does_not_reach_other_machines(place):
    """A Ray cluster and a server for metrics are still named again."""
    path = place / "run"
    rc.train(f"{HERE}:World", drop_obs=["mission"], core=Average, run=str(path), progress=False, **TINY)
    edit(path, sinks=["wandb"])
    with pytest.raises(ConfigError, match="--sinks"):
        rc.resume(path, steps=16, core=Average, trust=True, progress=False)


def test_a_core_inside_a_core_is_no_code(run):
    """Nothing that a folder names inside a stack is imported, also not with trust."""
    inside = {"name": "stack", "cores": ["named_world:Average", "gru"]}
    with pytest.raises(RecollectError, match="no core is called"):
        rc.load(edit(run, core=inside, wrap=[]), trust=True)
    assert json.loads(trusted_files(run.parent)[0].read_text())["format"] == 1
