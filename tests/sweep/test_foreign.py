"""What the folder of a sweep may not choose: code to be imported. Opening one of somebody else is safe."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from recollect.cli import main
from recollect.errors import ConfigError, RecollectError
from recollect.sweep import Sweep

FLAGS = ["--num-envs=2", "--rollout=16", "--chunk=8", "--minibatches=1", "--core.hidden=8", "--steps=96"]
TRAP = """
from pathlib import Path

from gymnasium.envs.classic_control import CartPoleEnv as Trap

Path(__file__).with_name("was-imported").touch()
"""


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A current folder with code that leaves a trace when it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "trap.py").write_text(TRAP)
    monkeypatch.setattr("recollect.sweep.sweep_folder.run_members", lambda *_, **__: 0)
    yield tmp_path
    for name in ("trap", "_env_trap"):
        sys.modules.pop(name, None)


def write_sweep(path: Path, envs: list[str], flags: list[str]) -> None:
    path.mkdir()
    variants = [
        {"label": f"v{i}", "folder": f"v{i}", "env": env, "flags": flags, "runs": []}
        for i, env in enumerate(envs)
    ]
    text = json.dumps({"format": 1, "seeds": [0], "files": {}, "variants": variants})
    (path / "sweep.json").write_text(text)


FOREIGN = [["trap:Trap"], ["trap.py:Trap"], ["delayed-cue", "trap.py:Trap"], ["trap:Trap-v0"]]


@pytest.mark.parametrize("more", [["--dry-run"], []])
@pytest.mark.parametrize("envs", FOREIGN)
def test_an_env_that_only_the_folder_names_is_not_imported(envs, more, trap, capsys):
    """Opening a sweep of somebody else runs no code of theirs; the error tells what to type."""
    write_sweep(trap / "a b", envs, FLAGS)
    assert main(["sweep", "--resume", "a b", *more]) == 2
    assert f"name it again: recollect sweep {','.join(envs)} --resume 'a b'" in capsys.readouterr().err
    sweep = Sweep.open("a b")  # looking at it is no harm
    assert [result.iqm for result in sweep.results()] == [None] * len(envs)
    for call in (sweep.check, sweep.to_do, sweep.run):
        with pytest.raises(ConfigError, match=r"names the env .* which is code.*Sweep\.open\(\.\.\., env='"):
            call()
    assert not (trap / "was-imported").exists()


@pytest.mark.parametrize("words", [["trap.py:Trap"], ["--env", "trap.py:Trap"], ["--env=trap.py:Trap"]])
def test_an_env_that_the_user_names_again_is_imported(words, trap, capsys):
    write_sweep(trap / "x", ["trap.py:Trap"], FLAGS)
    assert main(["sweep", "--resume", "x", "--dry-run", *words]) == 0
    assert capsys.readouterr().out.startswith("recollect train trap.py:Trap ")
    assert (trap / "was-imported").exists()


def test_in_python_and_with_the_original_command_too(trap, capsys):
    command = ["sweep", "trap.py:Trap", *FLAGS, "--out", "x", "--quiet", "--no-report"]
    for _ in range(2):
        assert main(command) == 1  # nothing works here
    assert main(["sweep", "--resume", "x"]) == 2
    assert len(Sweep.open("x", env="trap.py:Trap").to_do()[0]) == 1
    assert main(["sweep", "delayed-cue", *FLAGS, "--out", "x"]) == 2
    assert "resume that sweep: recollect sweep trap.py:Trap --resume x" in capsys.readouterr().err


@pytest.mark.parametrize("there", ["delayed-cue", "trap.py:Trap"])
def test_another_env_than_the_folder_names_is_refused(there, trap, capsys):
    write_sweep(trap / "x", [there], FLAGS)
    assert main(["sweep", "other.py:Env", "--resume", "x", "--dry-run"]) == 2
    named = "" if there == "delayed-cue" else f"{there} "
    message = f"x is a sweep of the env {there}, not of other.py:Env: resume it with recollect sweep {named}"
    assert f"{message}--resume x" in capsys.readouterr().err
    assert not (trap / "was-imported").exists()


@pytest.mark.parametrize(
    ("env", "flags"),
    [
        ("delayed-cue", ["--env=trap.py:Trap"]),
        ("delayed-cue", ["--env=delayed-cue"]),
        ("delayed-cue", ["---env=trap.py:Trap"]),
        ("delayed-cue", ["--env", "trap.py:Trap"]),
        ("delayed-cue", ["--", "trap.py:Trap"]),
        ("delayed-cue", ["trap.py:Trap"]),
        ("--config=trap.yaml", []),
        ("delayed\n-cue", []),
    ],
)
def test_flags_of_a_folder_that_name_an_env_are_refused(env, flags, trap, capsys):
    (trap / "trap.yaml").write_text("env: trap.py:Trap")
    write_sweep(trap / "x", [env], [*FLAGS, *flags])
    assert main(["sweep", "--resume", "x", "--dry-run"]) == 2
    assert "sweep.json is damaged" in capsys.readouterr().err
    assert not (trap / "was-imported").exists()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--config=trap.yaml", None),
        ("--config=trap.py", "a config file ends in"),
        ("--core=trap:Trap", "--trust"),
        ("--encoder=trap:Trap", "--trust"),
        ("--policy=trap:Trap", "--trust"),
        ("--wrap=trap:Trap", "--trust"),
        ("--config=core.yaml", "--trust"),
        ("--sinks=trap", "trap"),
        ("--init-from=x", "agent.json"),
        ("--no-eval", "--no-eval: there is no such flag"),
        ("--task.horizon=!!python/name:trap.Trap", "--task.horizon"),
    ],
)
def test_flags_of_a_folder_are_settings_and_no_code(flag, message, trap, capsys):
    """The env of a config file does not count: that beside the flags does."""
    (trap / "trap.yaml").write_text("env: trap.py:Trap")
    (trap / "core.yaml").write_text("core: {name: trap:Trap, x: 3}")
    write_sweep(trap / "x", ["delayed-cue"], [*FLAGS, flag])
    assert main(["sweep", "--resume", "x", "--dry-run"]) == (0 if message is None else 2)
    out, err = capsys.readouterr()
    if message is None:
        assert out.startswith("recollect train delayed-cue ")
    else:
        assert message in err
    assert not (trap / "was-imported").exists()


def test_a_damaged_or_foreign_sweep_is_refused(tmp_path):
    for text, message in {
        "{": "is damaged",
        '{"format": 1}': "is damaged",
        '{"format": 99}': "update Recollect",
        '{"format": 1, "seeds": [0], "files": {}, "variants": '
        '[{"label": "", "folder": "../x", "env": "e", "flags": [], "runs": []}]}': "is damaged",
    }.items():
        (tmp_path / "sweep.json").write_text(text)
        with pytest.raises(RecollectError, match=message):
            Sweep.open(tmp_path)
