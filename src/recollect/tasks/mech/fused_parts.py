"""What the Triton kernels of the mech arena share.

A program has one slot. Its lanes are the mechs of both sides, blue first; pairs are tiles [lanes, lanes], a
mech against a mech, of which ``enemy`` are of two sides.
"""

# A type checker cannot follow Triton's functions.
# pyright: reportMissingImports=false, reportArgumentType=false, reportReturnType=false

from __future__ import annotations

import triton
import triton.language as tl

from recollect.tasks.mech import columns, maps, rules

MOUNTS: tl.constexpr = tl.constexpr(rules.MOUNTS)
SHOTS: tl.constexpr = tl.constexpr(rules.SHOTS)
CLOUDS: tl.constexpr = tl.constexpr(rules.CLOUDS)
SIDE: tl.constexpr = tl.constexpr(maps.SIDE)
EDGE: tl.constexpr = tl.constexpr(maps.EDGE)
ECM: tl.constexpr = tl.constexpr(rules.ECM)
ECCM: tl.constexpr = tl.constexpr(rules.ECCM)
HALF: tl.constexpr = tl.constexpr(rules.HALF)
HEIGHT: tl.constexpr = tl.constexpr(rules.HEIGHT)
_PLACES, _LENGTH = columns.places()
COLUMNS: tl.constexpr = tl.constexpr(_LENGTH)


@triton.constexpr_function
def column(name):
    """The column of a number in ``columns.table``; of mounts and shots that of the first."""
    return _PLACES[name]


@triton.jit
def length(x, y):
    """As ``exact.length`` of two numbers: the root as IEEE 754 rounds it."""
    return tl.sqrt_rn(x * x + y * y)


@triton.jit
def length3(x, y, z):
    """As ``exact.length`` of three numbers."""
    return tl.sqrt_rn(x * x + y * y + z * z)


@triton.jit
def along(x):
    """The cell along an axis, as in ``maps``."""
    cell = tl.minimum(tl.maximum(x, -EDGE), EDGE).to(tl.int32) + (HALF - 1)
    return cell + (x >= 0).to(tl.int32)


@triton.jit
def ground(heights, x, y, wanted):
    """The height of the ground at (x, y) on the map at ``heights``, where ``wanted``."""
    return tl.load(heights + along(y) * SIDE + along(x), mask=wanted, other=0.0)


@triton.jit
def of_target(aim, values):
    """The value of the mech that each lane aims at; 0 for those that aim at none."""
    return tl.sum(tl.where(aim, values[None, :], 0.0), 1)


@triton.jit
def anywhere(tile, AXIS: tl.constexpr):
    """Whether a tile of flags has one along an axis."""
    return tl.max(tile.to(tl.int32), AXIS) > 0
