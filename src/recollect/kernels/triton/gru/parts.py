"""Device functions of a GRU step.

Blocks are [rows, units]. Four blocks are in the order m, r, z, n of ``kernels.cpu.gru``, where
m = W_hn h + b_hn is the recurrent part of n; three are in the order r, z, n.
"""

# pyright: reportMissingImports=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from recollect.kernels.triton.math import divisor, factor, within


@triton.jit
def weights(w, own, every, TYPE: tl.constexpr, H: tl.constexpr, PRECISION: tl.constexpr, MATH: tl.constexpr):
    """The rows ``own`` and columns ``every`` of one gate's weights [H, H], as a factor."""
    return factor(tl.load(w + own * H + every, (own < H) & (every < H), 0), TYPE, PRECISION, MATH)


@triton.jit
def biases(b_ih, b_hh, unit, is_unit, H: tl.constexpr):
    """The biases of r, z, n and m, each [1, units]."""
    r = tl.load(b_ih + unit, is_unit, 0) + tl.load(b_hh + unit, is_unit, 0)
    z = tl.load(b_ih + H + unit, is_unit, 0) + tl.load(b_hh + H + unit, is_unit, 0)
    n = tl.load(b_ih + 2 * H + unit, is_unit, 0)
    m = tl.load(b_hh + 2 * H + unit, is_unit, 0)
    return r[None, :], z[None, :], n[None, :], m[None, :]


@triton.jit
def three(x, three, is_here, H: tl.constexpr):
    """Load the blocks of r, z, n at the offsets ``three``."""
    r = tl.load(x + three, is_here, 0)
    z = tl.load(x + H + three, is_here, 0)
    n = tl.load(x + 2 * H + three, is_here, 0)
    return r, z, n


@triton.jit
def four(kept, four, is_here, H: tl.constexpr):
    """Load the blocks of m, r, z, n at the offsets ``four``."""
    m = tl.load(kept + four, is_here, 0)
    r = tl.load(kept + H + four, is_here, 0)
    z = tl.load(kept + 2 * H + four, is_here, 0)
    n = tl.load(kept + 3 * H + four, is_here, 0)
    return m, r, z, n


@triton.jit
def step(kept, before, dy, at, places, one, is_here, H: tl.constexpr, HAS_DY: tl.constexpr):
    """Load m, r, z, n at the offsets ``places`` from row ``at``, and at ``one`` the input state and dy."""
    m, r, z, n = four(kept + at * (4 * H), places, is_here, H)
    state = tl.load(before + at * H + one, is_here, 0)
    gradient = tl.zeros(one.shape, tl.float32)
    if HAS_DY:
        gradient = tl.load(dy + at * H + one, is_here, 0)
    return m, r, z, n, state, gradient


@triton.jit
def store_four(kept, four, m, r, z, n, is_here, H: tl.constexpr):
    """Store blocks for ``four`` to load."""
    TYPE: tl.constexpr = kept.dtype.element_ty
    tl.store(kept + four, within(m, TYPE), is_here)
    tl.store(kept + H + four, r.to(TYPE), is_here)
    tl.store(kept + 2 * H + four, z.to(TYPE), is_here)
    tl.store(kept + 3 * H + four, n.to(TYPE), is_here)


@triton.jit
def scales(carried, HALF: tl.constexpr):
    """Divisors that bring rows of gradients into the range of float16, and reciprocals; 1 without HALF."""
    scale = tl.full((carried.shape[0], 1), 1.0, tl.float32)
    if HALF:
        scale = divisor(tl.max(tl.abs(carried), 1))[:, None]
    return scale, 1 / scale


@triton.jit
def gradients(carried, m, r, z, n, state):
    """The gradients of m and of r, z, n before activation, from that of the new state; and the part of it
    that bypasses the gates to the old state."""
    dn = carried - carried * z
    dn -= dn * n * n
    carried *= z
    dz = carried * state - carried * n
    dz -= dz * z
    dm = dn * r
    dr = dm * m
    dr -= dr * r
    return dm, dr, dz, dn, carried
