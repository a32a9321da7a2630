"""All games of a league as results between players, for ratings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from recollect.envs.versus import OUTCOMES
from recollect.errors import RecollectError
from recollect.league.games import read_games
from recollect.league.matches import MatchLog
from recollect.league.matchmaking import Rosters
from recollect.league.payoff import Counts, Payoff
from recollect.league.pool import Pool

LEARNER = "+"
"""The end of the names of the agent in training: "s3+" is the agent that has grown out of s3."""


def payoff(pool: Pool) -> Payoff:
    """The results of all games, of the training and of matches.

    The agent in training is a player of its own from each snapshot to the next: it learns, so its games are
    no evidence on the strength of a snapshot that it did not have.
    """
    results = Counter((first, second, won) for first, second, won in played(pool))
    for match in MatchLog(pool).read():
        for won, count in zip((1, 0, -1), match.counts):
            results[match.first, match.second, won] += count
    players = dict.fromkeys(member.name for member in pool.members)
    players |= dict.fromkeys(name for first, second, _ in results for name in (first, second))
    pairs = dict.fromkeys((first, second) for first, second, _ in results)
    counts = {(a, b): Counts(*(results[a, b, won] for won in (1, 0, -1))) for a, b in pairs}
    return Payoff(tuple(players), counts)


def played(pool: Pool) -> Iterator[tuple[str, str, int]]:
    """Every game of the training: player of the first side, player of the second, result (``TwoSided.won``).

    The agent has the name of the newest snapshot at that time and ``LEARNER``.
    """
    latest = {roster.number: roster.latest for roster in Rosters(pool.folder).read()}
    sides = [] if pool.signature is None else pool.signature.get("sides")
    for game in read_games(pool.folder):
        snapshot, won = latest.get(game.roster), OUTCOMES[game.outcome]
        if not isinstance(sides, list) or game.side not in sides[:2] or snapshot is None:
            raise RecollectError(
                f"{pool.folder} does not fit together: slot {game.slot}, game {game.game} has the side "
                f"{game.side!r} and roster {game.roster}; take another copy of it"
            )
        agent = snapshot + LEARNER
        yield (agent, game.member, won) if game.side == sides[0] else (game.member, agent, -won)
