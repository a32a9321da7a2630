"""The capture zone, its score, and the end of a game."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recollect.tasks.mech.rules import CONTESTED, DECISION

if TYPE_CHECKING:
    from recollect.tasks.mech.arena import MechArena


@dataclass(frozen=True, slots=True)
class Hold:
    """Who holds the zone after a decision."""

    within: Tensor
    """[E, 2, N] bool: the mech, or its wreck, is in the zone."""
    inside: Tensor
    """[E, 2, N] bool: lives and is in the zone."""
    contested: Tensor
    """[E, 1, 1] bool: both sides are inside."""
    tick: Tensor
    """[E, 2]: seconds of score per second."""


def hold(arena: MechArena) -> Hold:
    """Who holds the zone now."""
    radius = arena.radius.view(-1, 1, 1)
    within = arena.x * arena.x + arena.y * arena.y <= radius * radius
    inside = arena.alive & within
    tons = (inside * arena.tables.tons).sum(2)
    there = tons.flip(1)
    contested = (tons > 0) & (there > 0)
    margin = (tons - there) / (tons + there).clamp(min=1.0)
    tick = torch.where(contested, (CONTESTED + margin).clamp(0.0, 1.0), (tons > 0).float())
    return Hold(within, inside, contested[:, :1, None], tick)


def is_over(arena: MechArena) -> Tensor:
    """[E] bool: a side has held the zone for half of the time limit, or is eliminated."""
    lives = arena.alive.any(2)
    enough = arena.score >= arena.max_episode_steps * (DECISION / 2)
    return enough.any(1) | ~lives.all(1)


def winner(arena: MechArena) -> Tensor:
    """[E]: 1 blue, -1 red, 0 a draw: by elimination, then by score, then by hit points."""
    lives = arena.alive.any(2).float()
    hp = arena.hp.sum(2)
    result = torch.zeros_like(arena.radius)
    for blue, red in (each.unbind(1) for each in (hp, arena.score, lives)):
        result = torch.where(blue == red, result, (blue - red).sign())
    return result
