"""The numbers of every mech in one tensor, for the Triton kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.tasks.mech.rules import MOUNTS, SHOTS
from recollect.tasks.mech.tables import Tables

OF_MECHS = ("speed", "turn", "jet", "heat_cap", "heat_loss", "tons")
OF_MOUNTS = (
    *("range", "arc", "heat", "cooldown", "exists", "is_instant", "is_missile", "is_paint", "is_smoke"),
    *("hit_damage", "hit_heat", "trigger"),
)
OF_SHOTS = (
    *("shot_mount", "shot_exists", "shot_homes", "shot_suppresses", "shot_speed", "shot_damage"),
    *("shot_stability", "splash", "shot_life", "shot_lead"),
)


def table(tables: Tables) -> Tensor:
    """[N, columns] float32: the numbers of each mech, then those of each mount, then of each shot."""
    n = len(tables.speed)
    columns = [getattr(tables, name).float().view(n, 1) for name in OF_MECHS]
    columns += [getattr(tables, name).float().expand(n, MOUNTS) for name in OF_MOUNTS]
    columns += [getattr(tables, name).float().view(n, SHOTS) for name in OF_SHOTS]
    return torch.cat(columns, 1).contiguous()


def places() -> tuple[dict[str, int], int]:
    """Where each number begins in a row of the table, and the length of a row."""
    places, at = dict[str, int](), 0
    for names, count in ((OF_MECHS, 1), (OF_MOUNTS, MOUNTS), (OF_SHOTS, SHOTS)):
        for name in names:
            places[name], at = at, at + count
    return places, at
