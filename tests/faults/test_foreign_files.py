"""Files and folders of the user, and links to them, survive whatever Recollect deletes or overwrites."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import recollect as rc
from recollect import cli
from recollect.base import run_files
from recollect.errors import RecollectError
from recollect.reports import write_report
from recollect.sweep import Sweep
from recollect.training.run_folder import Run
from tests.support.doomed import UPDATE
from tests.support.whole import SETTINGS, STOPPED

FIRST, LAST = STOPPED - UPDATE, STOPPED


def plant(folder: Path, name: str = "mine.txt") -> Path:
    """A file that is worth keeping."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text("precious")
    return file


def opened(path: Path) -> None:
    with Run(path).writing():
        pass


def moved(path: Path, elsewhere: Path) -> Path:
    """``path`` put elsewhere, with a link in its place."""
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    return elsewhere


@pytest.mark.parametrize(
    "name", [".git", ".cache-old", ".000000000048", ".000000000048-keepsake", ".000000000048-OLD"]
)
def test_dot_folders_of_others_stay(stopped, name):
    """Only the exact names of unfinished saves and removals are deleted when a run is opened."""
    kept = plant(stopped / "checkpoints" / name)
    also = plant(stopped, ".metrics.jsonl-notebook")
    own = [f".{LAST:012d}-{ending}" for ending in ("0123abcd", "old", "removed")]
    for ours in own:
        plant(stopped / "checkpoints" / ours, "agent.json")
    plant(stopped, ".status.json-0123abcd")
    opened(stopped)
    assert kept.read_text() == also.read_text() == "precious"
    left = {p.name for p in [*stopped.glob(".*"), *(stopped / "checkpoints").glob(".*")]}
    assert left == {name, also.name}


def test_what_safetensors_was_writing_goes_with_its_unfinished_save(stopped):
    """A process that is killed leaves it under a random name; in a finished checkpoint such a file stays."""
    unfinished = plant(stopped / "checkpoints" / f".{LAST:012d}-0123abcd", ".tmpXjxtEl").parent
    kept = plant(stopped / "checkpoints" / f"{LAST:012d}", ".tmpXjxtEl")
    opened(stopped)
    assert not unfinished.exists()
    assert kept.read_text() == "precious"


def test_an_unfinished_save_that_holds_something_else_stays(stopped):
    """The name is Recollect's, the content is not."""
    folder = stopped / "checkpoints" / f".{LAST:012d}-removed"
    kept = plant(folder, "notes.txt")
    opened(stopped)
    assert kept.read_text() == "precious"


def test_an_entry_that_is_a_link_is_not_followed(stopped, tmp_path):
    kept = plant(tmp_path / "elsewhere", "agent.json")
    link = stopped / "checkpoints" / f".{LAST:012d}-old"
    link.symlink_to(kept.parent)
    opened(stopped)
    assert kept.read_text() == "precious"


OWN = (
    "checkpoints",
    "logs",
    "episodes",
    "tensorboard",
    "metrics.jsonl",
    "events.jsonl",
    "lock",
    "status.json",
)


@pytest.mark.parametrize("name", OWN)
def test_a_run_is_written_through_no_link(stopped, tmp_path, name):
    """A link in a run leads out of it: what it points to would be pruned, appended to, or cut."""
    place = stopped / name
    if name in ("logs", "episodes", "tensorboard"):
        place.mkdir(exist_ok=True)
    place.touch()
    target = moved(place, tmp_path / "elsewhere")
    kept = plant(target / ".precious" if target.is_dir() else tmp_path / "other")
    before = {p: p.read_bytes() for p in [target, *target.rglob("*")] if p.is_file()}
    for call in (lambda: opened(stopped), lambda: rc.resume(stopped, progress=False)):
        with pytest.raises(RecollectError, match=f"{name} is a link.*elsewhere"):
            call()
    assert kept.read_text() == "precious"
    assert {p: p.read_bytes() for p in [target, *target.rglob("*")] if p.is_file()} == before
    assert rc.load(stopped).steps > 0, "reading harms nothing"


def test_a_log_that_is_a_link_is_not_written_to(stopped, tmp_path):
    kept = plant(tmp_path / "elsewhere")
    (stopped / "logs").mkdir(exist_ok=True)
    (stopped / "logs" / "actor-0.log").symlink_to(kept)
    with pytest.raises(RecollectError, match=r"actor-0\.log is a link"):
        opened(stopped)


@pytest.mark.parametrize("name", ["checkpoints", "logs", "lock", "metrics.jsonl"])
def test_a_run_is_written_into_files_and_folders_only(stopped, name):
    """A pipe in the place of a file would block, a file in the place of a folder cannot hold any."""
    place = stopped / name
    if place.exists():
        place.rename(stopped / "aside")
    os.mkfifo(place)
    with pytest.raises(RecollectError, match=rf"{name} is no (file|folder)"):
        opened(stopped)


def test_the_folder_above_may_be_a_link(whole, stopped, tmp_path):
    """Where runs are kept is the user's affair."""
    (tmp_path / "link").symlink_to(stopped.parent)
    (tmp_path / "run").symlink_to(stopped)
    rc.resume(tmp_path / "link" / stopped.name, progress=False)
    whole.assert_same(stopped)
    rc.resume(tmp_path / "run", steps=UPDATE, progress=False)


def test_a_new_run_does_not_take_a_linked_folder_for_its_checkpoints(tmp_path):
    kept = plant(tmp_path / "elsewhere" / ".precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecollectError, match=r"checkpoints is a link|not empty"):
        rc.train("delayed-cue", run=str(tmp_path / "run"), **SETTINGS)
    assert kept.read_text() == "precious"
    assert list(kept.parent.parent.iterdir()) == [kept.parent]


def test_a_checkpoint_that_holds_something_else_is_not_pruned(stopped):
    """Notes, or an export, beside the weights."""
    kept = plant(stopped / "checkpoints" / f"{FIRST:012d}")
    rc.resume(stopped, progress=False)
    assert kept.read_text() == "precious"
    assert [int(p.name) // UPDATE for p in Run(stopped).checkpoints()] == [FIRST // UPDATE, 4, 5]


def test_a_linked_checkpoint_is_read_and_not_pruned(stopped, tmp_path):
    """Somebody keeps it on a larger disk."""
    place = stopped / "checkpoints" / f"{FIRST:012d}"
    target = moved(place, tmp_path / "elsewhere")
    assert rc.load(stopped, checkpoint=FIRST).steps == FIRST
    rc.resume(stopped, progress=False)
    assert (target / "agent.json").is_file()
    assert place.is_symlink()


def test_going_back_is_refused_where_it_would_delete_something_else(stopped):
    """And nothing is dropped by the attempt."""
    kept = plant(stopped / "checkpoints" / f"{LAST:012d}")
    before = (stopped / "metrics.jsonl").read_bytes()
    with pytest.raises(RecollectError, match=rf"{LAST:012d}, which holds mine\.txt"):
        rc.resume(stopped, checkpoint=FIRST, progress=False)
    assert kept.read_text() == "precious"
    assert (stopped / "metrics.jsonl").read_bytes() == before


# Saved agents ----------------------------------------------------------------------------------------------


def test_what_lies_beside_a_saved_agent_stays(stopped, tmp_path):
    """A save keeps the agent before as .NAME-old for a moment; a folder of that name may be the user's."""
    agent = rc.load(stopped)
    agent.save(tmp_path / "agent")
    kept = plant(tmp_path / ".agent-old")
    with pytest.raises(RecollectError, match=r"\.agent-old is in the way"):
        agent.save(tmp_path / "agent")
    assert kept.read_text() == "precious"
    assert rc.load(tmp_path / "agent").steps == agent.steps
    kept.unlink()
    plant(kept.parent, "agent.json")  # what a save leaves that was cut short
    agent.save(tmp_path / "agent")
    assert not kept.parent.exists()


def test_saving_replaces_no_link_and_nothing_behind_it(stopped, tmp_path):
    agent = rc.load(stopped)
    agent.save(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    before = (tmp_path / "real" / "agent.json").read_bytes()
    with pytest.raises(RecollectError, match="link is a link"):
        agent.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "agent.json").read_bytes() == before
    assert sorted(p.name for p in tmp_path.glob(".*")) == []


def test_saving_over_a_pipe_is_refused(stopped, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecollectError, match=r"exists.*choose another folder"):
        rc.load(stopped).save(tmp_path / "pipe")


# What else is written --------------------------------------------------------------------------------------


def test_a_video_leaves_other_files_alone(stopped, tmp_path):
    pytest.importorskip("PIL")
    from recollect.play import record_film, write_film

    kept = plant(tmp_path, ".play.part.gif")
    linked = plant(tmp_path / "elsewhere")
    (tmp_path / ".other.part.gif").symlink_to(linked)
    film = record_film(rc.load(stopped), episodes=1, frames=False)
    for name in ("play.gif", "other.gif"):
        write_film(film, tmp_path / name)
    assert kept.read_text() == linked.read_text() == "precious"
    names = {".play.part.gif", ".other.part.gif", "play.gif", "other.gif", "elsewhere", "stopped"}
    assert {p.name for p in tmp_path.iterdir()} == names


def test_an_export_replaces_no_description_of_another(stopped, tmp_path):
    """FILE.json beside the file is Recollect's own or nothing."""
    from recollect.export.files import export_agent

    kept = plant(tmp_path, "agent.pt2.json")
    agent = rc.load(stopped)
    with pytest.raises(RecollectError, match=r"agent\.pt2\.json .*choose another name"):
        export_agent(agent, tmp_path / "agent.pt2", "torch", check=False)
    assert kept.read_text() == "precious"
    kept.write_text(json.dumps({"format": 1, "file": "agent.pt2", "kind": "torch"}))
    export_agent(agent, tmp_path / "agent.pt2", "torch", check=False)


def test_a_report_does_not_write_episodes_through_a_link(stopped, tmp_path):
    kept = plant(tmp_path / "elsewhere", "report-0.json")
    (stopped / "episodes").symlink_to(kept.parent)
    page = write_report(stopped).read_text()
    assert "episodes is a link" in page
    assert kept.read_text() == "precious"
    assert list(kept.parent.iterdir()) == [kept]


@pytest.mark.parametrize("name", ["lock", "v0", "v0/seed-0", "v0/seed-0.log", "configs"])
def test_a_sweep_is_written_through_no_link(tmp_path, name, monkeypatch):
    """Neither its runs nor their logs."""
    from tests.sweep.test_foreign import FLAGS, write_sweep

    monkeypatch.setattr("recollect.sweep.sweep_folder.run_members", lambda *_, **__: 0)
    kept = plant(tmp_path / "elsewhere")
    target = kept if name.endswith((".log", "lock")) else kept.parent
    write_sweep(tmp_path / "sweep", ["delayed-cue"], FLAGS)
    (tmp_path / "sweep" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "sweep" / name).symlink_to(target)
    with pytest.raises(RecollectError, match=f"{name} is a link"):
        Sweep.open(tmp_path / "sweep").run(progress=False)
    assert kept.read_text() == "precious"
    assert list(kept.parent.iterdir()) == [kept]


def test_only_files_of_an_agent_are_ours(tmp_path):
    """A folder of the name of one of them is not."""
    plant(tmp_path / "a", "agent.json")
    assert run_files.is_ours(tmp_path / "a")
    plant(tmp_path / "a" / "weights.safetensors")
    assert not run_files.is_ours(tmp_path / "a")
    assert not run_files.is_ours(tmp_path / "nothing")


# Files that the user names ---------------------------------------------------------------------------------


@pytest.fixture
def devices(tmp_path) -> dict[str, Path]:
    """A device, links to devices, a pipe, and a folder; none is the system's own."""
    os.mkfifo(tmp_path / "pipe.gif")
    (tmp_path / "folder.gif").mkdir()
    (tmp_path / "null.gif").symlink_to("/dev/null")
    (tmp_path / "full.gif").symlink_to("/dev/full")
    return {name: tmp_path / f"{name}.gif" for name in ("pipe", "folder", "null", "full")}


@pytest.mark.parametrize("kind", ["pipe", "folder", "null", "full"])
def test_nothing_but_a_file_is_replaced(stopped, devices, kind, capsys):
    """A report, an export or a video that was renamed onto a device would take its place."""
    from recollect.export.files import export_agent
    from recollect.play import check_path

    place, agent = devices[kind], rc.load(stopped)
    mode = place.lstat().st_mode
    assert cli.main(["report", str(stopped), "--no-play", "--out", str(place)]) == 2
    words = {"folder": "a folder", "pipe": "a device or a pipe"}.get(kind, "a link")
    assert f"{place} is {words}" in capsys.readouterr().err
    for call in (
        lambda: export_agent(agent, place, "torch", check=False),
        lambda: check_path(place),
    ):
        with pytest.raises(RecollectError, match=str(place)):
            call()
    assert place.lstat().st_mode == mode
    assert not list(place.parent.glob(".*"))


@pytest.mark.parametrize("out", ["/dev/null", "/dev/full", "/dev/stdout"])
def test_a_report_never_replaces_a_device(stopped, out, capsys, monkeypatch):
    """These are the system's own: whatever would replace one is forbidden here."""

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a device was about to be replaced")

    monkeypatch.setattr(os, "replace", forbidden)
    monkeypatch.setattr(Path, "write_text", forbidden)
    assert cli.main(["report", str(stopped), "--no-play", "--out", out]) == 2
    said = "is a link" if Path(out).is_symlink() else "is a device or a pipe: name a file"
    assert said in capsys.readouterr().err
