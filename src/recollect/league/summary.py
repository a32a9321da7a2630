"""A league at a glance: members, results, ratings, cycles; for ``recollect league show`` and the report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from recollect.acting.versus_games import Results
from recollect.league.games import count, read_games
from recollect.league.matchmaking import Rosters
from recollect.league.payoff import Payoff
from recollect.league.pool import Member, Pool
from recollect.league.ratings import Ratings, rate
from recollect.league.results import LEARNER, payoff

SAMPLES = 200
"""Of the bootstrap: ends of intervals are the 5th number from either end."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The members of a league and their games."""

    members: tuple[Member, ...]
    shares: dict[str, float]
    """Of the present games, by opponent."""
    played: dict[str, Results]
    """The results of the agent in training against each opponent."""
    payoff: Payoff
    """Of all games, those of matches too."""
    ratings: Ratings

    def to_json(self) -> dict[str, Any]:
        """The JSON form."""
        found = self.ratings.to_json()
        rated = {row.pop("player"): row for row in found.pop("ratings")}
        return {
            "members": [self._row(member) | {"rated": rated[member.name]} for member in self.members],
            "agent": [{"name": name} | row for name, row in rated.items() if name.endswith(LEARNER)],
            **found,
            "payoff": self.payoff.to_json(),
        }

    def _row(self, member: Member) -> dict[str, Any]:
        return {
            "name": member.name,
            "kind": kind(member),
            "state": member.state,
            "steps": member.steps if member.is_snapshot else None,
            "origin": member.origin or None,
            "share": self.shares.get(member.name, 0.0),
            **asdict(self.played.get(member.name, Results())),
        }


def kind(member: Member) -> str:
    """What a member is, in a word."""
    return "added" if member.origin else "snapshot" if member.is_own else "scripted"


def summarise(pool: Pool) -> Summary:
    """Read all games of a league, and rate its players."""
    rosters = Rosters(pool.folder).read()
    anchor, results = pool.anchor, payoff(pool)
    return Summary(
        members=tuple(pool.members),
        shares=dict(zip(rosters[-1].members, rosters[-1].shares)) if rosters else {},
        played=count(read_games(pool.folder)),
        payoff=results,
        ratings=rate(results, anchor.name, samples=SAMPLES),
    )
