"""The simulation steps of a decision, and sensing, as one Triton kernel each: for a GPU.

A decision in torch is four thousand small operations; a GPU spends most of its time on launching them. The
kernels compute the same in the same order: every state, every observation, bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from recollect.base import triton_support
from recollect.tasks.mech.rules import MOUNTS, SHOTS, WEAPONS
from recollect.tasks.mech.tables import Tables

if TYPE_CHECKING:
    from recollect.tasks.mech.actions import Orders
    from recollect.tasks.mech.arena import MechArena
    from recollect.tasks.mech.damage import Tally

OF_MECHS = ("speed", "turn", "jet", "heat_cap", "heat_loss", "tons")
OF_MOUNTS = (
    *("range", "arc", "heat", "cooldown", "exists", "is_instant", "is_missile", "is_paint", "is_smoke"),
    *("hit_damage", "hit_heat", "trigger"),
)
OF_SHOTS = (
    *("shot_mount", "shot_exists", "shot_homes", "shot_suppresses", "shot_speed", "shot_damage"),
    *("shot_stability", "splash", "shot_life", "shot_lead"),
)
FLIGHT = ("shot_x", "shot_y", "shot_z", "shot_vx", "shot_vy", "shot_vz", "shot_left", "shot_target")
BODY = (
    *("x", "y", "z", "hx", "hy", "vx", "vy", "vz", "hp", "legs", "heat", "stability", "down", "suppressed"),
    *("painted", "painter", "owes_assist", "ewar"),
)


def suits(arena: MechArena) -> bool:
    """Whether the kernels can run where the arena is."""
    return triton_support.suits(arena.x)


def table(tables: Tables) -> Tensor:
    """[N, columns] float32: the numbers of each mech, then those of each mount, then of each shot."""
    n = len(tables.speed)
    columns = [getattr(tables, name).float().view(n, 1) for name in OF_MECHS]
    columns += [getattr(tables, name).float().expand(n, MOUNTS) for name in OF_MOUNTS]
    columns += [getattr(tables, name).float().view(n, SHOTS) for name in OF_SHOTS]
    return torch.cat(columns, 1).contiguous()


def columns() -> tuple[dict[str, int], int]:
    """Where each number begins in a row of the table, and the length of a row."""
    places, at = dict[str, int](), 0
    for names, count in ((OF_MECHS, 1), (OF_MOUNTS, MOUNTS), (OF_SHOTS, SHOTS)):
        for name in names:
            places[name], at = at, at + count
    return places, at


def decide(arena: MechArena, orders: Orders, tally: Tally) -> None:
    """All simulation steps of a decision, as ``MechArena`` makes them."""
    from recollect.tasks.mech import fused_decision

    moves = torch.stack([orders.forward, orders.strafe, orders.jump, orders.turn], 3)
    given = [moves, orders.triggers.contiguous(), orders.target.contiguous(), *_world(arena), arena.clear]
    given += [getattr(arena, name) for name in (*BODY, "cooldown", "fired", *FLIGHT, *_SMOKE, "dealt")]
    given += [tally.damage, tally.kills, tally.assists]
    _launch(fused_decision.decide, arena, given, SMOKE_RANGE=WEAPONS["smoke"].range)


def sense(arena: MechArena) -> None:
    """``sensing.update``."""
    from recollect.tasks.mech import fused_sensing

    needed = ("x", "y", "z", "hp", "heat", "down", "painted", "ewar", "sort", "hostile_only", *_SMOKE)
    found = ("clear", "range", "sees", "square", "contact")
    given = [*_world(arena), *(getattr(arena, name) for name in (*needed, *found))]
    options = {"FULL": arena.options.sensing == "full", "SORTS": arena.options.contact_sort}
    _launch(fused_sensing.sense, arena, given, **options)


_SMOKE = ("smoke_x", "smoke_y", "smoke_left")


def _world(arena: MechArena) -> tuple[Tensor, Tensor, Tensor]:
    return arena.map, arena.heights, arena.numbers


def _launch(kernel: Any, arena: MechArena, given: list[Tensor], **options: Any) -> None:
    """One program for each slot. Products and sums are not fused, which would round differently."""
    lanes = max(2, 1 << (2 * arena.mechs - 1).bit_length())
    sizes = {"N": arena.mechs, "LANES": lanes, "num_warps": min(8, max(1, lanes // 8))}
    with torch.cuda.device_of(arena.x):
        kernel[(arena.num_envs,)](*given, **sizes, **options, enable_fp_fusion=False)
