"""What a mech observes, in its own frame: ahead and to the left of its heading."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from recollect.base.spaces import ACTION_MASK
from recollect.tasks.mech import actions, body, exact, maps, sensing, zone
from recollect.tasks.mech.rules import (
    CONTACTS,
    DECISION,
    FALL_SECONDS,
    HALF,
    MOST,
    PACK,
    PAINTED,
    SEEN,
    STABILITY,
    SUPPRESSED,
    WORDS,
)

if TYPE_CHECKING:
    from recollect.tasks.mech.arena import MechArena

OWN = (
    *("hit points", "leg points", "heat", "stability", "fallen", "shut down", "suppressed", "painted"),
    *("speed ahead", "speed to the left", "speed up", "height above the ground"),
    *("cooldown of mount 1", "2", "3", "4", "5", "is scout", "is light", "is medium", "is heavy"),
    *("ECM", "ECCM", "sensor range", "sound ahead", "to the left", "behind", "to the right"),
    *("zone ahead", "zone to the left", "distance to the zone", "radius of the zone", "inside", "contested"),
    *("own tick", "their tick", "own score", "their score", "time left", "living mechs of the own side"),
    *("x in the own side's frame", "y", "heading x in the own side's frame", "heading y"),
)
"""The numbers of the own state, in their order."""
CONTACT = (
    *(
        "is there",
        "is an enemy",
        "ahead",
        "to the left",
        "above",
        "distance",
        "heading ahead",
        "heading left",
    ),
    *(
        "speed ahead",
        "speed to the left",
        "hit points",
        "tons",
        "painted",
        "shut down",
        "in sight",
        "in front",
    ),
)
"""The numbers of each contact, in their order."""
PER_SPEED, PER_SEEN, PER_HALF = 1 / 7, 1 / SEEN, 1 / HALF
"""Speeds, distances and places become numbers around 1 by these factors."""
LOCAL, SPACING = 7, 2.0
"""Points along a side of the local map, and the metres between them."""
SIZES = OrderedDict(
    own=len(OWN),
    contacts=CONTACTS * len(CONTACT),
    local=LOCAL * LOCAL,
    coarse=maps.COARSE**2,
    messages=(PACK - 1) * WORDS,
)
"""The parts of ``vector``, in their order."""


def space(kind: str) -> gym.Space:
    """The observation space of a row."""
    vector = spaces.Box(-np.inf, np.inf, (sum(SIZES.values()),), np.float32)
    if kind == "flat":
        return vector
    target, ewar = spaces.MultiBinary(actions.TARGETS), spaces.MultiBinary(actions.MODES)
    masks = spaces.Dict([("target", target), ("ewar", ewar)])
    return spaces.Dict([("vector", vector), (ACTION_MASK, masks)])


def of(arena: MechArena) -> Tensor | dict[str, Tensor | dict[str, Tensor]]:
    """The observation of every row; zeros for the dead, who can choose no target."""
    parts = [_own(arena), _contacts(arena), _local(arena), _coarse(arena), _messages(arena)]
    vector = torch.cat(parts, 3).mul_(arena.alive.unsqueeze(3)).flatten(0, 2)
    if arena.options.spaces == "flat":
        return vector
    masks = {name: mask.flatten(0, 2).to(torch.int8) for name, mask in actions.masks(arena).items()}
    return {"vector": vector, ACTION_MASK: masks}


def _own(arena: MechArena) -> Tensor:
    tables, hx, hy = arena.tables, arena.hx, arena.hy
    held = zone.hold(arena)
    shape = arena.x.shape

    def each(values: Tensor) -> Tensor:
        return values.float().expand(shape)

    distance = exact.length(arena.x, arena.y)
    radius = arena.radius.view(-1, 1, 1)
    share = 2 / (arena.max_episode_steps * DECISION)
    score, tick = arena.score.unsqueeze(2), held.tick.unsqueeze(2)
    ground = arena.ground(arena.x, arena.y)
    numbers = [
        arena.hp / tables.hp,
        arena.legs / tables.leg_hp,
        arena.heat / tables.heat_cap,
        arena.stability * (1 / STABILITY),
        arena.down * (1 / FALL_SECONDS),
        (~body.senses(arena)).float(),
        arena.suppressed * (1 / SUPPRESSED),
        arena.painted * (1 / PAINTED),
        (arena.vx * hx + arena.vy * hy) * PER_SPEED,
        (arena.vy * hx - arena.vx * hy) * PER_SPEED,
        arena.vz * PER_SPEED,
        (arena.z - ground) * PER_SPEED,
        *(arena.cooldown / tables.cooldown.clamp(min=1.0)).unbind(3),
        *(each(tables.number == number) for number in range(4)),
        (arena.ewar == 1).float(),
        (arena.ewar == 2).float(),
        arena.range * (1 / (MOST * SEEN)),
        *(sensing.sound(arena) * 0.1).unbind(3),
        -(arena.x * hx + arena.y * hy) * PER_HALF,
        (arena.x * hy - arena.y * hx) * PER_HALF,
        (distance - radius).clamp(min=0.0) * PER_HALF,
        each(radius * 0.1),
        held.inside.float(),
        each(held.contested),
        each(tick),
        each(arena.theirs(tick)),
        each(score * share),
        each(arena.theirs(score) * share),
        each(1 - arena.age.view(-1, 1, 1).float() * (1 / arena.max_episode_steps)),
        each(arena.alive.sum(2, keepdim=True).float() * (1 / arena.mechs)),
        arena.x * arena.facing * PER_HALF,
        arena.y * arena.facing * PER_HALF,
        hx * arena.facing,
        hy * arena.facing,
    ]
    return torch.stack(numbers, 3)


def _contacts(arena: MechArena) -> Tensor:
    tables, there, shape = arena.tables, arena.theirs, arena.x.shape
    shut = ~body.senses(arena)
    own = torch.stack(
        [
            *(arena.x, arena.y, arena.z, arena.hx, arena.hy, arena.vx, arena.vy),
            *(
                arena.hp / tables.hp,
                (tables.tons * (1 / 85)).expand(shape),
                arena.painted * (1 / PAINTED),
                shut.float(),
            ),
        ],
        3,
    )
    everybody = torch.cat([own, there(own)], 2)  # [E, 2, 2N, F]: those of the own side, then the others
    contact = arena.contact.clamp(min=0)
    at = contact.flatten(2).unsqueeze(3).expand(-1, -1, -1, own.shape[3])
    x, y, z, hx, hy, vx, vy, *rest = everybody.gather(2, at).unflatten(2, (-1, CONTACTS)).unbind(4)
    facing_x, facing_y = arena.hx.unsqueeze(3), arena.hy.unsqueeze(3)
    dx, dy, dz = x - arena.x.unsqueeze(3), y - arena.y.unsqueeze(3), z - arena.z.unsqueeze(3)
    is_there, is_enemy = arena.contact >= 0, arena.contact >= arena.mechs
    clear = torch.cat([torch.ones_like(arena.clear), arena.clear], 3).gather(3, contact)
    ahead, left = dx * facing_x + dy * facing_y, dy * facing_x - dx * facing_y
    distance = exact.length(dx, dy, dz)
    numbers = [
        torch.ones_like(dx),
        is_enemy.float(),
        ahead * PER_SEEN,
        left * PER_SEEN,
        dz * PER_SEEN,
        distance * PER_SEEN,
        hx * facing_x + hy * facing_y,
        hy * facing_x - hx * facing_y,
        (vx * facing_x + vy * facing_y) * PER_SPEED,
        (vy * facing_x - vx * facing_y) * PER_SPEED,
        *rest,
        clear.float(),
        (ahead >= left.abs()).float(),
    ]
    return (torch.stack(numbers, 4) * is_there.unsqueeze(4)).flatten(3)


def _local(arena: MechArena) -> Tensor:
    """Heights around the mech, against its own."""
    forward, aside = arena.around
    hx, hy = arena.hx.unsqueeze(3), arena.hy.unsqueeze(3)
    x = (hx * forward).sub_(hy * aside).add_(arena.x.unsqueeze(3))
    y = (hy * forward).add_(hx * aside).add_(arena.y.unsqueeze(3))
    ground = arena.ground(x.flatten(2), y.flatten(2)).view(x.shape)
    return ground.sub_(arena.z.unsqueeze(3)).clamp_(-5.0, 5.0).mul_(0.2)


def _coarse(arena: MechArena) -> Tensor:
    """Where obstacles are, by squares of the map. Seen from red it is the same, since maps are symmetric."""
    coarse = arena.coarse.index_select(0, arena.map)
    return coarse[:, None, None].expand(*arena.x.shape, -1)


def _messages(arena: MechArena) -> Tensor:
    """What the living mechs of the pack said in the last decision."""
    said = arena.message * arena.alive.unsqueeze(3)
    heard = said[:, :, arena.tables.mate] * arena.tables.has_mate.unsqueeze(2)
    return heard.flatten(3)


def around(device: torch.device) -> tuple[Tensor, Tensor]:
    """The points of the local map: metres ahead and to the left."""
    steps = (torch.arange(LOCAL, device=device) - LOCAL // 2).float() * SPACING
    ahead, left = torch.meshgrid(steps, steps, indexing="ij")
    return ahead.flatten(), left.flatten()
