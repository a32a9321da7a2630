"""Rewards of a decision, in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recollect.tasks.mech import exact
from recollect.tasks.mech.damage import Tally
from recollect.tasks.mech.rules import DECISION, HALF
from recollect.tasks.mech.zone import Hold

if TYPE_CHECKING:
    from recollect.tasks.mech.arena import MechArena


def of(
    arena: MechArena, tally: Tally, held: Hold, lived: Tensor, result: Tensor, is_over: Tensor
) -> dict[str, Tensor]:
    """The parts of the reward, [E, 2, N] each; 0 for mechs that had not ``lived``.

    ``result`` [E]: the winner of games that end now, else 0. ``is_over`` [E]: games that are decided.
    """
    weights = arena.options
    fights = torch.where(held.contested & held.inside, weights.zone_combat, 1.0)
    dies = lived & ~arena.alive
    disputed = torch.where(held.contested & held.within, 0.5, 1.0)
    sides = torch.stack([result, -result], 1).unsqueeze(2)
    # The potential of a final state is 0, so that the sum of all differences is the same for all games. A
    # game that the time limit cuts off goes on, as far as the learner knows.
    potential = _potential(arena, held) * ~is_over.view(-1, 1, 1)
    approach = weights.shaping_gamma * potential - arena.potential
    arena.potential.copy_(potential)
    parts = {
        "zone": held.inside * held.tick.unsqueeze(2) * (weights.zone_reward * DECISION),
        "approach": approach * weights.approach_reward,
        "damage": tally.damage * weights.damage_reward * fights,
        "kill": tally.kills * weights.kill_reward * fights,
        "assist": tally.assists * weights.assist_reward * fights,
        "death": dies * weights.death_reward * disputed,
        "win": sides * arena.win_weight.view(-1, 1, 1),
    }
    return {name: part * lived for name, part in parts.items()}


def _potential(arena: MechArena, held: Hold) -> Tensor:
    """[E, 2, N]: minus the distance to the zone; halved for each teammate inside; 0 for the dead."""
    distance = exact.length(arena.x, arena.y) - arena.radius.view(-1, 1, 1)
    inside = held.inside.sum(2, keepdim=True) - held.inside.long()
    return far(distance) * arena.tables.halves[inside] * arena.alive


def far(distance: Tensor) -> Tensor:
    """The potential at a ``distance`` from the zone, with no teammate inside."""
    return distance.clamp(min=0.0) * (-1 / HALF)
