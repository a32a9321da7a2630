"""Which members are retired, and which never are."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect.acting.versus_games import Results
from recollect.errors import ConfigError
from recollect.league.games import Game, GameLog
from recollect.league.matchmaking import RECENT, Roster, Rosters
from recollect.league.pool import Pool
from recollect.league.prune import prune, ranked
from tests.support.league_runs import make_league


def states(pool: Pool) -> dict[str, str]:
    return {one.name: one.state for one in Pool(pool.folder).members}


def test_members_that_are_beaten_go_first(tmp_path: Path) -> None:
    """By the lower end of the interval of the agent's points; a lucky game is no evidence; ties by age."""
    pool = make_league(tmp_path, 7, 0)
    counts = {
        "s0": Results(win=1),  # 21%
        "s1": Results(60, 0, 40),
        "s2": Results(80, 0, 20),
        "s3": Results(70, 20, 10),
        "s4": Results(60, 0, 40),
    }
    order = [one.name for one in ranked(pool, counts)]
    assert order == ["s2", "s3", "s1", "s4", "s0", "s5"], "s6 is the newest"


def test_the_anchor_and_the_newest_stay(tmp_path: Path) -> None:
    """The scripted player, or without one the first snapshot; nothing else stays for --keep 1."""
    pool = make_league(tmp_path, 4, 20)
    assert {one.name for one in prune(pool, 1)} == {"s0", "s1", "s2"}
    assert states(pool) == {
        "bot": "member",
        "s0": "retired",
        "s1": "retired",
        "s2": "retired",
        "s3": "member",
    }
    alone = make_league(tmp_path / "alone", 4, 0)
    alone._write([one for one in alone.members if one.name != "bot"])
    assert {one.name for one in prune(alone, 1)} == {"s1", "s2"}, "s0 is the anchor"


def test_as_many_stay_as_asked_for(tmp_path: Path) -> None:
    """Of the snapshots that play; candidates and retired ones are not counted, and no file is removed."""
    pool = make_league(tmp_path, 6, 20)
    pool.set_state("s1", "retired")
    pool.set_state("s2", "candidate")
    kept = sorted(path.name for path in (pool.folder / "members").iterdir())
    assert len(prune(pool, 3)) == 1
    found = states(pool)
    assert sum(state == "member" for state in found.values()) == 3 + 1
    assert (found["s1"], found["s2"]) == ("retired", "candidate")
    assert prune(pool, 3) == []
    assert prune(pool, 50) == []
    assert sorted(path.name for path in (pool.folder / "members").iterdir()) == kept, "no file is removed"


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    pool = make_league(tmp_path, 5, 20)
    text = pool.file.read_text()
    would = prune(pool, 2, dry_run=True)
    assert pool.file.read_text() == text, "nothing is written"
    assert prune(pool, 2) == would


def test_old_games_do_not_count(tmp_path: Path) -> None:
    """The agent was another one: games count for ten rosters, as in matchmaking."""
    pool = make_league(tmp_path, 3, 0)
    log, rosters = GameLog(pool.folder, 0), Rosters(pool.folder)
    for number in range(3, 20):
        rosters.add(Roster(number, 1000 * number, ("s0", "s1"), (0.5, 0.5), "s2"))
    for i in range(40):
        old = i < 20  # s0 was beaten in roster 5, and s1 lately
        number = 19 - RECENT if old else 19
        log.add([Game(0, i, number, "s0" if old else "s1", "north", "win", 5)])
    assert [one.name for one in prune(pool, 2)] == ["s1"]


@pytest.mark.parametrize("keep", [0, -3])
def test_keep_is_at_least_one(tmp_path: Path, keep: int) -> None:
    with pytest.raises(ConfigError, match="--keep 1"):
        prune(make_league(tmp_path, 2, 0), keep)
