"""Which members a league can do without: ``recollect league prune``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from recollect.acting.versus_games import Results, wilson
from recollect.errors import ConfigError
from recollect.league.games import count, read_games
from recollect.league.matchmaking import RECENT, Rosters
from recollect.league.pool import Member, Pool


@dataclass(frozen=True, slots=True)
class Retired:
    """A member that is retired."""

    name: str
    games: int
    """Of the agent against it, in the last ``RECENT`` rosters."""
    score: float
    """The lower end of the 95% Wilson interval of the agent's share of wins in them, a draw as half a win."""


def prune(pool: Pool, keep: int, *, dry_run: bool = False) -> list[Retired]:
    """Retire members with weights until ``keep`` are left; returns them in the order of their retirement.

    The members that the agent beats most surely go first, and of equals the oldest: they have the least to
    teach. The anchor and the newest snapshot stay. No file is removed: games in progress end with their
    opponent, and a resume from an earlier checkpoint finds all members.
    """
    if keep < 1:
        raise ConfigError(f"keep = {keep}: at least 1 snapshot is kept, the newest (--keep 1)")
    rosters = Rosters(pool.folder).read()
    since = rosters[-1].number + 1 - RECENT if rosters else 0
    found = ranked(pool, count(read_games(pool.folder), since))
    playing = sum(member.is_snapshot for member in pool.playing)
    gone = found[: max(0, playing - keep)]
    if not dry_run:
        for one in gone:
            pool.set_state(one.name, "retired")
    return gone


def ranked(pool: Pool, counts: Mapping[str, Results]) -> list[Retired]:
    """All members that may be retired, the first to go first."""

    def judged(member: Member) -> Retired:
        results = counts.get(member.name, Results())
        score = wilson(results.win + results.draw / 2, results.games)[0]
        return Retired(member.name, results.games, score)

    stays = (pool.anchor, pool.newest)
    found = [judged(one) for one in pool.playing if one.is_snapshot and one not in stays]
    return sorted(found, key=lambda one: -one.score)  # stable: the oldest first
