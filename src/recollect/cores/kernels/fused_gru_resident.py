"""The GRU of a whole unroll with the recurrent weights on the chip: up to 128 units.

A program owns BLOCK_B rows and goes through all steps; rows know nothing of each other, so that programs
never wait for each other. Weights are read once and stay in shared memory, the state stays in registers.
What passes by is read one step ahead.

Four blocks of H columns stand side by side wherever all parts of a step are stored, in the order m, r, z, n
of ``kernels.gru``: m = W_hn h + b_hn is the recurrent part of n.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl

from recollect.cores.kernels.fused_math import dot, factor, sigmoid, tanh


@triton.jit
def _square(
    w, TYPE: tl.constexpr, H: tl.constexpr, BLOCK_H: tl.constexpr, PRECISION: tl.constexpr, MATH: tl.constexpr
):
    """The transpose of one gate's weights [H, H], as a factor."""
    row, column = tl.arange(0, BLOCK_H)[:, None], tl.arange(0, BLOCK_H)[None, :]
    block = tl.load(w + column * H + row, (row < H) & (column < H), 0)
    return factor(block, TYPE, PRECISION, MATH)


@triton.jit(do_not_specialize=["T", "B"], do_not_specialize_on_alignment=["first"])
def forward(
    xg,  # [T, B, 3H] = x W_ih^T
    h,  # [B, H] the state before step 0
    w,  # [3H, H] = W_hh in float32
    b_ih,  # [3H]
    b_hh,  # [3H]
    first,  # [T, B] bytes
    initial,  # [H], with LEARNED
    y,  # [T, B, H]
    h_end,  # [B, H]
    kept,  # [T, B, 4H], with KEEP
    before,  # [T, B, H] what each step began with, with KEEP
    T,
    B,
    H: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    STAGES: tl.constexpr,
    LEARNED: tl.constexpr,
    KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
    MATH: tl.constexpr,
):
    """y and the state at the end; with KEEP also what ``backward`` needs."""
    row, unit = tl.arange(0, BLOCK_B), tl.arange(0, BLOCK_H)
    top, step = tl.program_id(0) * BLOCK_B, B.to(tl.int64)
    is_row, is_unit = row < B - top, unit < H
    is_here = is_row[:, None] & is_unit[None, :]
    one = row[:, None] * H + unit[None, :]
    three = row[:, None] * (3 * H) + unit[None, :]
    four = row[:, None] * (4 * H) + unit[None, :]
    TYPE = xg.dtype.element_ty

    w_r = _square(w, TYPE, H, BLOCK_H, PRECISION, MATH)
    w_z = _square(w + H * H, TYPE, H, BLOCK_H, PRECISION, MATH)
    w_n = _square(w + 2 * H * H, TYPE, H, BLOCK_H, PRECISION, MATH)
    b_r = (tl.load(b_ih + unit, is_unit, 0) + tl.load(b_hh + unit, is_unit, 0))[None, :]
    b_z = (tl.load(b_ih + H + unit, is_unit, 0) + tl.load(b_hh + H + unit, is_unit, 0))[None, :]
    b_n = tl.load(b_ih + 2 * H + unit, is_unit, 0)[None, :]
    b_m = tl.load(b_hh + 2 * H + unit, is_unit, 0)[None, :] + tl.zeros((BLOCK_B, BLOCK_H), tl.float32)
    start = tl.zeros((1, BLOCK_H), tl.float32)
    if LEARNED:
        start += tl.load(initial + unit, is_unit, 0)[None, :]

    opens = tl.load(first + top + row, is_row, 0)
    state = tl.load(h + top.to(tl.int64) * H + one, is_here, 0)
    state = tl.where((opens != 0)[:, None], start, state)
    for t in tl.range(0, T, num_stages=STAGES):
        at = t * step + top
        x_r = tl.load(xg + at * (3 * H) + three, is_here, 0)
        x_z = tl.load(xg + at * (3 * H) + H + three, is_here, 0)
        x_n = tl.load(xg + at * (3 * H) + 2 * H + three, is_here, 0)
        opens = tl.load(first + at + step + row, is_row & (t + 1 < T), 0)  # of the next step
        low = factor(state, TYPE, PRECISION, MATH)
        m = dot(low, w_n, b_m, PRECISION, MATH)
        r = sigmoid(dot(low, w_r, x_r.to(tl.float32) + b_r, PRECISION, MATH), MATH)
        z = sigmoid(dot(low, w_z, x_z.to(tl.float32) + b_z, PRECISION, MATH), MATH)
        n = tanh(x_n.to(tl.float32) + b_n + r * m, MATH)
        new = n + z * (state - n)
        tl.store(y + at * H + one, new, is_here)
        if KEEP:
            tl.store(before + at * H + one, state.to(TYPE), is_here)
            tl.store(kept + at * (4 * H) + four, m.to(TYPE), is_here)
            tl.store(kept + at * (4 * H) + H + four, r.to(TYPE), is_here)
            tl.store(kept + at * (4 * H) + 2 * H + four, z.to(TYPE), is_here)
            tl.store(kept + at * (4 * H) + 3 * H + four, n.to(TYPE), is_here)
        state = tl.where((opens != 0)[:, None], start, new)
    tl.store(h_end + top.to(tl.int64) * H + one, state, is_here)


@triton.jit(do_not_specialize=["T", "B"], do_not_specialize_on_alignment=["first"])
def backward(
    dy,  # [T, B, H], with HAS_DY
    dh_end,  # [B, H], with HAS_DH
    w,  # [3, H, H] each gate's block of W_hh in float32, transposed
    first,  # [T, B] bytes
    kept,  # [T, B, 4H]
    before,  # [T, B, H]
    d,  # [T, B, 4H] the gradients of m and of what goes into r, z, n
    dh,  # [B, H] the gradient of the state before step 0
    d_initial,  # [programs, H], with LEARNED
    d_bias,  # [programs, 4H] the sums of d
    T,
    B,
    H: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    STAGES: tl.constexpr,
    LEARNED: tl.constexpr,
    HAS_DY: tl.constexpr,
    HAS_DH: tl.constexpr,
    PRECISION: tl.constexpr,
    MATH: tl.constexpr,
):
    """The steps from the last to the first."""
    row, unit = tl.arange(0, BLOCK_B), tl.arange(0, BLOCK_H)
    top, step = tl.program_id(0) * BLOCK_B, B.to(tl.int64)
    is_row, is_unit = row < B - top, unit < H
    is_here = is_row[:, None] & is_unit[None, :]
    one = row[:, None] * H + unit[None, :]
    four = row[:, None] * (4 * H) + unit[None, :]
    TYPE = d.dtype.element_ty

    w_r = _square(w, TYPE, H, BLOCK_H, PRECISION, MATH)
    w_z = _square(w + H * H, TYPE, H, BLOCK_H, PRECISION, MATH)
    w_n = _square(w + 2 * H * H, TYPE, H, BLOCK_H, PRECISION, MATH)
    sum_m = tl.zeros((BLOCK_H,), tl.float32)
    sum_r = tl.zeros((BLOCK_H,), tl.float32)
    sum_z = tl.zeros((BLOCK_H,), tl.float32)
    sum_n = tl.zeros((BLOCK_H,), tl.float32)
    sum_start = tl.zeros((BLOCK_B, BLOCK_H), tl.float32)

    carried = tl.zeros((BLOCK_B, BLOCK_H), tl.float32)
    if HAS_DH:
        carried += tl.load(dh_end + top.to(tl.int64) * H + one, is_here, 0)
    for back in tl.range(0, T, num_stages=STAGES):
        at = (T - 1 - back) * step + top
        opens = tl.load(first + at + row, is_row, 0)
        m = tl.load(kept + at * (4 * H) + four, is_here, 0).to(tl.float32)
        r = tl.load(kept + at * (4 * H) + H + four, is_here, 0).to(tl.float32)
        z = tl.load(kept + at * (4 * H) + 2 * H + four, is_here, 0).to(tl.float32)
        n = tl.load(kept + at * (4 * H) + 3 * H + four, is_here, 0).to(tl.float32)
        state = tl.load(before + at * H + one, is_here, 0).to(tl.float32)
        if HAS_DY:
            carried += tl.load(dy + at * H + one, is_here, 0)
        # One product after the other, so that their left factors have the same place in shared memory.
        dn = carried * (1 - z) * (1 - n * n)
        dz = carried * (state - n) * z * (1 - z)
        carried *= z
        tl.store(d + at * (4 * H) + 2 * H + four, dz.to(TYPE), is_here)
        carried = dot(factor(dz, TYPE, PRECISION, MATH), w_z, carried, PRECISION, MATH)
        sum_z += tl.sum(dz, 0)
        tl.store(d + at * (4 * H) + 3 * H + four, dn.to(TYPE), is_here)
        sum_n += tl.sum(dn, 0)
        dm = dn * r
        tl.store(d + at * (4 * H) + four, dm.to(TYPE), is_here)
        carried = dot(factor(dm, TYPE, PRECISION, MATH), w_n, carried, PRECISION, MATH)
        sum_m += tl.sum(dm, 0)
        dr = dm * m * (1 - r)
        tl.store(d + at * (4 * H) + H + four, dr.to(TYPE), is_here)
        carried = dot(factor(dr, TYPE, PRECISION, MATH), w_r, carried, PRECISION, MATH)
        sum_r += tl.sum(dr, 0)
        is_open = (opens != 0)[:, None]
        if LEARNED:
            sum_start += tl.where(is_open, carried, 0)
        carried = tl.where(is_open, 0, carried)

    tl.store(dh + top.to(tl.int64) * H + one, carried, is_here)
    line = tl.program_id(0) * (4 * H) + unit
    tl.store(d_bias + line, sum_m, is_unit)
    tl.store(d_bias + H + line, sum_r, is_unit)
    tl.store(d_bias + 2 * H + line, sum_z, is_unit)
    tl.store(d_bias + 3 * H + line, sum_n, is_unit)
    if LEARNED:
        tl.store(d_initial + tl.program_id(0) * H + unit, tl.sum(sum_start, 0), is_unit)
