"""A game of bots in the mech arena, and the numbers of its simulation."""

from __future__ import annotations

import functools
from typing import Any

import torch

from recollect.tasks.mech import MechArena, body, zone
from recollect.tasks.mech.bot import MechBot
from recollect.tasks.mech.recording import play_again, record_game
from recollect.tasks.mech.replays import Replay

LAST = 100
"""Decisions of the game: long enough that the sides meet and fight."""


class Sure:
    """A bot that knows everything and shows a memory."""

    def __init__(self, arena: MechArena, side: int):
        self._bot, self._arena, self._side = MechBot(arena, knows="all"), arena, side
        self.shown: dict[str, torch.Tensor] = {}

    def __call__(self, rows: torch.Tensor, obs: Any, first: torch.Tensor) -> Any:
        self.shown = {"memory": self._arena.heat[0, self._side] * 0.25 + self._side}
        return self._bot.act(rows, obs, first)


@functools.cache
def game() -> Replay:
    arena = MechArena(1, mechs=5, maps=2)
    return record_game(arena, (Sure(arena, 0), Sure(arena, 1)), seed=5, names=("<b>x", "bot"), most=LAST)


@functools.cache
def states() -> list[dict[str, Any]]:
    """The numbers of the simulation after each decision."""
    found: list[dict[str, Any]] = []

    def add(arena: MechArena, action: Any) -> None:
        inside = zone.hold(arena).inside[0].any(1)
        found.append(
            {
                **{name: getattr(arena, name)[0].flatten().tolist() for name in FIELDS},
                **{"score": arena.score[0].tolist(), "holder": int(inside[0]) + 2 * int(inside[1])},
                **{"alive": arena.alive[0].sum(1).tolist(), "lives": arena.alive[0].flatten().tolist()},
                "off": (arena.alive & ~body.senses(arena))[0].flatten().tolist(),
                "dealt": arena.dealt[0].sum(2).flatten().tolist(),
            }
        )

    play_again(game(), add)
    return found


FIELDS = ("x", "y", "hp", "legs", "heat", "stability", "down", "painted", "range")
