"""How a game starts: the map, the zone, and the mechs in opposite corners."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recollect.tasks import random
from recollect.tasks.mech import exact, maps, rewards
from recollect.tasks.mech.rules import (
    BORDER,
    CLOUDS,
    CONTACTS,
    MOUNTS,
    SEEN,
    SHOTS,
    STABILITY,
    WORDS,
    ZONE_RADIUS,
)

if TYPE_CHECKING:
    from recollect.tasks.mech.arena import MechArena

SPACING = 3.5
"""Metres between mechs in their corner, in rows of five."""


def formation(mechs: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """[N] each: how far from the centre each mech of a side starts, along either axis."""
    number = torch.arange(mechs, device=device)
    return BORDER - SPACING * (number % 5 + 1), BORDER - SPACING * (number // 5 + 1)


def places(arena: MechArena, key: Tensor) -> dict[str, Tensor]:
    """What is drawn for the game of each slot by its ``key`` [E]."""
    e, n, tables = arena.num_envs, arena.mechs, arena.tables
    words = random.bits(key.unsqueeze(1), torch.arange(4 * n + 3, device=arena.device))
    unit = random.uniform(words)
    number = random.integers(words[:, 0], len(arena.coarse))
    radius = ZONE_RADIUS * (0.5 + unit[:, 1])
    swap = (unit[:, 2] < 0.5).unsqueeze(1)
    jitter = unit[:, 3:].view(e, 4, n) - 0.5
    # Blue starts in the corner of small x and y, red opposite, as its mirror image.
    far_x, far_y = (far.expand(e, n) for far in arena.formation)
    x = -torch.where(swap, far_y, far_x) + jitter[:, 0]
    y = -torch.where(swap, far_x, far_y) + jitter[:, 1]
    hx, hy = jitter[:, 2] - x * (1 / BORDER), jitter[:, 3] - y * (1 / BORDER)
    length = exact.length(hx, hy)
    x, y, hx, hy = (torch.stack([values, -values], 1) for values in (x, y, hx / length, hy / length))
    at = maps.cell(x, y) + number.mul(maps.SIDE**2).view(-1, 1, 1)
    z = arena.heights.index_select(0, at.flatten()).view(x.shape)
    takes_part = arena.takes_part.expand(e, 2, n)
    distance = exact.length(x, y) - radius.view(-1, 1, 1)
    return {
        **{"map": number, "radius": radius, "x": x, "y": y, "z": z, "hx": hx, "hy": hy},
        **{"hp": takes_part * tables.hp, "legs": takes_part * tables.leg_hp},
        "potential": rewards.far(distance) * takes_part,
    }


def clean(arena: MechArena) -> dict[str, Tensor]:
    """All that is the same at the start of every game."""
    e, n = arena.num_envs, arena.mechs

    def zeros(*shape: int, of: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(e, 2, *shape, dtype=of, device=arena.device)

    mech, pair, whole, flag = (n,), (n, n), torch.int64, torch.bool
    shapes = {
        **dict.fromkeys(("vx", "vy", "vz", "heat", "down", "suppressed", "painted"), mech),
        **dict.fromkeys(("shot_x", "shot_y", "shot_z", "shot_vx", "shot_vy", "shot_vz"), (n, SHOTS)),
        **dict.fromkeys(("smoke_x", "smoke_y", "smoke_left"), (n, CLOUDS)),
        **{"cooldown": (n, MOUNTS), "message": (n, WORDS), "square": pair, "dealt": pair, "score": ()},
        "shot_left": (n, SHOTS),
    }
    return {
        **{name: zeros(*shape) for name, shape in shapes.items()},
        **{name: zeros(n, of=whole) for name in ("painter", "ewar", "sort")},
        **{name: zeros(n, of=flag) for name in ("owes_assist", "hostile_only")},
        **{name: zeros(n, n, of=flag) for name in ("sees", "clear")},
        **{"stability": zeros(n) + STABILITY, "range": zeros(n) + SEEN, "fired": zeros(n, MOUNTS, of=flag)},
        **{"contact": zeros(n, CONTACTS, of=whole) - 1, "shot_target": zeros(n, SHOTS, of=whole) - 1},
    }
