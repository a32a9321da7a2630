"""What the viewer draws of a game: the states after its decisions as columns of whole numbers, and events."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.base.types import Tree
from recollect.tasks.mech import actions, maps, zone
from recollect.tasks.mech.arena import MechArena
from recollect.tasks.mech.events import Events, holder
from recollect.tasks.mech.recording import play_again
from recollect.tasks.mech.replays import Replay
from recollect.tasks.mech.rules import (
    CLASSES,
    DECISION,
    FALL_SECONDS,
    SMOKE_LASTS,
    SMOKE_RADIUS,
    STABILITY,
    roster,
)
from recollect.tasks.mech.tables import SHOT_KINDS

SCALES = {
    **{"x": 100, "y": 100, "above": 100, "heading": 10, "hp": 100, "legs": 100, "heat": 100},
    **{"stability": 100, "down": 100, "painted": 100, "suppressed": 100, "range": 100},
    **{"dealt": 8, "score": 1000, "tick": 1000},
}
"""Columns are multiplied by these and rounded; those without a scale are whole numbers."""
NOTHING = -(2**31)
"""In an extra: no number."""


def frames(replay: Replay) -> dict[str, Any]:
    """Play the game again and return all that the page needs, as JSON values."""
    columns: dict[str, list[Tensor]] = {}
    shots: list[list[int]] = []
    smoke: list[list[int]] = []
    events, fixed = Events(), {}

    def add(arena: MechArena, action: Tree | None) -> None:
        if action is None:
            fixed.update(_fixed(arena))
        for name, values in _state(arena).items():
            columns.setdefault(name, []).append(values.flatten().cpu().clone())
        columns.setdefault("aim", []).append(_aim(arena, replay, len(shots)))
        shots.append(_shots(arena))
        smoke.append(_smoke(arena))
        events.add(arena)

    play_again(replay, add)
    about = ("players", "options", "seed", "slot", "episode", "won", "score", "ended", "sha256")
    return {
        **{name: getattr(replay, name) for name in about},
        "frames": replay.decisions + 1,
        **fixed,
        "columns": {name: _column(SCALES.get(name, 1), torch.stack(each)) for name, each in columns.items()},
        "shots": shots,
        "smoke": smoke,
        "events": events.end(replay.ended, replay.won),
        "extras": {name: _extra(values) for name, values in replay.extras.items()},
    }


def _fixed(arena: MechArena) -> dict[str, Any]:
    """What stays as it is during a game."""
    heights = arena.heights.view(-1, maps.SIDE, maps.SIDE)[int(arena.map[0])].cpu().numpy()
    classes = [
        {
            **{name: getattr(each, name) for name in ("name", "hp", "tons", "mounts")},
            **{"legs": each.leg_hp, "cap": each.heat_cap, "shots": SHOT_KINDS.get(each.name, ())},
        }
        for each in CLASSES
    ]
    return {
        **{"mechs": arena.mechs, "decision": DECISION, "limit": arena.max_episode_steps * DECISION},
        **{"radius": round(float(arena.radius[0]), 4), "stability": STABILITY, "fall": FALL_SECONDS},
        **{"smokeRadius": SMOKE_RADIUS, "smokeLasts": SMOKE_LASTS},
        **{"classes": classes, "roster": roster(arena.mechs), "map": int(arena.map[0])},
        "terrain": {
            **{"side": maps.SIDE, "wall": maps.WALL},
            "heights": _column(64, torch.from_numpy(heights.flatten())),
            "walls": _column(1, torch.from_numpy(maps.walls(heights).flatten())),
        },
    }


def _state(arena: MechArena) -> dict[str, Tensor]:
    """The columns of the present state: of every row, or of the game."""
    n = arena.mechs
    hold = zone.hold(arena)
    powers = 2 ** torch.arange(n, device=arena.device)
    mounts = 2 ** torch.arange(arena.fired.shape[3], device=arena.device)
    contact, first = arena.contact[0], torch.tensor([0, n], device=arena.device).view(2, 1, 1)
    return {
        **{"x": arena.x, "y": arena.y, "above": arena.z - arena.ground(arena.x, arena.y)},
        "heading": torch.atan2(arena.hy, arena.hx).rad2deg(),
        **{name: getattr(arena, name) for name in ("hp", "legs", "heat", "stability", "down")},
        **{name: getattr(arena, name) for name in ("painted", "suppressed", "ewar", "range")},
        "dealt": arena.dealt.sum(3),
        "fired": (arena.fired * mounts).sum(3),
        "sees": (arena.sees * powers).sum(3),
        "inside": hold.inside,
        # Rows of the slot: 0..N-1 are blue's mechs, and N..2N-1 red's.
        "contacts": torch.where(contact < 0, -1, (contact + first) % (2 * n)),
        **{"score": arena.score, "tick": hold.tick, "zone": holder(arena)},
    }


def _aim(arena: MechArena, replay: Replay, decision: int) -> Tensor:
    """[R]: the rows of the enemies that mechs aim at from this state to the next one; -1: none."""
    n = arena.mechs
    if decision == replay.decisions:
        return torch.full((2 * n,), -1)
    parts = {name: torch.from_numpy(values[decision]) for name, values in replay.actions.items()}
    aims = actions.targets(arena, parts.get("action", parts))[0]
    return torch.where(aims < 0, -1, aims + torch.tensor([[n], [0]])).flatten()


def _shots(arena: MechArena) -> list[int]:
    """Of every shot under way: its row, its place among the row's shots, x, y (cm), and velocity (cm/s)."""
    return _listed(arena.shot_left > 0, arena.shot_x, arena.shot_y, arena.shot_vx, arena.shot_vy)


def _smoke(arena: MechArena) -> list[int]:
    """Of every cloud, or shell that becomes one: row, place, x, y (cm), and hundredths of a second left."""
    return _listed(arena.smoke_left > 0, arena.smoke_x, arena.smoke_y, arena.smoke_left)


def _listed(exist: Tensor, *values: Tensor) -> list[int]:
    exist = exist[0].flatten(0, 1)
    hundredths = [(value[0].flatten(0, 1)[exist] * 100).round().long() for value in values]
    return torch.cat([exist.nonzero(), torch.stack(hundredths, 1)], 1).flatten().tolist()


def _column(scale: int, values: Tensor) -> dict[str, Any]:
    """Numbers times ``scale``, as base64 of little-endian int16, or of int32 where that is too small."""
    whole = (values.double() * scale).round().numpy()
    kind = "<i2" if np.abs(whole).max(initial=0) < 2**15 else "<i4"
    return {"scale": scale, "bytes": int(kind[2]), "data": _base64(whole.astype(kind))}


def _extra(values: np.ndarray) -> dict[str, Any]:
    """An extra [T, R] in millionths of its largest size."""
    peak = float(np.nan_to_num(np.abs(values), posinf=0.0).max(initial=0.0)) or 1.0
    is_number = np.isfinite(values)
    whole = np.where(is_number, np.round(np.where(is_number, values, 0.0) / peak * 1e6), NOTHING)
    return {"scale": 1e6 / peak, "bytes": 4, "data": _base64(whole.astype("<i4"))}


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()
