"""The wheel: it builds, holds everything that is needed, and runs outside of the source tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy: the build leaves folders beside the sources."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "-w", str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = out.glob("recollect-*.whl")
    return file


def test_everything_is_in_it(wheel):
    """Every module, the report's page, the mark that it is typed; no test, no cache."""
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src"
    wanted = {
        path.relative_to(package).as_posix()
        for path in (package / "recollect").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"recollect"}
    assert any(name.endswith("entry_points.txt") for name in names)


def test_it_runs_where_the_sources_are_not(wheel, tmp_path):
    """Train, evaluate and report with the installed package, from an empty folder."""
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    zipfile.ZipFile(wheel).extractall(site)
    environment = os.environ | {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}

    def call(*args: str) -> str:
        command = [sys.executable, "-m", "recollect", *args]
        done = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = [sys.executable, "-c", "import recollect; print(recollect.__file__)"]
    found = subprocess.run(
        where, cwd=work, env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert found.startswith(str(site))
    small = "--num-envs 4 --rollout 16 --chunk 8 --core.hidden 8 --steps 64 --run run --quiet".split()
    call("train", "delayed-cue", *small, "--eval-episodes", "4", "--no-report")
    assert "4 episodes" in call("eval", "run", "--episodes", "4")
    call("report", "run", "--no-play")
    assert (work / "run" / "report.html").stat().st_size > 10_000
    assert "--learning-rate" in call("train", "--help")
