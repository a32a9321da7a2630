"""What the tests of faults share: a run that nothing happened to, and one that was stopped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.support.whole")

import recollect as rc  # noqa: E402
from tests.support.whole import SETTINGS, Stop, Whole  # noqa: E402


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> Whole:
    return Whole(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="session")
def _stopped(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("stopped") / "run"
    rc.train("delayed-cue", run=str(path), callbacks=[Stop()], **SETTINGS)
    return path


@pytest.fixture
def stopped(_stopped, tmp_path) -> Path:
    """A run that was stopped at ``STOPPED``, with checkpoints there and an update before it."""
    return shutil.copytree(_stopped, tmp_path / "stopped")
