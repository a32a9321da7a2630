"""The simulation steps of a decision, and sensing, as one Triton kernel each: for a GPU.

In torch they are thousands of small operations; a GPU spends most of its time on launching them. The
kernels compute the same in the same order: every state, every observation, bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from recollect.base import triton_support
from recollect.tasks.mech.rules import WEAPONS

if TYPE_CHECKING:
    from recollect.tasks.mech.actions import Orders
    from recollect.tasks.mech.arena import MechArena
    from recollect.tasks.mech.damage import Tally

FLIGHT = ("shot_x", "shot_y", "shot_z", "shot_vx", "shot_vy", "shot_vz", "shot_left", "shot_target")
BODY = (
    *("x", "y", "z", "hx", "hy", "vx", "vy", "vz", "hp", "legs", "heat", "stability", "down", "suppressed"),
    *("painted", "painter", "owes_assist", "ewar"),
)


def suits(arena: MechArena) -> bool:
    """Whether the kernels can run where the arena is."""
    return triton_support.suits(arena.x)


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


def sizes(mechs: int) -> dict[str, int]:
    """A program has a lane for each mech of both sides."""
    lanes = max(2, 1 << (2 * mechs - 1).bit_length())
    return {"N": mechs, "LANES": lanes, "num_warps": min(8, max(1, lanes // 8))}


def _launch(kernel: Any, arena: MechArena, given: list[Tensor], **options: Any) -> None:
    """One program for each slot. Products and sums are not fused, which would round differently."""
    with torch.cuda.device_of(arena.x):
        kernel[(arena.num_envs,)](*given, **sizes(arena.mechs), **options, enable_fp_fusion=False)
