"""Sight, sensor ranges and contacts of the mech arena in one Triton kernel, a slot in each program.

The same as ``sensing.update``, which tests compare it with.
"""

# A type checker cannot follow Triton's functions: their conditions are decided at compile time.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportReturnType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from recollect.tasks.mech import rules
from recollect.tasks.mech.fused_parts import (
    CLOUDS,
    COLUMNS,
    ECCM,
    ECM,
    HEIGHT,
    SIDE,
    anywhere,
    column,
    ground,
)

SAMPLES: tl.constexpr = tl.constexpr(rules.SAMPLES)
FRIENDS: tl.constexpr = tl.constexpr(rules.FRIENDS)
FAR: tl.constexpr = tl.constexpr(1 << 62)
"""More than any key."""
CONTACTS: tl.constexpr = tl.constexpr(rules.CONTACTS)
MOST: tl.constexpr = tl.constexpr(rules.MOST)
LEAST: tl.constexpr = tl.constexpr(rules.LEAST)
SEEN: tl.constexpr = tl.constexpr(rules.SEEN)
JAMMED: tl.constexpr = tl.constexpr(rules.JAMMED)
CLEARED: tl.constexpr = tl.constexpr(rules.CLEARED)
EWAR_RADIUS: tl.constexpr = tl.constexpr(rules.EWAR_RADIUS)
SMOKE_LASTS: tl.constexpr = tl.constexpr(rules.SMOKE_LASTS)
SMOKE_RADIUS: tl.constexpr = tl.constexpr(rules.SMOKE_RADIUS)


@triton.jit
def sense(
    map_at, heights_at, table_at,
    x_at, y_at, z_at, hp_at, heat_at, down_at, painted_at, ewar_at, sort_at, hostile_only_at,
    smoke_x_at, smoke_y_at, smoke_left_at,
    clear_at, range_at, sees_at, square_at, contact_at,
    FULL: tl.constexpr, SORTS: tl.constexpr, N: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Pointers to the fields of all slots; those of the last line but one are written."""
    slot = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    real = lane < 2 * N
    side, number = lane // N, lane % N
    at = slot * (2 * N) + lane
    pair = at[:, None] * N + number[None, :]
    both = real[:, None] & real[None, :]
    enemy, friend = both & (side[:, None] != side[None, :]), both & (side[:, None] == side[None, :])
    table = table_at + number * COLUMNS
    heights = heights_at + tl.load(map_at + slot) * (SIDE * SIDE)
    x, y = tl.load(x_at + at, mask=real, other=0.0), tl.load(y_at + at, mask=real, other=0.0)
    z, hp = tl.load(z_at + at, mask=real, other=0.0), tl.load(hp_at + at, mask=real, other=0.0)
    heat, painted = (
        tl.load(heat_at + at, mask=real, other=0.0),
        tl.load(painted_at + at, mask=real, other=0.0),
    )
    ewar = tl.load(ewar_at + at, mask=real, other=0)
    alive = hp > 0
    senses = alive & (heat <= tl.load(table + column("heat_cap")))
    works = senses & (tl.load(down_at + at, mask=real, other=0.0) <= 0)

    dx, dy, dz = x[None, :] - x[:, None], y[None, :] - y[:, None], z[None, :] - z[:, None]
    square = dx * dx + dy * dy + dz * dz
    live = alive[:, None] & alive[None, :]
    wanted = enemy & live & (square <= (MOST * SEEN) * (MOST * SEEN))
    clear = _clear(
        heights, smoke_x_at, smoke_y_at, smoke_left_at, slot * (2 * N * CLOUDS), x, y, z, wanted, N
    )

    # The sensor range, which enemies jam and friends clear.
    near = square <= EWAR_RADIUS * EWAR_RADIUS
    jammed = anywhere(enemy & near & (works & (ewar == ECM))[None, :], 1).to(tl.float32)
    cleared = anywhere(friend & near & (works & (ewar == ECCM))[None, :], 1).to(tl.float32)
    reach = SEEN * tl.minimum(tl.maximum(1.0 - JAMMED * jammed + CLEARED * cleared, LEAST), MOST)
    if FULL:
        sees = enemy & live & senses[:, None]
    else:
        sees = clear & (square <= (reach * reach)[:, None]) & senses[:, None]
    tl.store(clear_at + pair, clear, mask=enemy)
    tl.store(range_at + at, reach, mask=real)
    tl.store(sees_at + pair, sees, mask=enemy)
    tl.store(square_at + pair, square, mask=enemy)

    # Contacts: keys in the order of what they are sorted by, then of the mechs' numbers.
    order = square
    if SORTS:
        sort = tl.load(sort_at + at, mask=real, other=0)[:, None]
        light = (200 - tl.load(table + column("tons")))[None, :]
        order = tl.where(sort == 0, square, tl.where(sort == 1, hp[None, :], light))
    keys = (order.to(tl.int32, bitcast=True).to(tl.int64) << 8) + number[None, :]
    known = sees | (enemy & live & (painted > 0)[None, :] & senses[:, None])
    enemies = tl.where(known, keys, FAR)
    friends = friend & senses[:, None] & alive[None, :] & (lane[:, None] != lane[None, :])
    friends = tl.where(friends, keys, FAR)
    hostile_only = tl.load(hostile_only_at + at, mask=real, other=0) != 0
    for k in tl.static_range(CONTACTS):
        hostile, enemies = _next(enemies)
        hostile = tl.where(hostile >= 0, hostile + N, hostile)
        if k == 0:
            nearest = hostile
        usual = tl.full([LANES], -1, tl.int64)
        if k < FRIENDS:
            usual, friends = _next(friends)
        if k == FRIENDS:
            usual = nearest
        tl.store(contact_at + at * CONTACTS + k, tl.where(hostile_only, hostile, usual), mask=real)


@triton.jit
def _next(keys):
    """The mechs with the smallest of ``keys``, -1: none; and the keys without them."""
    least = tl.min(keys, 1)
    return tl.where(least == FAR, -1, least & 255), tl.where(keys == least[:, None], FAR, keys)


@triton.jit
def _clear(heights, smoke_x_at, smoke_y_at, smoke_left_at, clouds, x, y, z, wanted, N: tl.constexpr):
    """Whether the line between the middles of two enemies is free, where ``wanted``."""
    half_x, half_y = (x[None, :] - x[:, None]) * 0.5, (y[None, :] - y[:, None]) * 0.5
    half_z = (z[None, :] - z[:, None]) * 0.5
    mid_x, mid_y = (x[None, :] + x[:, None]) * 0.5, (y[None, :] + y[:, None]) * 0.5
    mid_z = (z[None, :] + z[:, None]) * 0.5
    free = wanted
    for sample in range(SAMPLES):
        at = (2.0 * sample + (1.0 - SAMPLES)) * (1.0 / SAMPLES)
        low = ground(heights, mid_x + at * half_x, mid_y + at * half_y, free)
        free = free & (low < mid_z + at * half_z + HEIGHT / 2)
    span = tl.maximum(half_x * half_x + half_y * half_y, 1e-12)
    for cloud in range(2 * N * CLOUDS):
        left = tl.load(smoke_left_at + clouds + cloud)
        if (left > 0) & (left <= SMOKE_LASTS):
            dx = tl.load(smoke_x_at + clouds + cloud) - mid_x
            dy = tl.load(smoke_y_at + clouds + cloud) - mid_y
            along = tl.div_rn(dx * half_x + dy * half_y, span)
            along = tl.minimum(tl.maximum(along, -1.0), 1.0)
            dx, dy = dx - along * half_x, dy - along * half_y
            free = free & (dx * dx + dy * dy > SMOKE_RADIUS * SMOKE_RADIUS)
    return free
