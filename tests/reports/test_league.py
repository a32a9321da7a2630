"""The section of a report on the league of a run: its data, and how a browser draws it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from recollect.reports import write_report
from recollect.reports.league import MOST, gather_league
from tests.support.browser import NEEDED, Browser
from tests.support.league_runs import EVERY, add_cycle, make_league
from tests.support.report_runs import make_run


def league_of(run: Path, steps: int = 4 * EVERY) -> dict:
    found = gather_league(run, steps)
    assert found is not None
    return found


def test_a_run_without_a_league(tmp_path: Path) -> None:
    assert gather_league(make_run(tmp_path / "run"), 100) is None


def test_ratings_over_time(tmp_path: Path) -> None:
    """Snapshots at their steps, the agent between them, and each near its strength."""
    pool = make_league(tmp_path, 4, 300)
    pool.add_other("rival", {"weight": torch.zeros(4)}, 77, "elsewhere")
    found = league_of(tmp_path)
    assert found["anchor"] == "bot"
    assert found["ratings"]["names"] == ["s0", "s1", "s2", "s3"]
    assert found["ratings"]["steps"] == [0, EVERY, 2 * EVERY, 3 * EVERY]
    assert found["agent"]["names"] == ["s0+", "s1+", "s2+", "s3+"]
    assert found["agent"]["steps"] == [EVERY * (i + 0.5) for i in range(4)]
    for points, lead in ((found["ratings"], 0), (found["agent"], 50)):
        for i in range(4):
            assert points["low"][i] <= points["value"][i] <= points["high"][i]
            assert points["value"][i] == pytest.approx(100 * i - 200 + lead, abs=45)
    assert [(one["name"], one["value"]) for one in found["added"]] == [("rival", None)]


def test_the_matrix_counts_every_game_once(tmp_path: Path) -> None:
    """Rows are the agent's stretches and the players of matches; both sides of a pair are added up."""
    pool = make_league(tmp_path, 3, 10)
    add_cycle(pool, 50)
    matrix = league_of(tmp_path)["matrix"]
    assert matrix["rows"] == ["s0+", "s1+", "s2+", "s0", "s1", "s2"]
    assert matrix["columns"] == ["bot", "s0", "s1", "s2"]
    cells = {(matrix["rows"][i], matrix["columns"][j]): rest for i, j, *rest in matrix["cells"]}
    assert sum(cells["s2+", "s1"][:3]) == 10
    assert cells["s0", "s1"][:3] == [100, 0, 10]
    assert cells["s1", "s0"][:3] == [10, 0, 100]
    assert ("s0+", "s1") not in cells
    won, drawn, lost, low, high = cells["s2+", "bot"]
    assert low < (won + drawn / 2) / (won + drawn + lost) < high
    assert len(cells) == 2 + 3 + 4 + 6


def test_opponents_and_cycles(tmp_path: Path) -> None:
    pool = make_league(tmp_path, 3, 20)
    pool.set_state("s1", "retired")
    add_cycle(pool)
    found = league_of(tmp_path)
    rows = {row["name"]: row for row in found["opponents"]}
    assert [row["games"] for row in found["opponents"]] == [60, 60, 40, 20]
    assert rows["s1"]["state"] == "retired"
    assert rows["bot"]["steps"] is None
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1, abs=1e-3)
    share, low, high = rows["s0"]["win"]
    assert low < share < high
    assert len(found["cycles"]) == 1
    assert set(found["cycles"][0].split(" > ")) >= {"s0 (91%)", "s1 (91%)", "s2 (91%)"}


def test_a_large_league_is_thinned(tmp_path: Path) -> None:
    """Evenly, with the ends and the scripted player."""
    make_league(tmp_path, 90, 1)
    matrix = league_of(tmp_path)["matrix"]
    assert len(matrix["rows"]) == len(matrix["columns"]) == MOST
    assert matrix["columns"][:2] == ["bot", "s0"]
    assert matrix["columns"][-1] == "s89"
    assert matrix["hidden"] == 90 - MOST + 91 - MOST


def test_a_damaged_league_is_a_note(tmp_path: Path) -> None:
    pool = make_league(tmp_path, 2, 3)
    (pool.folder / "rosters.jsonl").write_text('{"number": "x"}\n')
    assert "rosters.jsonl" in league_of(tmp_path)["problem"]


# In a browser ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(tmp_path_factory.mktemp("runs") / "run")
    add_cycle(make_league(run, 5, 30))
    return write_report(run, play=False)


@NEEDED
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_the_section_is_drawn(browser: Browser, report: Path, width: int, dark: bool) -> None:
    """Curves with intervals, a number in every cell that has games, a bar and a whisker for each opponent."""
    browser.open(report, dark=dark, width=width)
    assert browser.js("return document.documentElement.scrollWidth") <= width
    assert browser.count("#league .series.points circle.point") >= 5
    assert browser.count("#league .series.line path.band") == 1
    assert browser.count(".payoff tbody tr") == 8
    numbers = browser.texts(".payoff td b")
    assert len(numbers) == 2 + 3 + 4 + 5 + 6 + 6
    assert all(0 <= int(number) <= 100 for number in numbers)
    assert browser.count(".payoff td[aria-label]") == len(numbers)
    assert browser.count(".opponents tbody tr") == 6
    assert browser.count(".opponents .played rect") == 6
    assert browser.texts(".cycles li") == ["s0 (91%) > s1 (91%) > s2 (91%) > s0"]


@NEEDED
def test_numbers_in_cells_have_contrast(browser: Browser, report: Path) -> None:
    """At least 4.5 to 1 in both themes, for every cell, also after a switch."""
    code = (
        "const l = (c) => {const p = c.match(/[0-9.]+/g).slice(0, 3).map((x) => x / 255).map((v) => "
        "v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);"
        "return 0.2126 * p[0] + 0.7152 * p[1] + 0.0722 * p[2]};"
        "return Math.min(...[...document.querySelectorAll('.payoff td[aria-label]')].map((e) => {"
        "const s = getComputedStyle(e); const a = [l(s.color), l(s.backgroundColor)].sort((x, y) => x - y);"
        "return (a[1] + 0.05) / (a[0] + 0.05)}))"
    )
    browser.open(report)
    assert browser.js(code) >= 4.5
    browser.click("#theme")
    assert browser.js(code) >= 4.5


@NEEDED
def test_a_cell_tells_its_numbers(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.mouse(".payoff tbody tr:nth-child(2) td:nth-child(2)", 0.5, 0.5)
    (title,) = browser.texts(".tip-title")
    assert title == "s1+ against bot"
    assert "won, drawn, lost" in browser.texts(".tip")[0]


@NEEDED
def test_a_large_league_is_drawn(browser: Browser, tmp_path: Path) -> None:
    """Without numbers in its cells, and with the opponents that played less folded away."""
    run = make_run(tmp_path / "run")
    make_league(run, 60, 2)
    browser.open(write_report(run, play=False), width=900)
    assert browser.js("return document.documentElement.scrollWidth") <= 900
    assert browser.count(".payoff.dense tbody tr") == MOST
    assert browser.count(".payoff td b") == 0
    assert "46 more opponents" in browser.texts("#league summary")[0]


@NEEDED
def test_a_damaged_league_is_told(browser: Browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    pool = make_league(run, 2, 3)
    (pool.folder / "league.json").write_text("{")
    browser.open(write_report(run, play=False))
    assert "league.json is damaged" in browser.texts("#league .note")[0]
