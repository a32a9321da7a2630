"""What the pages for contributors, the workflow and the commit hooks name exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["CONTRIBUTING.md", "SECURITY.md", "docs/architecture.md", "docs/releasing.md"]
WORKFLOW, HOOKS = ROOT / ".github/workflows/test.yml", ROOT / ".pre-commit-config.yaml"
HOME = "https://github.com/recollect-rl/recollect"
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
MADE = {".venv", "docs/_build", "dist"}
"""Made by commands, not part of the sources."""


def paths(text: str) -> set[str]:
    """Paths of the project in a text: in backquotes, in links, as arguments of commands."""
    folders = "src|tests|docs|bench|configs|examples"
    found = re.findall(rf"(?<![\w/.])((?:{folders})/[\w./-]*)", text)
    found += re.findall(r"`([\w.-]+\.(?:md|toml|txt))`", text)
    return {path.rstrip("/.") for path in found} - MADE


def targets(text: str) -> set[str]:
    """The targets of make in a text."""
    return set(re.findall(r"(?:`|run: |^)make ([a-z-]+)", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_every_path_and_target_on_a_page_exists(page):
    text = (ROOT / page).read_text()
    assert [path for path in sorted(paths(text)) if not (ROOT / path).exists()] == []
    assert targets(text) <= TARGETS


def test_a_path_or_target_that_is_missing_is_found():
    text = "Run `make tests`, see `src/recollect/nothing.py`, [this](docs/nothing.md) and `NOTHING.md`."
    assert {path for path in paths(text) if not (ROOT / path).exists()} == {
        "src/recollect/nothing.py",
        "docs/nothing.md",
        "NOTHING.md",
    }
    assert targets(text) - TARGETS == {"tests"}


def test_contributing_names_what_a_contributor_needs():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert {"check", "test", "test-slow", "docs"} <= targets(text)
    assert len(paths(text)) > 30


def test_the_workflow_runs_the_same_as_a_developer():
    """On every Python that pyproject.toml names; slow tests by schedule; actions with a major version."""
    text = WORKFLOW.read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert targets(text) == {"test", "test-slow"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [name.rsplit(" ", 1)[1] for name in project["classifiers"] if "Python :: 3." in name]
    assert jobs["test"]["strategy"]["matrix"]["python"] == named
    assert "schedule" in jobs["slow"]["if"]
    uses = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
    assert [name for name in uses if not re.fullmatch(r"actions/[\w-]+@v\d+", name)] == []


def test_the_hooks_are_local():
    """Nothing but the project's own tools, so that a hook and `make lint` never differ."""
    (repo,) = yaml.safe_load(HOOKS.read_text())["repos"]
    assert repo["repo"] == "local"
    for hook in repo["hooks"]:
        command, *arguments = hook["entry"].split()
        assert command in (".venv/bin/ruff", ".venv/bin/python")
        assert all((ROOT / path).exists() for path in paths(" ".join(arguments)))


def test_there_is_one_home():
    """All addresses of the project are on the same page."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Homepage"] == HOME
    assert [url for url in urls.values() if not url.startswith(HOME)] == []
    for page in (*PAGES, "README.md"):
        owners = set(re.findall(r"https://github\.com/([\w-]+)/recollect\b", (ROOT / page).read_text()))
        assert owners <= {"recollect-rl"}


def test_the_list_of_long_tests_names_tests_that_exist():
    """Entries of tests/long.txt have no folder; `make durations` writes it."""
    found = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        names = re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
        found |= {path.name, *(f"{path.name}::{name}" for name in names)}
    assert sorted(set((ROOT / "tests" / "long.txt").read_text().split()) - found) == []
