"""The league of a training, made without one: players of known strength, and games drawn from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from recollect.acting.versus_games import Results
from recollect.config.league import LEAGUE
from recollect.envs.versus import OUTCOMES
from recollect.league.games import Game, GameLog
from recollect.league.matches import MatchLog
from recollect.league.matchmaking import Roster, Rosters
from recollect.league.pool import Pool

EVERY = 1000
"""Env steps between two snapshots."""


def make_league(run: Path, snapshots: int = 4, games: int = 60, seed: int = 0) -> Pool:
    """The agent gains 100 points from each snapshot to the next, and plays the bot and all snapshots.

    ``games``: in the time of each snapshot, as many against every opponent.
    """
    pool, generator = Pool(run / LEAGUE), np.random.default_rng(seed)
    sides = ["north", "south"]
    pool.create({"sides": sides}, ["bot"])
    rosters, log = Rosters(pool.folder), GameLog(pool.folder, 0)
    strengths, played = {"bot": 0.0}, 0
    for i in range(snapshots):
        strengths[f"s{i}"] = 100.0 * i - 200
        pool.add({"weight": torch.full((4,), float(i))}, EVERY * i)
        names = tuple(strengths)
        rosters.add(Roster(i, EVERY * i, names, (1 / len(names),) * len(names), f"s{i}"))
        for name in names:
            share = 0.8 / (1 + 10 ** ((strengths[name] - strengths[f"s{i}"] - 50) / 400))
            for outcome in generator.choice(list(OUTCOMES), games, p=[share, 0.2, 0.8 - share]):
                log.add([Game(0, played, i, name, sides[played % 2], str(outcome), 5)])
                played += 1
    return pool


def add_cycle(pool: Pool, games: int = 100) -> None:
    """Matches in which s0 beats s1, s1 beats s2, and s2 beats s0."""
    for one, other in (("s0", "s1"), ("s1", "s2"), ("s2", "s0")):
        half = Results(games, 0, games // 10)
        MatchLog(pool).add(one, other, {"north": half, "south": half}, MatchLog(pool).next_seed(one, other))
