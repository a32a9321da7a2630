"""What hits do: damage, falls, heat, paint, kills and assists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recollect.tasks.mech.rules import LEG_SHARE, PAINTED, SUPPRESSED
from recollect.tasks.mech.weapons import Hits

if TYPE_CHECKING:
    from recollect.tasks.mech.arena import MechArena


@dataclass(slots=True)
class Tally:
    """What mechs did in a decision, [E, 2, N]."""

    damage: Tensor
    kills: Tensor
    assists: Tensor

    @classmethod
    def of(cls, arena: MechArena) -> Tally:
        """Nothing yet."""
        return cls(*(torch.zeros_like(arena.x) for _ in range(3)))


def apply(arena: MechArena, hits: Hits, tally: Tally) -> None:
    """Apply the hits of a simulation step, all at once, and count them."""
    there = arena.theirs
    alive = arena.alive
    # What a mech takes is the sum over the enemies that dealt it.
    taken, shaken, heated = (there(each.sum(2)) for each in (hits.damage, hits.stability, hits.heat))
    arena.hp.sub_(taken).clamp_(min=0.0)
    arena.legs.sub_(taken * LEG_SHARE).clamp_(min=0.0)
    arena.stability.sub_(shaken).clamp_(min=0.0)
    arena.heat.add_(heated)
    suppressed = there(hits.suppressed.any(2))
    arena.suppressed.copy_(torch.where(suppressed, SUPPRESSED, arena.suppressed))
    arena.dealt.add_(hits.damage)
    tally.damage.add_(hits.damage.sum(3))

    # A kill is of the enemy that dealt most in this step; of equals, the first.
    died = there(alive & (arena.hp <= 0)).unsqueeze(2)
    most = hits.damage == hits.damage.amax(2, keepdim=True)
    tally.kills.add_((died & most & (most.cumsum(2) == 1)).sum(3))
    _assists(arena, hits, tally)
    _paint(arena, hits)


def _assists(arena: MechArena, hits: Hits, tally: Tally) -> None:
    """A painted enemy was hit by a missile of somebody else: its painter is paid, once for this paint."""
    painter = arena.theirs(arena.painter).unsqueeze(2)
    by_others = (hits.missile & (painter != arena.enemies.unsqueeze(1))).any(2)  # [E, 2, N]: of each enemy
    pays = by_others & arena.theirs(arena.owes_assist & (arena.painted > 0))
    earned = pays.unsqueeze(2) & (painter == arena.enemies.unsqueeze(1))
    tally.assists.add_(earned.sum(3))
    arena.owes_assist.copy_(arena.owes_assist & ~arena.theirs(pays))


def _paint(arena: MechArena, hits: Hits) -> None:
    """Paint lasts from the last hit on; it is new, and can earn an assist, if the mech was not painted."""
    painted = arena.theirs(hits.painted.any(2))
    first = hits.painted & (hits.painted.cumsum(2) == 1)
    painter = arena.theirs((first * arena.enemies.unsqueeze(1)).sum(2))
    fresh = painted & (arena.painted <= 0)
    arena.owes_assist.copy_((arena.owes_assist & (arena.painted > 0)) | fresh)
    arena.painter.copy_(torch.where(fresh, painter, arena.painter))
    arena.painted.copy_(torch.where(painted, PAINTED, arena.painted))
