"""Device functions of an LSTM step.

Blocks are [units, rows]. The functions from ``own`` on rearrange blocks for ``spread``.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from recollect.kernels.triton.math import tanh


@triton.jit
def weights(w, unit, column, H: tl.constexpr, HP: tl.constexpr):
    """A block of weights from h of ``column`` to ``unit``; the two broadcast against each other."""
    if H == HP:
        block = tl.load(w + unit * H + column)
    else:
        block = tl.load(w + unit * H + column, (unit < H) & (column < H), 0)
    return block


@triton.jit
def inside(row, unit, rows, H: tl.constexpr, HP: tl.constexpr):
    """The mask of a block [units, rows]."""
    if H == HP:
        inside = (row < rows)[None, :]
    else:
        inside = (unit < H)[:, None] & (row < rows)[None, :]
    return inside


@triton.jit
def four(gates, four, inside, H: tl.constexpr):
    """Load the blocks of i, f, g, o at the offsets ``four``."""
    i = tl.load(gates + four, inside, 0)
    f = tl.load(gates + H + four, inside, 0)
    g = tl.load(gates + 2 * H + four, inside, 0)
    o = tl.load(gates + 3 * H + four, inside, 0)
    return i, f, g, o


@triton.jit
def store_four(at, i, f, g, o, inside, H: tl.constexpr):
    """Store blocks for ``four`` to load."""
    tl.store(at, i.to(at.dtype.element_ty), inside)
    tl.store(at + H, f.to(at.dtype.element_ty), inside)
    tl.store(at + 2 * H, g.to(at.dtype.element_ty), inside)
    tl.store(at + 3 * H, o.to(at.dtype.element_ty), inside)


@triton.jit
def gradients(h_carry, c_carry, i, f, g, o, c_now, c_before, c_start, is_open, MATH: tl.constexpr):
    """The gradients of i, f, g, o before activation, from those of the new h and c; and the total gradient of
    the new c."""
    out = tanh(c_now, MATH)
    do = h_carry * o
    c_carry += do - do * out * out
    do *= out
    do -= do * o
    di = c_carry * i
    dg = di - di * g * g
    di *= g
    di -= di * i
    df = tl.where(is_open, c_carry * c_start, c_carry * c_before) * f
    df -= df * f
    return di, df, dg, do, c_carry


@triton.jit
def largest(a, b, c, d):
    """The largest absolute value in every column of four blocks, [rows]."""
    most = tl.maximum(tl.maximum(tl.abs(a), tl.abs(b)), tl.maximum(tl.abs(c), tl.abs(d)))
    return tl.max(most, 0)


@triton.jit
def own(member, UNITS: tl.constexpr):
    """The units of a member, hinted to be moved in fours for every dtype: then no block changes its layout
    between threads for a store."""
    return tl.max_contiguous(tl.multiple_of(member * UNITS + tl.arange(0, UNITS), 4), 4)


@triton.jit
def mixed(UNITS: tl.constexpr):
    """For every line of a product: which of four blocks of UNITS lines it belongs to, and which line of it.

    In the output layout of tensor cores, one thread holds lines that are 8 apart or in the other half. These
    become one line of each block, so that ``apart`` moves no data.
    """
    line = tl.arange(0, 4 * UNITS)
    which, units = line // (2 * UNITS) * 2 + line // 8 % 2, line % (2 * UNITS) // 16 * 8 + line % 8
    return which, tl.max_contiguous(tl.multiple_of(units, 8), 8)


@triton.jit
def parted_sums(total, a, b, c, d):
    """The four blocks of a product, plus a block each. The sum comes before the split, so that the product as
    a whole moves to the layout of the added blocks."""
    more = tl.join(tl.join(a, c), tl.join(b, d)).to(tl.float32)
    return apart(beside(total, a.shape[0], a.shape[1]) + more)


@triton.jit
def beside(total, UNITS: tl.constexpr, BB: tl.constexpr):
    """The four blocks [UNITS, BB] of a product with ``mixed`` weights as one, [UNITS, BB, 2, 2]."""
    total = tl.reshape(total, (2, UNITS // 8, 2, 8, BB))
    return tl.reshape(tl.permute(total, (1, 3, 4, 0, 2)), (UNITS, BB, 2, 2))


@triton.jit
def apart(total):
    """The four blocks of ``beside``."""
    even, odd = tl.split(total)  # [UNITS, BB, 2] each
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def flat(x):
    """[units, rows] -> [units * rows] in the thread order of a product, without moving data."""
    x = tl.reshape(x, (x.shape[0] // 8, 8, x.shape[1] // 16, 2, 4, 2))
    return tl.reshape(tl.permute(x, (2, 0, 1, 4, 3, 5)), (x.numel,))


@triton.jit
def unflat(x, UNITS: tl.constexpr, BB: tl.constexpr):
    """The inverse of ``flat``."""
    x = tl.reshape(x, (BB // 16, UNITS // 8, 8, 4, 2, 2))
    return tl.reshape(tl.permute(x, (1, 2, 0, 4, 3, 5)), (UNITS, BB))


@triton.jit
def joined(a, b, c, d, TYPE: tl.constexpr):
    """Four blocks [UNITS, BB] as factors, one below the other."""
    four = tl.join(tl.join(a.to(TYPE), c.to(TYPE)), tl.join(b.to(TYPE), d.to(TYPE)))  # as ``apart`` splits
    return tl.reshape(tl.permute(four, (2, 3, 0, 1)), (4 * a.shape[0], a.shape[1]))


@triton.jit
def quarter(top, member, B, BB: tl.constexpr):
    """A member's quarter of a block of rows from ``top`` on: its first row and number of rows."""
    top = tl.minimum(top + member * (BB // 4), B - 1)
    return top, tl.minimum(B - top, BB // 4)


@triton.jit
def folded(x):
    """[units, rows] -> [units, 16]: sums over the rows that one thread holds."""
    return tl.sum(tl.reshape(x, (x.shape[0], x.shape[1] // 16, 16)), 1)


@triton.jit
def start(initial, unit, H: tl.constexpr, LEARNED: tl.constexpr):
    """The initial state of ``unit``, [units, 1]."""
    if LEARNED:
        start = tl.load(initial + unit, unit < H, 0)[:, None]
    else:
        start = tl.zeros((unit.shape[0], 1), tl.float32)
    return start
