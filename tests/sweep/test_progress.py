"""How a sweep looks: 80 columns, what is urgent first, and a reader that goes away breaks nothing."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from recollect.base.files import last_row
from recollect.errors import ConfigError
from recollect.sweep import progress as module
from recollect.sweep.member import Member, Progress
from recollect.sweep.plan import Variant
from recollect.sweep.progress import make_board


def members(path: Path, count: int = 3) -> list[Member]:
    """Runs with folders; the first is half through, the second has one evaluation."""
    made = []
    for i in range(count):
        variant = Variant(f"core=lstm,learning_rate=0.000{i}", f"v{i}", "delayed-cue", ())
        made.append(Member(variant, i, path / f"v{i}" / f"seed-{i}", ()))
    rows: list[dict[str, Any]] = [
        {"steps": 25, "seconds": 5.0, "return": None},
        {"steps": 50, "seconds": 10.0, "return": 0.25},
    ]
    for member, row in zip(made, rows[::-1]):
        member.path.mkdir(parents=True)
        (member.path / "status.json").write_text(json.dumps({"state": "running", "steps": 0, "end": 100}))
        (member.path / "metrics.jsonl").write_text(json.dumps(row) + "\n" + '{"steps": 9')
    (made[1].path / "evaluations.jsonl").write_text(json.dumps({"steps": 20, "mean": 0.875}) + "\n")
    return made


def console(width: int = 80, height: int = 24, *, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=terminal, color_system=None)


def text(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def test_progress_of_a_run(tmp_path):
    first, second, third = (member.progress() for member in members(tmp_path))
    assert (first.steps, first.fraction, first.left, first.mean_return) == (50, 0.5, 10.0, 0.25)
    assert (second.left, second.mean_return, second.evaluation) == (15.0, None, 0.875)
    assert (third.fraction, third.left, third.evaluation) == (0.0, None, None)


@pytest.mark.parametrize("line", ["[]", "3", '{"steps": "x", "end": [], "mean": "y", "seconds": NaN}'])
def test_what_is_damaged_is_as_if_it_was_not_there(line, tmp_path):
    """The table of all runs is drawn, whatever the files of one hold."""
    member, *_ = members(tmp_path)
    for file in ("status.json", "metrics.jsonl", "evaluations.jsonl"):
        (member.path / file).write_text(f"{line}\n")
    assert member.progress() == Progress()
    assert member.score() is None


@pytest.mark.parametrize("size", [10, 5000, 50_000])
def test_last_row_reads_long_lines_and_leaves_out_half_a_line(size, tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [{"n": n, "filler": "x" * size} for n in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert last_row(file) == rows[2]
    with file.open("a") as handle:
        handle.write('{"n": 3, "filler": "xx')
    assert last_row(file) == rows[2]
    file.write_text('{"n": 0')
    assert last_row(file) == {}
    assert last_row(tmp_path / "absent") == {}


def test_the_table_fits_and_tells_all(tmp_path):
    runs, shown = members(tmp_path), console(terminal=True)
    with make_board("live", tmp_path, runs, runs[:2], 2, shown) as board:
        board.update(runs[0], "running", "")
        board.update(runs[1], "running", "")
        page = console()
        page.print(board.view())  # pyright: ignore[reportAttributeAccessIssue]
        board.tick(1)
        stopping = console()
        stopping.print(board.view())  # pyright: ignore[reportAttributeAccessIssue]
    assert "learning_rate=0.0000" in text(shown)  # it is drawn in its place, and gone at the end
    assert text(shown).rstrip().endswith("\x1b[2K")
    lines = [line.rstrip() for line in text(page).splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["run", "seed", "state", "steps", "return", "greedy", "eval", "left"]
    assert lines[1].split() == ["core=lstm,learning_rate=0.0000", "0", "running", "50%", "0.250", "-", "0:10"]
    assert lines[2].split() == ["core=lstm,learning_rate=0.0001", "1", "running", "25%", "-", "0.875", "0:15"]
    assert lines[3].split()[2] == "finished"
    # 15 s made three quarters of a run, and 1.25 of them are left to two at a time.
    assert lines[4].startswith("1 of 3 finished, 2 running, left 0:12")
    assert "Ctrl-C again kills them" in text(stopping)


def test_where_not_all_fit_the_urgent_are_shown(tmp_path):
    runs = members(tmp_path, 40)
    with make_board("live", tmp_path, runs, runs[5:], 2, console(height=12, terminal=True)) as board:
        board.update(runs[30], "running", "")
        board.update(runs[35], "failed", "error: it broke\nexit code 2")
        page = console()
        page.print(board.view())  # pyright: ignore[reportAttributeAccessIssue]
        above = text(board.console)  # pyright: ignore[reportAttributeAccessIssue]
    lines = text(page).splitlines()
    assert len(lines) <= 12
    assert any("running" in line and " 30 " in line for line in lines)
    assert any("failed" in line and " 35 " in line for line in lines)
    assert "and 33 more" in text(page)
    assert "failed core=lstm,learning_rate=0.00035 seed 35: error: it broke" in above


def test_lines_where_there_is_no_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr(module.Board, "every", 0.0)
    runs, shown = members(tmp_path), console()
    with make_board("auto", tmp_path, runs, runs, 2, shown) as board:
        board.update(runs[0], "running", "")
        board.tick(0)
        board.update(runs[0], "stopped", "")
        board.update(runs[1], "finished", "")
        board.update(runs[2], "failed", "Traceback\nValueError: no such thing\nexit code 1")
        monkeypatch.setattr(module.Board, "every", 1e9)
        board.tick(1)
    assert text(shown).splitlines() == [
        "core=lstm,learning_rate=0.0000 seed 0: running",
        "core=lstm,learning_rate=0.0000 seed 0: 50%  return 0.250  eval -  left 0:10",
        "0 of 3 finished, 1 running, left 0:22",
        "core=lstm,learning_rate=0.0000 seed 0: stopped at step 50",
        "core=lstm,learning_rate=0.0001 seed 1: finished, greedy eval 0.875",
        "core=lstm,learning_rate=0.0002 seed 2: failed: ValueError: no such thing",
        "stopping: the runs save after this update; Ctrl-C again kills them",
    ]


@pytest.mark.parametrize("mode", ["live", "plain"])
def test_a_reader_that_goes_away_breaks_nothing(mode, tmp_path):
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    runs = members(tmp_path)
    shown = Quiet(file=Closed(), width=80, force_terminal=True)
    with make_board(mode, tmp_path, runs, runs, 2, shown) as board:
        board.update(runs[0], "running", "")
        board.tick(1)
        board.update(runs[0], "finished", "")
    assert board.rows[runs[0].path].state == "finished"


def test_quiet_and_unknown_modes(tmp_path, capsys):
    runs = members(tmp_path)
    for mode in ("quiet", False):
        with make_board(mode, tmp_path, runs, runs, 2) as board:
            board.update(runs[0], "failed", "why")
            board.tick(1)
    assert capsys.readouterr() == ("", "")
    with (
        pytest.raises(ConfigError, match="progress = 'loud': choose auto, live"),
        make_board("loud", tmp_path, runs, runs, 1),
    ):
        pass
