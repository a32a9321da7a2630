"""Matches between members: kept whole, of these weights only, and none of them twice."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from recollect.acting.versus_games import Results
from recollect.base import files
from recollect.errors import RecollectError
from recollect.league.matches import SEED, MatchLog
from recollect.league.payoff import Counts
from recollect.league.results import payoff
from tests.support.league_runs import make_league

SIDES = {"north": Results(5, 2, 3), "south": Results(1, 4, 5)}
"""Of the first of the two."""


def test_games_are_those_of_their_sides(tmp_path: Path) -> None:
    """Where the first player has the second side, the wins of that side are its losses."""
    pool = make_league(tmp_path, 2, 0)
    MatchLog(pool).add("s0", "bot", SIDES, SEED)
    counts = payoff(pool).counts
    assert dict(counts) == {("s0", "bot"): Counts(5, 2, 3), ("bot", "s0"): Counts(5, 4, 1)}


def test_games_of_the_training_and_of_matches_are_added_up(tmp_path: Path) -> None:
    """The agent in training is a player of its own; every game counts once."""
    pool = make_league(tmp_path, 2, 30)
    MatchLog(pool).add("s0", "bot", SIDES, SEED)
    MatchLog(pool).add("bot", "s0", SIDES, SEED + 1)
    found = payoff(pool)
    total = Counter({pair: sum(each) for pair, each in found.counts.items()})
    assert sum(total.values()) == 30 * (2 + 3) + 40
    assert total["s0", "bot"] + total["bot", "s0"] == 40
    assert total["s1+", "s0"] + total["s0", "s1+"] == 30
    assert set(found.players) == {"bot", "s0", "s1", "s0+", "s1+"}
    assert found.counts["s0", "bot"] == Counts(5 + 5, 2 + 4, 3 + 1)


def test_games_of_other_weights_do_not_count(tmp_path: Path) -> None:
    """A resumed run has made s1 again, and it is another one."""
    pool = make_league(tmp_path, 2, 0)
    log = MatchLog(pool)
    log.add("s0", "bot", SIDES, SEED)
    log.add("s1", "bot", SIDES, SEED)
    pool.rewind(0)
    pool.add({"weight": torch.full((4,), 9.0)}, 1000)
    assert {match.first for match in log.read()} == {"s0", "bot"}
    assert log.next_seed("s0", "bot") == SEED + 1
    assert log.next_seed("s1", "bot") == SEED


def test_the_same_games_are_not_counted_twice(tmp_path: Path) -> None:
    """Each match of a pair has a seed of its own, whoever of the two comes first."""
    pool = make_league(tmp_path, 2, 0)
    log = MatchLog(pool)
    for number, (one, other) in enumerate((("s0", "s1"), ("s1", "s0"), ("s0", "s1"))):
        assert log.next_seed(one, other) == SEED + number, "a seed of its own"
        log.add(one, other, SIDES, SEED + number)
    with pytest.raises(RecollectError, match="meanwhile"):
        log.add("s0", "s1", SIDES, SEED + 2)
    assert len(log.read()) == 6


def test_a_crash_in_the_middle_of_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a line is no match, and the next one is whole."""
    pool = make_league(tmp_path, 2, 0)
    log = MatchLog(pool)
    log.add("s0", "bot", SIDES, SEED)

    def half(file: Path, text: str) -> None:
        with file.open("a") as handle:
            handle.write(text[: len(text) // 3])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files, "append_whole", half)
        with pytest.raises(KeyboardInterrupt):
            log.add("s0", "bot", SIDES, SEED + 1)
    assert len(log.read()) == 2
    log.add("s1", "bot", SIDES, SEED)
    assert [match.first for match in log.read()] == ["s0", "bot", "s1", "bot"]


def test_several_writers(tmp_path: Path) -> None:
    """None of the matches that are written at the same time is lost or damaged."""
    pool = make_league(tmp_path, 6, 0)
    names = [f"s{i}" for i in range(6)]

    def write(name: str) -> None:
        for number in range(5):
            MatchLog(pool).add(name, "bot", SIDES, SEED + number)

    with ThreadPoolExecutor(6) as writers:
        list(writers.map(write, names))
    found = Counter(match.first for match in MatchLog(pool).read())
    assert found == Counter(dict.fromkeys(names, 5) | {"bot": 30})


@pytest.mark.parametrize(
    "change",
    [
        {"wins": -1},
        {"wins": True},
        {"seed": 2**70},
        {"first": 5},
        {"weights": "ab"},
        {"weights": [""]},
        {"x": 1},
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, change: dict) -> None:
    pool = make_league(tmp_path, 1, 0)
    log = MatchLog(pool)
    log.add("s0", "bot", SIDES, SEED)
    lines = log.file.read_text().splitlines()
    row = json.loads(lines[0]) | change
    log.file.write_text(json.dumps(row) + "\n")
    if change == {"weights": "ab"}:  # two texts, but not those of the members
        assert log.read() == []
        return
    with pytest.raises(RecollectError, match=r"matches\.jsonl"):
        log.read()


def test_links_are_refused(tmp_path: Path) -> None:
    pool = make_league(tmp_path, 1, 0)
    (pool.folder / "matches.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecollectError, match="link"):
        MatchLog(pool)
