"""Who sees whom, the contacts of each mech, and what it hears.

A mech sees an enemy within its sensor range if the line between their middles is free: at 16 points
the ground is below it, and no cloud of smoke is nearer than its radius.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recollect.base import devices
from recollect.tasks.mech import body, exact, fused
from recollect.tasks.mech.rules import (
    CLEARED,
    CONTACTS,
    ECCM,
    ECM,
    EWAR_RADIUS,
    FRIENDS,
    HEARD,
    HEIGHT,
    JAMMED,
    LEAST,
    MOST,
    SEEN,
    SMOKE_LASTS,
    SMOKE_RADIUS,
)

if TYPE_CHECKING:
    from recollect.tasks.mech.arena import MechArena

FAR = 1 << 62


def update(arena: MechArena) -> None:
    """Renew ``clear``, ``range``, ``sees``, ``square`` and ``contact`` after a decision."""
    if fused.suits(arena):
        fused.sense(arena)
        return
    there = arena.theirs
    dx, dy, dz = (there(own).unsqueeze(2) - own.unsqueeze(3) for own in (arena.x, arena.y, arena.z))
    square = dx * dx + dy * dy + dz * dz
    alive, senses = arena.alive, body.senses(arena)
    both = alive.unsqueeze(3) & there(alive).unsqueeze(2)
    arena.clear.copy_(_clear(arena, both & (square <= (MOST * SEEN) ** 2)))
    arena.range.copy_(_range(arena, square))
    if arena.options.sensing == "full":
        sees = both
    else:
        sees = arena.clear & (square <= (arena.range * arena.range).unsqueeze(3))
    arena.sees.copy_(sees & senses.unsqueeze(3))
    arena.square.copy_(square)
    arena.contact.copy_(_contacts(arena, senses))


def known(arena: MechArena) -> Tensor:
    """[E, 2, N, N]: enemies that a mech sees, or that are painted by its side."""
    painted = (arena.painted > 0) & arena.alive
    return arena.sees | (arena.theirs(painted).unsqueeze(2) & body.senses(arena).unsqueeze(3))


def nearest(arena: MechArena) -> Tensor:
    """[E, 2, N]: the nearest known enemy that lives; -1: none."""
    return nearest_of(arena, known(arena) & arena.theirs(arena.alive).unsqueeze(2))


def nearest_of(arena: MechArena, candidates: Tensor) -> Tensor:
    """[E, 2, N]: the nearest of the ``candidates`` [E, 2, N, N]; -1: there is none."""
    least = torch.where(candidates, keys(arena.square, arena.enemies), FAR).amin(-1)
    return torch.where(least == FAR, -1, least & 255)


def _range(arena: MechArena, square: Tensor) -> Tensor:
    """[E, 2, N]: the sensor range, which enemies jam and friends clear."""
    works = body.active(arena)
    jams = arena.theirs(works & (arena.ewar == ECM))
    jammed = ((square <= EWAR_RADIUS**2) & jams.unsqueeze(2)).any(3)
    clears = works & (arena.ewar == ECCM)
    own = arena.own_square()
    cleared = ((own <= EWAR_RADIUS**2) & clears.unsqueeze(2)).any(3)
    return SEEN * (1.0 - JAMMED * jammed + CLEARED * cleared).clamp(LEAST, MOST)


def _clear(arena: MechArena, wanted: Tensor) -> Tensor:
    """[E, 2, N, N]: whether the line between the middles of two enemies is free, where ``wanted``."""
    # It is the same in both directions: that of blue mech i and red mech j is computed once. On the CPU
    # only the wanted pairs are, all in one list.
    wanted = wanted[:, 0]
    pairs = arena.every_pair if devices.synchronises(wanted) else wanted.flatten().nonzero().squeeze(1)
    n = arena.mechs
    slot, blue = pairs // (n * n), pairs // n
    red = slot * n + pairs % n
    half, middle = [], []
    for values in (arena.x, arena.y, arena.z):
        one, other = values[:, 0].flatten()[blue], values[:, 1].flatten()[red]
        half.append((other - one) * 0.5)
        middle.append((other + one) * 0.5)
    free = _over_ground(arena, slot, middle, half) & _past_smoke(arena, slot, middle, half)
    found = torch.zeros_like(wanted).flatten().index_put_((pairs,), free).view(wanted.shape) & wanted
    return torch.stack([found, found.transpose(1, 2)], 1)


def _over_ground(arena: MechArena, slot: Tensor, middle: list[Tensor], half: list[Tensor]) -> Tensor:
    """[P] bool: no sample of a line is below the ground."""
    (x, y, z), (hx, hy, hz) = ([v.unsqueeze(1) for v in vector] for vector in (middle, half))
    at = arena.samples
    ground = arena.ground_of(slot.unsqueeze(1), x + at * hx, y + at * hy)
    return (ground < z + at * hz + HEIGHT / 2).all(1)


def _past_smoke(arena: MechArena, slot: Tensor, middle: list[Tensor], half: list[Tensor]) -> Tensor:
    """[P] bool: no cloud is nearer to a line than its radius, seen from above."""
    clouds = (arena.smoke_left > 0) & (arena.smoke_left <= SMOKE_LASTS)
    # A cloud that is not there is far away.
    cloud_x = torch.where(clouds, arena.smoke_x, 1e6).flatten(1)[slot]
    cloud_y = torch.where(clouds, arena.smoke_y, 1e6).flatten(1)[slot]
    hx, hy = half[0].unsqueeze(1), half[1].unsqueeze(1)
    dx, dy = cloud_x.sub_(middle[0].unsqueeze(1)), cloud_y.sub_(middle[1].unsqueeze(1))
    length = (hx * hx + hy * hy).clamp(min=1e-12)
    along = ((dx * hx + dy * hy) / length).clamp_(-1.0, 1.0)
    dx, dy = dx - along * hx, dy.sub_(along * hy)
    return (dx * dx + dy * dy > SMOKE_RADIUS**2).all(1)


def _contacts(arena: MechArena, senses: Tensor) -> Tensor:
    """[E, 2, N, CONTACTS]: the mechs in the contact slots: 0..N-1 own, N..2N-1 enemies, -1 none."""
    n, width = arena.mechs, min(CONTACTS, arena.mechs)
    there = arena.theirs
    alive = arena.alive
    friends = alive.unsqueeze(2) & senses.unsqueeze(3) & ~arena.enemies_eye
    enemies = known(arena) & there(alive).unsqueeze(2)
    friend = _first(_order(arena, arena.own_square(), arena.hp), friends, arena.enemies, min(FRIENDS, n))
    enemy = _first(_order(arena, arena.square, there(arena.hp)), enemies, arena.enemies, width)
    enemy = torch.where(enemy >= 0, enemy + n, enemy)
    usual = enemy.new_full((*alive.shape, CONTACTS), -1)
    usual[..., : friend.shape[-1]] = friend
    usual[..., FRIENDS] = enemy[..., 0]
    hostile = torch.nn.functional.pad(enemy, (0, CONTACTS - width), value=-1)
    return torch.where(arena.hostile_only.unsqueeze(-1), hostile, usual)


def _order(arena: MechArena, square: Tensor, hp: Tensor) -> Tensor:
    """[E, 2, N, N]: what contacts are sorted by, smallest first: distance, hit points, or weight."""
    if not arena.options.contact_sort:
        return square
    sort = arena.sort.unsqueeze(3)
    light = (200 - arena.tables.tons).expand_as(square)
    return torch.where(sort == 0, square, torch.where(sort == 1, hp.unsqueeze(2), light))


def _first(values: Tensor, candidates: Tensor, numbers: Tensor, count: int) -> Tensor:
    """[..., count] int64: the numbers of the candidates with the smallest values; -1 where there is none."""
    ranked = torch.where(candidates, keys(values, numbers), FAR)
    least = ranked.topk(count, dim=-1, largest=False, sorted=True).values
    return torch.where(least == FAR, -1, least & 255)


def keys(values: Tensor, numbers: Tensor) -> Tensor:
    """int64 keys in the order of float32 ``values`` >= 0, then of the candidates' numbers: all differ."""
    return values.view(torch.int32).to(torch.int64).bitwise_left_shift_(8).add_(numbers)


def sound(arena: MechArena) -> Tensor:
    """[E, 2, N, 4]: the loudest enemy ahead, left, behind, right: speed times mass, less if far away."""
    there = arena.theirs
    dx, dy = (there(own).unsqueeze(2) - own.unsqueeze(3) for own in (arena.x, arena.y))
    speed = exact.length(arena.vx, arena.vy) * arena.tables.noise * arena.alive
    near = (1 - exact.root(arena.square) * (1 / HEARD)).clamp(min=0.0)
    loud = there(speed).unsqueeze(2) * near
    hx, hy = arena.hx.unsqueeze(3), arena.hy.unsqueeze(3)
    ahead, left = dx * hx + dy * hy, dy * hx - dx * hy
    is_along = ahead.abs() >= left.abs()
    ways = (is_along & (ahead >= 0), ~is_along & (left >= 0), is_along & (ahead < 0), ~is_along & (left < 0))
    return torch.stack([(loud * way).amax(-1) for way in ways], -1)
