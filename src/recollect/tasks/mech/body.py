"""Heat, stability, legs and the clocks of mechs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recollect.tasks.mech.rules import DT, EWAR_HEAT, FALL_SECONDS, REGAIN, RISEN, STABILITY, SUPPRESSION

if TYPE_CHECKING:
    from recollect.tasks.mech.actions import Orders
    from recollect.tasks.mech.arena import MechArena


def senses(arena: MechArena) -> Tensor:
    """[E, 2, N]: lives and is not shut down by heat."""
    return arena.alive & (arena.heat <= arena.tables.heat_cap)


def active(arena: MechArena) -> Tensor:
    """[E, 2, N]: can move and fire: lives, stands, and is not shut down."""
    return senses(arena) & (arena.down <= 0)


def recover(arena: MechArena, orders: Orders) -> None:
    """The end of a simulation step: heat and clocks go down, mechs fall, rise, regain stability."""
    tables = arena.tables
    awake = active(arena)
    loss = tables.heat_loss * (1 + (orders.vent & awake).float())
    costs = (arena.ewar == 1) * EWAR_HEAT[1] + (arena.ewar == 2) * EWAR_HEAT[2]
    arena.heat.add_((costs * awake - loss) * DT).clamp_(min=0.0)

    moves = (arena.vx != 0) | (arena.vy != 0)
    rate = torch.where(moves, 0.5, 1.0) * torch.where(arena.legs > 0, REGAIN, REGAIN / 2)
    rate = torch.where(arena.suppressed > 0, rate * SUPPRESSION, rate) * (arena.down <= 0)
    falls = (arena.stability <= 0) & (arena.down <= 0)
    left = _count_down(arena.down)
    rises = (arena.down > 0) & (left <= 0)
    stability = (arena.stability + rate * DT).clamp(max=STABILITY)
    stability = torch.where(falls, 0.0, stability)
    arena.stability.copy_(torch.where(rises, RISEN, stability))
    arena.down.copy_(torch.where(falls, FALL_SECONDS, left))
    for clock in (arena.suppressed, arena.painted, arena.cooldown, arena.smoke_left):
        clock.copy_(_count_down(clock))


def _count_down(clock: Tensor) -> Tensor:
    """A clock in seconds after one simulation step; it ends at 0 exactly, in spite of rounding."""
    left = clock - DT
    return torch.where(left < DT / 2, 0.0, left)
