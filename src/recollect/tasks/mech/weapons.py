"""Firing: who can hit its target at once, and the shots and smoke that are launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recollect.tasks.mech import exact
from recollect.tasks.mech.rules import (
    HEIGHT,
    MISSILE_IN_SIGHT,
    REAR,
    REAR_FACTOR,
    SMOKE_AHEAD,
    SMOKE_LASTS,
    WEAPONS,
)

if TYPE_CHECKING:
    from recollect.tasks.mech.actions import Orders
    from recollect.tasks.mech.arena import MechArena


@dataclass(slots=True)
class Hits:
    """The hits of a simulation step, [E, 2, N, N]: of mech i on enemy j."""

    damage: Tensor
    stability: Tensor
    heat: Tensor
    painted: Tensor
    missile: Tensor
    suppressed: Tensor
    """The last three: bool."""


def fire(arena: MechArena, orders: Orders, active: Tensor) -> Hits:
    """Fire what is triggered, ready, and can hit the target; smoke needs no target. Launches shots."""
    tables = arena.tables
    target = orders.target.clamp(min=0)

    def of_target(values: Tensor) -> Tensor:
        return arena.theirs(values).gather(2, target)

    dx, dy, dz = (of_target(own) - own for own in (arena.x, arena.y, arena.z))
    flat = exact.length(dx, dy)
    distance = exact.length(flat, dz)
    ahead = dx * arena.hx + dy * arena.hy
    exists = (orders.target >= 0) & of_target(arena.alive)
    is_clear = arena.clear.gather(3, target.unsqueeze(3)).squeeze(3)
    is_painted = of_target(arena.painted) > 0

    in_arc = ahead.unsqueeze(3) >= tables.arc * flat.unsqueeze(3)
    in_range = distance.unsqueeze(3) <= tables.range
    homes = is_painted | (is_clear & (distance <= MISSILE_IN_SIGHT))
    can = in_arc & in_range & torch.where(tables.is_missile, homes.unsqueeze(3), is_clear.unsqueeze(3))
    can = (can & exists.unsqueeze(3)) | tables.is_smoke
    ready = tables.exists & (arena.cooldown <= 0) & active.unsqueeze(3)
    fires = can & ready & orders.triggers.index_select(3, tables.trigger)
    launches = _launch(arena, orders, fires, (dx, dy, dz), distance)
    fires = fires & (tables.is_instant.bool() | tables.is_smoke | launches)
    _smoke(arena, (fires & tables.is_smoke).any(3), exists, (dx, dy), flat)
    arena.heat.add_((fires * tables.heat).sum(3))
    arena.cooldown.copy_(torch.where(fires, tables.cooldown, arena.cooldown))
    arena.fired.logical_or_(fires)

    # From behind: the direction to the attacker is within REAR of the target's back.
    behind = dx * of_target(arena.hx) + dy * of_target(arena.hy) >= REAR * flat
    damage = (fires * tables.hit_damage).sum(3) * torch.where(behind, REAR_FACTOR, 1.0)
    heat = (fires * tables.hit_heat).sum(3)
    paints = (fires & tables.is_paint).any(3)
    return Hits(
        damage=damage.unsqueeze(3) * orders.aimed,
        stability=torch.zeros_like(arena.square),
        heat=heat.unsqueeze(3) * orders.aimed,
        painted=paints.unsqueeze(3) & orders.aimed,
        missile=torch.zeros_like(orders.aimed),
        suppressed=torch.zeros_like(orders.aimed),
    )


def _launch(
    arena: MechArena, orders: Orders, fires: Tensor, away: tuple[Tensor, ...], distance: Tensor
) -> Tensor:
    """Put shots of the mounts that fire into free places. Returns [E, 2, N, MOUNTS]: has a shot launched."""
    tables = arena.tables
    free = tables.shot_exists & (arena.shot_left <= 0)
    is_first = (free.unsqueeze(3) & tables.earlier_shot).any(4).logical_not_()
    mount = tables.shot_mount.expand_as(free)
    goes = free & is_first & fires.gather(3, mount)

    target = orders.target.clamp(min=0)
    velocity = [arena.theirs(v).gather(2, target).unsqueeze(3) for v in (arena.vx, arena.vy, arena.vz)]
    # Aim ahead of a moving target; a missile follows it.
    lead = distance.unsqueeze(3) * tables.shot_lead
    way = [d.unsqueeze(3) + v * lead for d, v in zip(away, velocity)]
    speed = tables.shot_speed / exact.length(*way).clamp(min=1e-6)
    starts = (each.unsqueeze(3) for each in (arena.x, arena.y, arena.z + HEIGHT / 2))
    for shot, value in (
        *zip((arena.shot_x, arena.shot_y, arena.shot_z), starts),
        *zip((arena.shot_vx, arena.shot_vy, arena.shot_vz), (w * speed for w in way)),
        (arena.shot_left, tables.shot_life),
        (arena.shot_target, orders.target.unsqueeze(3)),
    ):
        shot.copy_(torch.where(goes, value, shot))
    return (goes.unsqueeze(4) & tables.is_mount_of_shot).any(3)


def _smoke(
    arena: MechArena, fires: Tensor, has_target: Tensor, away: tuple[Tensor, Tensor], flat: Tensor
) -> None:
    """Shells of smoke, to where the target is, or ahead. The cloud that ends first gives way."""
    smoke = WEAPONS["smoke"]
    near = torch.where(has_target, (smoke.range / flat.clamp(min=1e-6)).clamp(max=1.0), 0.0)
    far = torch.where(has_target, flat.clamp(max=smoke.range), SMOKE_AHEAD)
    x = arena.x + torch.where(has_target, away[0] * near, arena.hx * SMOKE_AHEAD)
    y = arena.y + torch.where(has_target, away[1] * near, arena.hy * SMOKE_AHEAD)
    least = arena.smoke_left.min(3, keepdim=True).values
    place = (arena.smoke_left == least) & fires.unsqueeze(3)
    place = place & (place.cumsum(3) == 1)
    for cloud, value in (
        (arena.smoke_x, x),
        (arena.smoke_y, y),
        (arena.smoke_left, SMOKE_LASTS + far * (1 / smoke.speed)),
    ):
        cloud.copy_(torch.where(place, value.unsqueeze(3), cloud))
