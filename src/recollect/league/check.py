"""Whether the log of a league's games is in order: ``recollect league check RUN``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from recollect.base.files import read_json
from recollect.config.league import LEAGUE
from recollect.errors import ConfigError, RecollectError
from recollect.league.games import Game, faults, read_games
from recollect.league.matchmaking import Rosters, luck, slot_keys
from recollect.league.pool import Pool

CHUNK = 4096
"""Games whose draws are repeated at a time."""


@dataclass
class Checked:
    """The result of a check."""

    games: int = 0
    redrawn: int = 0
    """Games whose draw was repeated."""
    faults: list[str] = field(default_factory=list)
    members: int = 0
    broken: list[str] = field(default_factory=list)
    """Snapshots that are missing or damaged: nothing else depends on them."""


def open_league(run: Path) -> Pool:
    """The league of a run."""
    pool = Pool(run / LEAGUE)
    if pool.signature is None:
        raise ConfigError(f"{run} has no league: train one with recollect train ENV --vs league")
    return pool


def check_league(run: Path) -> Checked:
    """Repeat the draw of every game from the seed, the slot and the roster, and compare it with the log.

    A draw that met a damaged snapshot cannot be repeated; with one, differences count only where the member
    that was drawn can be loaded.
    """
    pool, seed = open_league(run), _seed(run)
    rosters = {roster.number: roster for roster in Rosters(pool.folder).read()}
    found = Checked(members=len(pool.members))
    for member in pool.members:
        try:
            pool.verify(member.name)
        except RecollectError as error:
            found.broken.append(str(error))
    lost = {member.name for member in pool.members if any(f"{member.name}." in text for text in found.broken)}

    places: dict[tuple[int, int], float] = {}

    def with_places(games: Iterator[Game]) -> Iterator[Game]:
        while some := list(itertools.islice(games, CHUNK)):
            keys = [(game.slot, game.game) for game in some]
            slots, numbers = torch.tensor(keys).T
            places.clear()
            places.update(zip(keys, luck(slot_keys(seed, slots), numbers).tolist()))
            yield from some

    def drawn(game: Game) -> str | None:
        found.games += 1
        if game.roster not in rosters:
            return None
        found.redrawn += 1
        name = rosters[game.roster].pick(places[game.slot, game.game])
        return None if name in lost else name

    found.faults = faults(with_places(read_games(pool.folder)), drawn)
    return found


def _seed(run: Path) -> int:
    """The seed of the run."""
    config = read_json(run / "run.json").get("config")
    seed = config.get("seed") if isinstance(config, dict) else None
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise RecollectError(f"{run / 'run.json'} is damaged (seed): take another copy of it")
    return seed
