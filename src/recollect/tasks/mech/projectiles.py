"""The flight of shots, and whom they hit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recollect.base import devices
from recollect.tasks.mech import exact, sensing
from recollect.tasks.mech.rules import DT, HEIGHT, HIT_RADIUS, REAR, REAR_FACTOR, SHOTS, SPLASH_SHARE
from recollect.tasks.mech.weapons import Hits

if TYPE_CHECKING:
    from recollect.tasks.mech.arena import MechArena


def fly(arena: MechArena, hits: Hits) -> None:
    """Move all shots for one simulation step and add their hits.

    A shot hits the first enemy that comes within ``HIT_RADIUS`` of its path. Others within its splash take a
    share. Shells and slugs are lost in the ground; missiles fly above it.
    """
    # All shots in one list: on the CPU those that fly, for a captured step all that there can be.
    flat = arena.shot_left.flatten()
    shot = arena.every_shot if devices.synchronises(flat) else (flat > 0).nonzero().squeeze(1)
    flies = flat[shot] > 0
    mech, place = shot // SHOTS, shot % SHOTS
    kind = mech % arena.mechs * SHOTS + place
    side = mech // arena.mechs
    there = side ^ 1
    fields = (arena.shot_x, arena.shot_y, arena.shot_z, arena.shot_vx, arena.shot_vy, arena.shot_vz)
    *start, vx, vy, vz = (field.flatten()[shot] for field in fields)

    def of_kind(values: Tensor) -> Tensor:
        return values.flatten()[kind]

    def of_enemies(values: Tensor) -> Tensor:
        return values.flatten(0, 1)[there]

    homes = of_kind(arena.tables.shot_homes)
    bodies = [of_enemies(values) for values in (arena.x, arena.y, arena.z + HEIGHT / 2)]
    alive = of_enemies(arena.alive)
    # Missiles turn to their targets while these live.
    target = arena.shot_target.flatten()[shot].unsqueeze(1)
    at = target.clamp(min=0)
    follows = homes & ((target >= 0) & alive.gather(1, at)).squeeze(1)
    way = [b.gather(1, at).squeeze(1) - s for b, s in zip(bodies, start)]
    length = exact.length(*way).clamp(min=1e-6)
    speed = of_kind(arena.tables.shot_speed)
    velocity = [torch.where(follows, w / length * speed, v) for w, v in zip(way, (vx, vy, vz))]

    half = [v * (DT / 2) for v in velocity]
    middle = [s + h for s, h in zip(start, half)]
    end = [at + h for at, h in zip(middle, half)]
    damage, stability, direct = _hits(arena, middle, half, bodies, alive & flies.unsqueeze(1), kind)
    behind = _flies_with(half, of_enemies(arena.hx), of_enemies(arena.hy))
    damage = torch.where(behind & direct, damage * REAR_FACTOR, damage)
    for total, each in (
        (hits.damage, damage),
        (hits.stability, stability),
        (hits.missile, direct & homes.unsqueeze(1)),
        (hits.suppressed, direct & of_kind(arena.tables.shot_suppresses).unsqueeze(1)),
    ):
        total.flatten(0, 2).index_add_(0, mech, each.to(total.dtype))

    slot = (side // 2).unsqueeze(1)
    points = [torch.stack(pair, 1) for pair in zip(middle, end)]
    lost = (points[2] <= arena.ground_of(slot, points[0], points[1])).any(1)
    left = flat[shot] - DT
    ends = direct.any(1) | (lost & ~homes) | (left < DT / 2)
    for field, values in zip((*fields, arena.shot_left), (*end, *velocity, torch.where(ends, 0.0, left))):
        field.view(-1).index_copy_(0, shot, torch.where(flies, values, field.view(-1)[shot]))


def _hits(
    arena: MechArena,
    middle: list[Tensor],
    half: list[Tensor],
    bodies: list[Tensor],
    can: Tensor,
    kind: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """[P, N] each: damage and stability that shots take from enemies, and who is hit directly."""
    tables = arena.tables
    away = [body - at.unsqueeze(1) for body, at in zip(bodies, middle)]
    path = [h.unsqueeze(1) for h in half]
    length = (path[0] * path[0] + path[1] * path[1] + path[2] * path[2]).clamp(min=1e-12)
    along = ((away[0] * path[0] + away[1] * path[1] + away[2] * path[2]) / length).clamp_(-1.0, 1.0)
    meets = (_square(away, path, along) <= HIT_RADIUS**2) & can
    keys = torch.where(meets, sensing.keys(along + 1.0, arena.enemies), sensing.FAR)
    direct = meets & (keys == keys.amin(1, keepdim=True))
    impact = (along * direct).sum(1, keepdim=True)  # of one enemy at most
    splash = tables.splash.flatten()[kind].unsqueeze(1)
    splashed = (_square(away, path, impact) <= splash * splash) & direct.any(1, keepdim=True) & can & ~direct
    splashed &= splash > 0
    damage = tables.shot_damage.flatten()[kind].unsqueeze(1)
    taken = direct * damage + splashed * (damage * SPLASH_SHARE)
    return taken, direct * tables.shot_stability.flatten()[kind].unsqueeze(1), direct


def _flies_with(half: list[Tensor], facing_x: Tensor, facing_y: Tensor) -> Tensor:
    """[P, N] bool: the shot comes from behind a mech with this heading."""
    flat = exact.length(*half[:2]).unsqueeze(1)
    return half[0].unsqueeze(1) * facing_x + half[1].unsqueeze(1) * facing_y >= REAR * flat


def _square(away: list[Tensor], path: list[Tensor], along: Tensor) -> Tensor:
    """Squared distances from the points ``along`` of the paths, from -1 to 1, to the mechs ``away``."""
    dx, dy, dz = (a - along * p for a, p in zip(away, path))
    return dx.mul_(dx).add_(dy.mul_(dy)).add_(dz.mul_(dz))
