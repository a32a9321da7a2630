"""The pool of maps: height fields of cells of 1 m, point-symmetric about the centre, and lookups in them.

Maps are made on the host from counter-based random numbers, with operations that round alike everywhere.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from recollect.tasks import random
from recollect.tasks.mech.rules import HALF, STEP_UP

SIDE = 2 * HALF
"""Cells along a side."""
COARSE = 8
"""Squares along a side of the coarse map."""
HILLS, HILL_HEIGHT = 10, 3.0
WALL = 5.0
"""Height of obstacles above the ground."""
WALL_SHARE = 0.06
"""Share of cells that are obstacles."""
EDGE = HALF - 0.5
"""What is farther from the centre is in the outermost cell."""
FREE_CENTRE, FREE_CORNER = 6, 20
"""No obstacles within this distance of the centre, and within these squares in the corners of the teams."""


def make(count: int, seed: int) -> Tensor:
    """[count, SIDE * SIDE] float32: the heights of ``count`` maps, row by row (y, then x)."""
    keys = random.row_keys(seed, torch.arange(count))
    return torch.from_numpy(np.stack([_connected(key) for key in keys])).flatten(1)


def cell(x: Tensor, y: Tensor) -> Tensor:
    """The index of the cell at (x, y), int32. Mirrored about the centre, it is SIDE * SIDE - 1 - index."""
    return _along(y).mul_(SIDE).add_(_along(x))


def coarse(heights: Tensor) -> Tensor:
    """[count, COARSE * COARSE]: the share of cells at the edges of obstacles in each square."""
    fields = heights.view(-1, SIDE, SIDE)
    at_edge = torch.zeros_like(fields)
    for axis in (1, 2):
        ahead, behind = (at_edge.narrow(axis, start, SIDE - 1) for start in (1, 0))
        is_steep = fields.diff(dim=axis).abs() > STEP_UP
        for cells in (ahead, behind):  # on both sides of a step, so that it is symmetric
            cells[is_steep] = 1.0
    pooled = torch.nn.functional.adaptive_avg_pool2d(at_edge.unsqueeze(1), COARSE)
    return pooled.flatten(1)


def walls(heights: np.ndarray) -> np.ndarray:
    """[SIDE, SIDE] bool: cells without a way on foot from the centre, which are obstacles."""
    reached = np.zeros(heights.shape, bool)
    reached[SIDE // 2, SIDE // 2] = True
    down, right = (np.abs(np.diff(heights, axis=axis)) <= STEP_UP for axis in (0, 1))
    before = 0
    while before != reached.sum():
        before = reached.sum()
        reached[1:] |= reached[:-1] & down
        reached[:-1] |= reached[1:] & down
        reached[:, 1:] |= reached[:, :-1] & right
        reached[:, :-1] |= reached[:, 1:] & right
    return ~reached


def _along(x: Tensor) -> Tensor:
    """The cell along an axis. Numbers are cut towards 0, so that -x is in the mirrored cell, borders too."""
    return x.clamp(-EDGE, EDGE).to(torch.int32).add_(HALF - 1).add_(x >= 0)


def _connected(key: Tensor) -> np.ndarray:
    """The first map of ``key`` on which mechs can walk from corner to corner through the centre."""
    for attempt in range(100):
        heights = _draw(random.bits(key, attempt))
        if _reaches(heights):
            return heights
    raise AssertionError("no connected map among 100")


def _draw(key: Tensor) -> np.ndarray:
    """A height field [SIDE, SIDE], in multiples of 1/64 m."""
    numbers = iter(random.uniform(random.bits(key, torch.arange(4096))).tolist())
    at = np.arange(SIDE) - HALF + 0.5
    y, x = at[:, None], at[None, :]
    ground = np.zeros((SIDE, SIDE))
    for _ in range(HILLS):
        hill_x, hill_y = (next(numbers) - 0.5) * SIDE, (next(numbers) - 0.5) * SIDE
        height, width = next(numbers) * HILL_HEIGHT, 8 + 8 * next(numbers)
        far = ((x - hill_x) ** 2 + (y - hill_y) ** 2) / width**2
        ground += height / (1 + far) ** 2
    ground = np.floor((ground + ground[::-1, ::-1]) * 32) / 64
    is_wall = np.zeros((SIDE, SIDE), bool)
    may = _may_be_wall(x, y)
    while is_wall.mean() < WALL_SHARE:
        wide, high = (2 + int(next(numbers) * 5) for _ in range(2))
        left, top = int(next(numbers) * (SIDE - wide)), int(next(numbers) * (SIDE - high))
        is_wall[top : top + high, left : left + wide] = True
        is_wall &= may
        is_wall |= is_wall[::-1, ::-1]
    return (ground + WALL * is_wall).astype(np.float32)


def _may_be_wall(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    corner = HALF - FREE_CORNER
    in_corner = (np.minimum(x, y) < -corner) & (np.maximum(x, y) < -corner)
    return (x**2 + y**2 > FREE_CENTRE**2) & ~(in_corner | in_corner[::-1, ::-1])


def _reaches(heights: np.ndarray) -> bool:
    """Whether a mech walks from the corner of blue to the centre, and so, by symmetry, red."""
    reached = np.zeros(heights.shape, bool)
    reached[2, 2] = True
    while True:
        before = reached.sum()
        for axis in (0, 1):
            for way in (1, -1):
                ahead, behind = _shifted(axis, way)
                reached[ahead] |= reached[behind] & (heights[ahead] - heights[behind] <= STEP_UP)
        if reached.sum() == before:
            return bool(reached[HALF, HALF])


def _shifted(axis: int, way: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Slices of cells, and of their neighbours on one side along an axis."""
    ahead, behind = (slice(1, None), slice(None, -1))[::way]
    rest = slice(None)
    return ((ahead, rest), (behind, rest)) if axis == 0 else ((rest, ahead), (rest, behind))
