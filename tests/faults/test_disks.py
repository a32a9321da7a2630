"""Disks that are full or read-only: told clearly, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import recollect as rc
from recollect.base import files
from recollect.errors import StorageError
from recollect.training.run_folder import Run
from tests.support.doomed import UPDATE, differing, leftovers, rows, weights
from tests.support.whole import SETTINGS, Stop


class Disk:
    """A small file system of its own, which can be filled and made read-only."""

    def __init__(self, path: Path):
        self.path, self.ballast = path, path / "ballast"

    def fill(self) -> None:
        """Until not one more byte is taken."""
        with self.ballast.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def free(self) -> None:
        self.ballast.unlink()

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        pytest.skip(f"needs a file system of its own, and mounting one failed: {reason.splitlines()[0]}")
    yield Disk(path)
    subprocess.run(["umount", "-l", str(path)], check=True)


class Advice(rc.Callback):
    """Remembers what was told, and calls ``at[updates]`` after that update."""

    def __init__(self, **at: Any):
        self.at, self.told = {int(name[1:]): call for name, call in at.items()}, []

    def on_iteration(self, training, metrics):
        self.at.get(training.updates, lambda: None)()

    def on_warning(self, training, text):
        self.told.append(text)

    def on_checkpoint(self, training, path):
        metrics = Run(path.parent.parent).metrics()
        assert len(metrics) == training.updates, "no checkpoint without its metrics"


def test_a_disk_that_is_full_at_the_start(whole, disk):
    """Nothing is trained for nothing; with space again, the same call works."""
    path = disk.path / "run"
    disk.fill()
    with pytest.raises(StorageError, match=r"run.*No space left on device\. Free some space"):
        rc.train("delayed-cue", run=str(path), **SETTINGS)
    disk.free()
    whole.assert_same(path, rc.train("delayed-cue", run=str(path), **SETTINGS))


@pytest.mark.parametrize("nearly", [False, True], ids=["full", "lines still fit"])
def test_a_disk_that_is_full_for_a_while(whole, disk, nearly):
    """The run goes on and says so once; in the end nothing is missing, nothing there twice."""
    path = disk.path / "run"

    def fill() -> None:
        disk.fill()
        if nearly:
            os.truncate(disk.ballast, disk.ballast.stat().st_size - 8192)

    advice = Advice(u1=fill, u3=disk.free)
    settings = SETTINGS | {"eval_every": 0}
    agent = rc.train("delayed-cue", run=str(path), callbacks=[advice], **settings)
    assert differing(whole.weights, weights(agent)) == []
    assert rows(path) == whole.rows
    assert [int(p.name) // UPDATE for p in Run(path).checkpoints()] == [4, 5]
    assert leftovers(path) == []
    assert len(advice.told) == 1
    assert "No space left on device" in advice.told[0]
    assert "The run continues" in advice.told[0]
    kinds = [event["kind"] for event in Run(path).events()]
    assert kinds[0] == "start"
    assert kinds[-1] == "stop"
    assert kinds.count("warning") == 1
    times = [event["steps"] for event in Run(path).events()]
    assert times == sorted(times)


def test_a_disk_that_is_full_twice_is_told_twice(disk):
    """Once for each time, not once for each try."""
    advice = Advice(u1=disk.fill, u3=disk.free, u5=disk.fill, u8=disk.free)
    rc.train(
        "delayed-cue", run=str(disk.path / "run"), callbacks=[advice], **SETTINGS | {"steps": 10 * UPDATE}
    )
    assert len(advice.told) == 2
    assert [row["updates"] for row in Run(disk.path / "run").metrics()] == list(range(1, 11))


def test_a_disk_that_is_full_at_the_end(whole, disk):
    """S000-30: an error, the checkpoint before loads, and the run goes on from it when there is space."""
    path = disk.path / "run"
    advice = Advice(u4=disk.fill)
    with pytest.raises(StorageError, match=r"could not be written: .*No space left on device"):
        rc.train("delayed-cue", run=str(path), callbacks=[advice], **SETTINGS)
    assert Run(path).checkpoint("last").name == f"{3 * UPDATE:012d}"
    assert rc.load(path, checkpoint="last").steps == 3 * UPDATE
    assert [row["updates"] for row in Run(path).metrics()][:3] == [1, 2, 3]
    with pytest.raises(StorageError, match="could not be written"):
        rc.resume(path, progress=False)
    disk.free()
    whole.assert_same(path, rc.resume(path, progress=False))


def test_a_line_that_does_not_fit_is_not_begun(disk):
    """Half a line would be read by others until the next is written."""
    file = disk.path / "lines.jsonl"
    files.append_whole(file, "{}\n")
    disk.fill()
    os.truncate(disk.ballast, disk.ballast.stat().st_size - 8192)
    with pytest.raises(OSError, match="No space left"):
        files.append_whole(file, "x" * 20_000)
    assert file.read_text() == "{}\n"
    disk.free()
    files.append_whole(file, "{}\n")
    assert file.read_text() == "{}\n{}\n"


def test_saving_an_agent_on_a_full_disk_keeps_the_one_before(disk):
    """Agent.save too."""
    agent = rc.train("delayed-cue", **SETTINGS | {"steps": UPDATE})
    path, before = agent.save(disk.path / "agent"), weights(agent)
    agent.train(UPDATE, progress=False)
    disk.fill()
    with pytest.raises(StorageError, match=r"agent could not be written: .*No space left.*writable folder"):
        agent.save(path)
    assert differing(before, weights(rc.load(path))) == []
    assert [p.name for p in disk.path.iterdir() if p.name.startswith(".")] == []


def test_a_folder_that_is_read_only(whole, disk):
    """Everything can be read; writing is refused with the reason."""
    path = disk.path / "run"
    rc.train("delayed-cue", run=str(path), callbacks=[Stop()], **SETTINGS)
    disk.remount("ro")
    with pytest.raises(
        StorageError, match=r"run/lock cannot be locked: Read-only file system.*writable folder"
    ):
        rc.resume(path, progress=False)
    with pytest.raises(StorageError, match=r"other could not be made: Read-only file system"):
        rc.train("delayed-cue", run=str(disk.path / "other"), **SETTINGS)
    run = Run(path)
    assert (run.status["state"], run.is_active, len(run.metrics())) == ("stopped", False, 3)
    assert rc.load(path).evaluate(2).returns.shape == (2,)
    disk.remount("rw")
    whole.assert_same(path, rc.resume(path, progress=False))
