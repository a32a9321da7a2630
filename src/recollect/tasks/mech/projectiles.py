"""The flight of shots, and whom they hit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recollect.tasks.mech.rules import DT, HEIGHT, HIT_RADIUS, REAR, REAR_FACTOR, SPLASH_SHARE
from recollect.tasks.mech.weapons import Hits

if TYPE_CHECKING:
    from recollect.tasks.mech.arena import MechArena

_NONE = 1 << 62


def fly(arena: MechArena, hits: Hits) -> None:
    """Move all shots for one simulation step and add their hits.

    A shot hits the first enemy that comes within ``HIT_RADIUS`` of its path. Others within its splash take a
    share. Shells and slugs are lost in the ground; missiles fly above it.
    """
    tables = arena.tables
    flies = arena.shot_left > 0
    _home(arena, flies)
    half = [v * (DT / 2) for v in (arena.shot_vx, arena.shot_vy, arena.shot_vz)]
    middle = [p + h for p, h in zip((arena.shot_x, arena.shot_y, arena.shot_z), half)]
    for place, at, h in zip((arena.shot_x, arena.shot_y, arena.shot_z), middle, half):
        place.copy_(at + h)

    # [E, 2, N, SHOTS, N]: from the middle of the path to each enemy's middle.
    bodies = (arena.x, arena.y, arena.z + HEIGHT / 2)
    away = [arena.theirs(p).unsqueeze(2).unsqueeze(2) - at.unsqueeze(4) for p, at in zip(bodies, middle)]
    path = [h.unsqueeze(4) for h in half]
    length = (half[0] * half[0] + half[1] * half[1] + half[2] * half[2]).clamp(min=1e-12).unsqueeze(4)
    along = ((away[0] * path[0] + away[1] * path[1] + away[2] * path[2]) / length).clamp_(-1.0, 1.0)
    meets = _square(away, path, along) <= HIT_RADIUS**2
    meets &= flies.unsqueeze(4) & arena.theirs(arena.alive)[:, :, None, None]
    keys = (along + 1.0).view(torch.int32).to(torch.int64).bitwise_left_shift_(8).add_(arena.enemies)
    keys = torch.where(meets, keys, _NONE)
    least = keys.amin(4, keepdim=True)
    direct = meets & (keys == least)
    hit = least.squeeze(4) != _NONE

    impact = (along * direct).sum(4, keepdim=True)  # of one enemy at most
    near = _square(away, path, impact) <= (tables.splash * tables.splash).unsqueeze(2)
    splashed = near & hit.unsqueeze(4) & ~direct & (tables.splash > 0).unsqueeze(2)
    splashed &= arena.theirs(arena.alive)[:, :, None, None]
    facing_x, facing_y = (arena.theirs(h)[:, :, None, None] for h in (arena.hx, arena.hy))
    flat = (half[0] * half[0] + half[1] * half[1]).sqrt().unsqueeze(4)
    behind = path[0] * facing_x + path[1] * facing_y >= REAR * flat
    damage = tables.shot_damage.unsqueeze(2)
    share = direct * torch.where(behind, damage * REAR_FACTOR, damage) + splashed * (damage * SPLASH_SHARE)
    hits.damage.add_(share.sum(3))
    hits.stability.add_((direct * tables.shot_stability.unsqueeze(2)).sum(3))
    hits.missile.logical_or_((direct & tables.shot_homes.unsqueeze(2)).any(3))
    hits.suppressed.logical_or_((direct & tables.shot_suppresses.unsqueeze(2)).any(3))

    lost = _below_ground(arena, middle) | _below_ground(arena, [arena.shot_x, arena.shot_y, arena.shot_z])
    ends = hit | (lost & ~tables.shot_homes)
    left = arena.shot_left - DT
    arena.shot_left.copy_(torch.where(ends | (left < DT / 2), 0.0, left))


def _home(arena: MechArena, flies: Tensor) -> None:
    """Turn missiles to their targets while these live."""
    target = arena.shot_target.clamp(min=0)
    shape = target.shape

    def of_target(values: Tensor) -> Tensor:
        return arena.theirs(values).gather(2, target.flatten(2)).view(shape)

    follows = flies & arena.tables.shot_homes & (arena.shot_target >= 0) & of_target(arena.alive)
    aims = (of_target(arena.x), of_target(arena.y), of_target(arena.z) + HEIGHT / 2)
    way = [aim - place for aim, place in zip(aims, (arena.shot_x, arena.shot_y, arena.shot_z))]
    length = (way[0] * way[0] + way[1] * way[1] + way[2] * way[2]).sqrt().clamp(min=1e-6)
    for speed, along in zip((arena.shot_vx, arena.shot_vy, arena.shot_vz), way):
        speed.copy_(torch.where(follows, along / length * arena.tables.shot_speed, speed))


def _square(away: list[Tensor], path: list[Tensor], along: Tensor) -> Tensor:
    """Squared distances from the points ``along`` of the paths, from -1 to 1, to the mechs ``away``."""
    dx, dy, dz = (a - along * p for a, p in zip(away, path))
    return dx.mul_(dx).add_(dy.mul_(dy)).add_(dz.mul_(dz))


def _below_ground(arena: MechArena, at: list[Tensor]) -> Tensor:
    shape = at[0].shape
    ground = arena.ground(at[0].flatten(2), at[1].flatten(2)).view(shape)
    return at[2] <= ground
