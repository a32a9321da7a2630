"""The games of a league as results between players, for ratings."""

from __future__ import annotations

from collections.abc import Iterator

from recollect.envs.versus import OUTCOMES
from recollect.errors import RecollectError
from recollect.league.games import read_games
from recollect.league.matchmaking import Rosters
from recollect.league.pool import Pool


def played(pool: Pool) -> Iterator[tuple[str, str, int]]:
    """Every game of the training: player of the first side, player of the second, result (``TwoSided.won``).

    The agent has the name of the newest snapshot at that time, which it is or has grown out of: games of an
    agent that learns are of no frozen player.
    """
    latest = {roster.number: roster.latest for roster in Rosters(pool.folder).read()}
    sides = [] if pool.signature is None else pool.signature.get("sides")
    for game in read_games(pool.folder):
        agent, won = latest.get(game.roster), OUTCOMES[game.outcome]
        if not isinstance(sides, list) or game.side not in sides[:2] or agent is None:
            raise RecollectError(
                f"{pool.folder} does not fit together: slot {game.slot}, game {game.game} has the side "
                f"{game.side!r} and roster {game.roster}; take another copy of it"
            )
        yield (agent, game.member, won) if game.side == sides[0] else (game.member, agent, -won)
