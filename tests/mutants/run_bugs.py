"""Bugs of run folders: tracebacks, time limits, checkpoints and the status."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from recollect import api
from recollect.base import tracebacks
from recollect.training import checkpoints, run_loop
from recollect.training.recorder import Recorder
from tests.base import test_tracebacks
from tests.mutants.mutant import Mutant
from tests.training import test_checkpoints
from tests.training import test_time_limits as timed


def in_folder(test: Callable[..., None]) -> Callable[[], None]:
    """A test that needs a folder."""

    def proof() -> None:
        with tempfile.TemporaryDirectory() as folder:
            test(Path(folder))

    return proof


def with_clock(test: Callable[..., None]) -> Callable[[], None]:
    """A test of a run whose clock it sets."""

    def proof() -> None:
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
            clock = timed.Clock()
            patch.setattr(run_loop.time, "monotonic", clock)
            test(Path(folder), clock)

    return proof


RUNS = [
    Mutant(
        "the steps of a curriculum are sorted as numbers when they are saved",
        in_folder(test_checkpoints.test_stages_of_a_curriculum_round_trip),
        (
            (
                checkpoints,
                "checksum",
                'json.loads(json.dumps(description | {"sha256": others}))',
                'description | {"sha256": others}',
            ),
        ),
        "differs from what was saved",
    ),
    Mutant(
        "the frames of Recollect are shown",
        test_tracebacks.test_the_frames_of_an_env_with_its_own_cause,
        ((tracebacks, "_from_user", "return called[i:]", "return frames"),),
        'if line.startswith("  File")',
    ),
    Mutant(
        "the frames of another process are lost",
        test_tracebacks.test_frames_and_summary_cross_processes,
        ((tracebacks, "user_frames", "if origin.user_frames:", "if False:"),),
        "assert user_frames(again) == user_frames(error)",
    ),
    Mutant(
        "the run folder keeps the message alone",
        in_folder(test_tracebacks.test_a_run_folder_keeps_the_whole_traceback_once),
        ((tracebacks, "_append", "{whole(error)}", "{error}"),),
        "The above exception was the direct cause",
    ),
    Mutant(
        "a limit given on resume counts from the start of the run",
        with_clock(timed.test_a_limit_given_on_resume_counts_from_there),
        ((api, "resume", "round(used + limit, 3)", "limit"),),
        "max_seconds=20",
    ),
    Mutant(
        "the first checkpoint comes after a minute",
        with_clock(timed.test_the_first_checkpoint_comes_early),
        ((run_loop.Training, "_is_checkpoint_due", "if steps == self._resumed_at", "if False"),),
        "assert saved(path) == [0, 1, 7]",
    ),
    Mutant(
        "the status is that of the last checkpoint",
        with_clock(timed.test_the_status_has_the_steps_of_now),
        ((Recorder, "on_iteration", ">= STATUS_SECONDS", ">= 1e9"),),
        "assert max(ages) == 1.5",
    ),
]
