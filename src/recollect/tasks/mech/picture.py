"""The arena of slot 0 from above, as an image: terrain, zone, mechs, shots, smoke and paint."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np

from recollect.tasks.mech import body, maps, zone
from recollect.tasks.mech.rules import HALF, HEAVY, LIGHT, MEDIUM, SCOUT, SMOKE_LASTS, SMOKE_RADIUS

if TYPE_CHECKING:
    from recollect.tasks.mech.arena import MechArena

PIXELS = 4
"""Along each metre."""
SIDES = np.array([[36, 87, 197], [189, 82, 7]], np.float32)
"""Blue, and the orange that stands for red: they differ for the colour-blind, too."""
GROUND, WALL, HELD = (236, 238, 233), (120, 124, 130), 0.18
PAINT, SHOT, SMOKE, DARK = (214, 40, 150), (20, 20, 20), (176, 178, 182), (90, 92, 96)
SIZES = {SCOUT: 1.1, LIGHT: 1.4, MEDIUM: 1.7, HEAVY: 2.1}
"""Metres from a mech's middle to its edge: larger than life."""
CORNERS = {SCOUT: 3, LIGHT: 4, MEDIUM: 5, HEAVY: 6}
"""Corners of the shape of each class; the first points ahead."""


def draw(arena: MechArena) -> np.ndarray:
    """uint8 [height, width, 3]; y points up."""
    canvas = _Canvas(arena)
    canvas.zone()
    canvas.clouds()
    for side, mech in np.ndindex(2, arena.mechs):
        x, y = (float(canvas.of(name)[side, mech]) for name in ("x", "y"))
        canvas.near(x, y, 5).mech(side, mech, x, y)
    canvas.shots()
    return canvas.image[::-1].round().astype(np.uint8)


class _Canvas:
    """The image while it is drawn, float32 [y, x, 3], y upward."""

    def __init__(self, arena: MechArena):
        self.arena = arena
        heights = arena.heights.view(-1, maps.SIDE, maps.SIDE)[int(arena.map[0])].cpu().numpy()
        ground = np.array(GROUND, np.float32) * (0.8 + 0.2 * np.clip(heights, 0, 6)[..., None] / 6).round(2)
        ground[maps.walls(heights)] = WALL
        self.image = ground.repeat(PIXELS, 0).repeat(PIXELS, 1)
        at = (np.arange(2 * HALF * PIXELS) + 0.5) / PIXELS - HALF
        self.x, self.y = at[None, :].astype(np.float32), at[:, None].astype(np.float32)

    def near(self, x: float, y: float, radius: float) -> _Canvas:
        """The part of the image around a point."""
        part = copy.copy(self)
        columns, rows = (
            slice(max(0, int((at - radius + HALF) * PIXELS)), int((at + radius + HALF) * PIXELS) + 1)
            for at in (x, y)
        )
        part.image, part.x, part.y = self.image[rows, columns], self.x[:, columns], self.y[rows]
        return part

    def of(self, name: str) -> np.ndarray:
        """A field of slot 0."""
        return getattr(self.arena, name)[0].cpu().numpy()

    def mix(self, where: np.ndarray, colour: np.ndarray | tuple[int, ...], share: float = 1.0) -> None:
        """Blend a colour into the pixels ``where``."""
        self.image[where] += (np.array(colour, np.float32) - self.image[where]) * share

    def disc(self, x: float, y: float, radius: float) -> np.ndarray:
        """The pixels of a disc."""
        return (self.x - x) ** 2 + (self.y - y) ** 2 <= radius**2

    def zone(self) -> None:
        """The zone in the colours of those who are in it."""
        radius = float(self.arena.radius[0])
        inside = zone.hold(self.arena).inside[0].any(1).tolist()
        colours = [colour for colour, holds in zip(SIDES, inside) if holds] or [np.full(3, 255.0)]
        colour = np.mean(colours, 0)
        self.mix(self.disc(0, 0, radius), colour, HELD)
        self.mix(self.disc(0, 0, radius) & ~self.disc(0, 0, radius - 0.5), colour * 0.8, 0.8)

    def clouds(self) -> None:
        """The smoke that blocks sight, and shells on their way as small dots where they will burst."""
        left = self.of("smoke_left").ravel()
        for x, y, seconds in zip(self.of("smoke_x").ravel(), self.of("smoke_y").ravel(), left):
            if seconds > 0:
                radius = SMOKE_RADIUS if seconds <= SMOKE_LASTS else 0.5
                part = self.near(x, y, radius)
                part.mix(part.disc(x, y, radius), SMOKE, 0.75)

    def shots(self) -> None:
        """Every shot with the way that it has come in a tenth of a second."""
        flies = self.of("shot_left") > 0
        names = ("shot_x", "shot_y", "shot_vx", "shot_vy")
        for x, y, vx, vy in zip(*(self.of(name)[flies] for name in names)):
            part = self.near(x, y, 5)
            for back in (0.0, 0.05, 0.1):
                part.mix(part.disc(x - vx * back, y - vy * back, 0.4 - 2 * back), SHOT)

    def mech(self, side: int, mech: int, x: float, y: float) -> None:
        """The shape of its class, paler if it has lost health; a ring if it is painted; a cross if dead."""
        arena = self.arena
        number = int(arena.tables.number[mech])
        hx, hy = (float(self.of(name)[side, mech]) for name in ("hx", "hy"))
        hp, full = float(self.of("hp")[side, mech]), float(arena.tables.hp[mech])
        ahead, left = (self.x - x) * hx + (self.y - y) * hy, (self.y - y) * hx - (self.x - x) * hy
        size = SIZES[number]
        if hp <= 0:
            if mech < arena.team:
                cross = (np.abs(ahead) < 0.25) | (np.abs(left) < 0.25)
                self.mix(cross & self.disc(x, y, size * 0.7), SIDES[side] * 0.6)
            return
        if float(self.of("painted")[side, mech]) > 0:
            self.mix(self.disc(x, y, size + 1) & ~self.disc(x, y, size + 0.4), PAINT)
        shape = _polygon(ahead, left, CORNERS[number], size)
        self.mix(_polygon(ahead, left, CORNERS[number], size + 0.35), (255, 255, 255))
        is_up = bool(body.active(arena)[0, side, mech])
        self.mix(shape, SIDES[side] if is_up else DARK)
        self.mix(shape & ~_polygon(ahead, left, CORNERS[number], size * 0.55), SIDES[side])
        self.mix(_polygon(ahead, left, CORNERS[number], size * 0.55 * (1 - hp / full)), (255, 255, 255))
        self.mix((np.abs(left) < 0.2) & (ahead > 0) & (ahead < size + 1.2), SIDES[side] * 0.6)


def _polygon(ahead: np.ndarray, left: np.ndarray, corners: int, size: float) -> np.ndarray:
    """The pixels of a regular polygon around the origin, with a corner ahead."""
    inner = size * np.cos(np.pi / corners)
    inside = np.ones(np.broadcast_shapes(ahead.shape, left.shape), bool)
    for k in range(corners):
        angle = (2 * k + 1) * np.pi / corners
        inside &= ahead * np.cos(angle) + left * np.sin(angle) <= inner
    return inside
