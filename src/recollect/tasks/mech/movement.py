"""Turning, walking, jumping, and not walking through obstacles and each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recollect.tasks.mech import exact
from recollect.tasks.mech.rules import (
    BACKWARD,
    BORDER,
    CEILING,
    DT,
    GRAVITY,
    HEIGHT,
    JET_HEAT,
    LEGLESS,
    RADIUS,
    RATE,
    STEP_UP,
)

if TYPE_CHECKING:
    from recollect.tasks.mech.actions import Orders
    from recollect.tasks.mech.arena import MechArena


def move(arena: MechArena, orders: Orders, active: Tensor) -> None:
    """Turn and move all mechs for one simulation step; those that are not ``active`` only fall."""
    _turn(arena, orders.turn * active)
    can = arena.tables.speed * active
    speed = torch.where(arena.legs > 0, can, can * LEGLESS)
    ahead = torch.where(orders.forward < 0, orders.forward * BACKWARD, orders.forward)
    aside = orders.strafe * BACKWARD
    speed = speed / exact.length(ahead, aside).clamp(min=1.0) * DT
    ahead, aside = ahead * speed, aside * speed
    x = arena.x + (arena.hx * ahead - arena.hy * aside)
    y = arena.y + (arena.hy * ahead + arena.hx * aside)
    x, y = _slide(arena, x.clamp(-BORDER, BORDER), y.clamp(-BORDER, BORDER))
    stays = _too_near(arena, x, y)
    x, y = torch.where(stays, arena.x, x), torch.where(stays, arena.y, y)
    arena.vx.copy_((x - arena.x) * RATE)
    arena.vy.copy_((y - arena.y) * RATE)
    _rise_and_fall(arena, x, y, orders.jump * active)
    arena.x.copy_(x)
    arena.y.copy_(y)


def _turn(arena: MechArena, turn: Tensor) -> None:
    """Turn by ``turn`` times the rate of the class, to the left if positive."""
    # A rotation from the tangent of half the angle needs no sine, whose rounding differs between devices.
    half = turn * (arena.tables.turn * (DT / 2))
    square = half * half
    cosine, sine = (1 - square) / (1 + square), (half + half) / (1 + square)
    hx, hy = arena.hx * cosine - arena.hy * sine, arena.hx * sine + arena.hy * cosine
    length = exact.length(hx, hy)
    arena.hx.copy_(hx / length)
    arena.hy.copy_(hy / length)


def _slide(arena: MechArena, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Where mechs get that want to (x, y): there, or along one axis, or nowhere."""
    highest = arena.z + STEP_UP
    free = arena.ground(x, y) <= highest
    free_x = arena.ground(x, arena.y) <= highest
    free_y = arena.ground(arena.x, y) <= highest
    moves_x = free | free_x
    moves_y = free | (free_y > free_x)
    return torch.where(moves_x, x, arena.x), torch.where(moves_y, y, arena.y)


def _too_near(arena: MechArena, x: Tensor, y: Tensor) -> Tensor:
    """[E, 2, N]: whose move to (x, y) ends too near to where another mech is, or wants to be.

    If it is refused to both, or to one of them, they are as far from each other as before, or farther than
    two radii.
    """
    now, then = (arena.x.flatten(1), arena.y.flatten(1)), (x.flatten(1), y.flatten(1))
    before, to_old = _squared(now, now), _squared(then, now)
    nearest = torch.minimum(to_old, _squared(then, then))
    z, alive = arena.z.flatten(1), arena.alive.flatten(1)
    meets = (z.unsqueeze(2) - z.unsqueeze(1)).abs() < HEIGHT
    meets &= alive.unsqueeze(1) & arena.are_two
    meets &= (nearest < before) & (nearest < (2 * RADIUS) ** 2)
    return meets.any(2).view(x.shape)


def _squared(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Tensor:
    """[E, n, n]: squared distances from points ``a`` to points ``b``."""
    dx = a[0].unsqueeze(2) - b[0].unsqueeze(1)
    dy = a[1].unsqueeze(2) - b[1].unsqueeze(1)
    return dx.mul_(dx).add_(dy.mul_(dy))


def _rise_and_fall(arena: MechArena, x: Tensor, y: Tensor, jump: Tensor) -> None:
    """Jump jets, gravity, and the ground at the new place (x, y)."""
    here, there = arena.ground(arena.x, arena.y), arena.ground(x, y)
    low = arena.z < here + CEILING
    push = jump.clamp(min=0.0) * (low & (arena.tables.jet > 0))
    arena.heat.add_(push * (JET_HEAT * DT))
    vz = arena.vz + (push * arena.tables.jet - GRAVITY) * DT
    z = arena.z + vz * DT
    walks = (arena.z <= here) & (push == 0) & (arena.z - there <= STEP_UP)
    stands = walks | (z <= there)
    arena.z.copy_(torch.where(stands, there, z))
    arena.vz.copy_(torch.where(stands, 0.0, vz))
