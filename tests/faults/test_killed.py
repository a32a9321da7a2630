"""Killed at any moment: a run is never lost, and what is left of it goes on bit for bit."""

from __future__ import annotations

import json
import random
import shutil
import signal
from pathlib import Path

import pytest

import recollect as rc
from recollect.training.run_folder import Run
from tests.support import doomed
from tests.support.doomed import UPDATE, rows
from tests.support.whole import SETTINGS


def test_killed_before_every_change_to_the_disk(whole, tmp_path):
    """The first attempt dies before its first change to any file, the second before its second,
    and so on, through starting, saving, removing, rewinding: the run still ends as if nothing had been."""
    path = tmp_path / "run"
    for count in range(1, 400):
        code = doomed.ended(doomed.start(doomed.dies_at_change, str(path), SETTINGS, count))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        if Run.is_run(path):
            check_readable(Run(path))
    assert count > 20, "or hardly anything was tried"
    whole.assert_same(path)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_at_random_changes(whole, seed, tmp_path):
    """Any order of deaths."""
    path, draw = tmp_path / "run", random.Random(seed)
    for _ in range(200):
        count = draw.randrange(1, 70)
        code = doomed.ended(doomed.start(doomed.dies_at_change, str(path), SETTINGS, count))
        if code == 0:
            break
        assert code == -signal.SIGKILL
    whole.assert_same(path)


def check_readable(run: Run) -> None:
    """Whoever looks at a run between two deaths finds it in order."""
    assert run.status["state"] in ("new", "killed", "finished")
    assert [row["updates"] for row in run.metrics()] == list(range(1, len(run.metrics()) + 1))
    run.events(), run.evaluations(), run.glossary
    if run.checkpoints():
        for which in ("best", "last", *(int(p.name) for p in run.checkpoints())):
            rc.load(run.path, checkpoint=which)


@pytest.mark.parametrize("place", doomed.PLACES)
def test_killed_while_saving(whole, place, tmp_path):
    """S000-30: in the middle of a checkpoint, whatever is there loads, and the run goes on."""
    path = tmp_path / "run"
    code = doomed.ended(doomed.start(doomed.dies_inside, str(path), SETTINGS, place, 3))
    assert code == -signal.SIGKILL, "or the place was not reached"
    assert Run(path).status["state"] == "killed"
    check_readable(Run(path))
    last = int(Run(path).checkpoint("last").name)
    assert last in (2 * UPDATE, 3 * UPDATE)
    agent = rc.resume(path, progress=False)
    whole.assert_same(path, agent)


def test_killed_from_outside(whole, tmp_path):
    """Kill -9, from another process, whatever it is doing just then."""
    path = tmp_path / "run"
    for lines in (1, 2, 4):
        process = doomed.start(doomed.supervise, str(path), SETTINGS)
        doomed.wait_for(lambda: count_lines(path) >= lines or not process.is_alive())  # noqa: B023
        process.kill()
        doomed.ended(process)
    assert doomed.ended(doomed.start(doomed.supervise, str(path), SETTINGS)) == 0
    whole.assert_same(path)


def count_lines(path: Path) -> int:
    file = path / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_killed_after_the_last_update(whole, tmp_path):
    """Everything was learned, only the status does not say so: not one update is made too many."""
    path = shutil.copytree(whole.path, tmp_path / "run")
    status = json.loads((path / "status.json").read_text())
    (path / "status.json").write_text(json.dumps(status | {"state": "running", "reason": None}))
    assert Run(path).status["state"] == "killed"
    whole.assert_same(path, rc.resume(path, progress=False))


def test_killed_in_a_second_leg(whole, tmp_path):
    """A run that trains for longer than first planned remembers for how long."""
    path = shutil.copytree(whole.path, tmp_path / "run")
    twice = shutil.copytree(whole.path, tmp_path / "twice")
    rc.resume(twice, steps=4 * UPDATE, progress=False)

    process = doomed.start(doomed.dies_in_a_second_leg, str(path), 4 * UPDATE, 7)
    assert doomed.ended(process) == -signal.SIGKILL
    assert Run(path).status["state"] == "killed"
    again = rc.resume(path, progress=False)
    assert again.steps == 9 * UPDATE
    assert rows(path) == rows(twice)
