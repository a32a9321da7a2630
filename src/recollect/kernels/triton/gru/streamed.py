"""The GRU of a whole unroll with recurrent weights that do not fit on the chip: any number of units.

A program computes all steps of BB rows, as in ``resident``. It computes BN units at a time and reads their
weights at every step from the L2 cache, BK rows at a time. The state is passed through memory, with a barrier
between the threads that write and those that read it.
"""

# pyright: reportMissingImports=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from recollect.kernels.triton.gru import parts
from recollect.kernels.triton.math import dot, factor, sigmoid, tanh


@triton.jit(do_not_specialize=["T", "B"], do_not_specialize_on_alignment=["first"])
def forward(
    xg,  # [T, B, 3H] = x W_ih^T
    h,  # [B, H] the state before step 0
    w,  # [3H, H] = W_hh
    b_ih,  # [3H]
    b_hh,  # [3H]
    first,  # [T, B] bytes
    initial,  # [H], with LEARNED
    y,  # [T, B, H]
    h_end,  # [B, H] the state between steps, and at the end
    kept,  # [T, B, 4H], with KEEP
    before,  # [T, B, H] the input state of each step; without KEEP [2, B, H], alternating
    T,
    B,
    H: tl.constexpr,
    BB: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
    LEARNED: tl.constexpr,
    KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
    MATH: tl.constexpr,
):
    """y and the final state; with KEEP also the inputs of ``backward``."""
    row, column, depth = tl.arange(0, BB)[:, None], tl.arange(0, BN)[None, :], tl.arange(0, BK)
    top, step = tl.program_id(0) * BB, B.to(tl.int64)
    is_row = row < B - top
    home = top.to(tl.int64) * H
    TYPE = w.dtype.element_ty

    opens = tl.load(first + top + row, is_row, 0) != 0
    for j in range(0, H, BN):
        unit = j + column
        is_here = is_row & (unit < H)
        start = tl.zeros((1, BN), tl.float32)
        if LEARNED:
            start += tl.load(initial + unit, unit < H, 0)
        state = tl.load(h + home + row * H + unit, is_here, 0)
        state = tl.where(opens, start, state)
        tl.store(h_end + home + row * H + unit, state, is_here)
        tl.store(before + home + row * H + unit, factor(state, TYPE, PRECISION, MATH), is_here)
    tl.debug_barrier()

    for t in range(T):
        at = t * step + top
        now, later = at, at + step
        if not KEEP:
            now, later = (t % 2) * step + top, (1 - t % 2) * step + top
        opens = tl.load(first + at + step + row, is_row & (t + 1 < T), 0) != 0  # at the next step
        for j in range(0, H, BN):
            unit = j + column
            is_here = is_row & (unit < H)
            zeros = tl.zeros((BB, BN), tl.float32)
            m, r, z = zeros, zeros, zeros
            for k in tl.range(0, H, BK, num_stages=STAGES):
                across, down = (k + depth)[None, :], (k + depth)[:, None]
                low = tl.load(before + now * H + row * H + across, is_row & (across < H), 0)
                block, is_weight = w + unit * H + down, (unit < H) & (down < H)
                r = dot(low, tl.load(block, is_weight, 0), r, PRECISION, MATH)
                z = dot(low, tl.load(block + H * H, is_weight, 0), z, PRECISION, MATH)
                m = dot(low, tl.load(block + 2 * H * H, is_weight, 0), m, PRECISION, MATH)
            x_r, x_z, x_n = parts.three(xg + at * (3 * H), row * (3 * H) + unit, is_here, H)
            x_r, x_z, x_n = x_r.to(tl.float32), x_z.to(tl.float32), x_n.to(tl.float32)
            state = tl.load(h_end + home + row * H + unit, is_here, 0)
            is_unit = unit < H
            r += x_r + tl.load(b_ih + unit, is_unit, 0) + tl.load(b_hh + unit, is_unit, 0)
            z += x_z + tl.load(b_ih + H + unit, is_unit, 0) + tl.load(b_hh + H + unit, is_unit, 0)
            m += tl.load(b_hh + 2 * H + unit, is_unit, 0)
            r, z = sigmoid(r, MATH), sigmoid(z, MATH)
            n = tanh(x_n + tl.load(b_ih + 2 * H + unit, is_unit, 0) + r * m, MATH)
            new = n + z * (state - n)
            tl.store(y + at * H + row * H + unit, new, is_here)
            if KEEP:
                parts.store_four(kept + at * (4 * H), row * (4 * H) + unit, m, r, z, n, is_here, H)
            start = tl.zeros((1, BN), tl.float32)
            if LEARNED:
                start += tl.load(initial + unit, unit < H, 0)
            new = tl.where(opens, start, new)
            tl.store(h_end + home + row * H + unit, new, is_here)
            low = factor(new, TYPE, PRECISION, MATH)
            tl.store(before + later * H + row * H + unit, low, is_here & (t + 1 < T))
        tl.debug_barrier()


@triton.jit(do_not_specialize=["T", "B"], do_not_specialize_on_alignment=["first"])
def backward(
    dy,  # [T, B, H], with HAS_DY
    dh_end,  # [B, H], with HAS_DH
    w,  # [H, 3H] the transpose of W_hh, its gates in the order n, r, z: that of m, r, z
    first,  # [T, B] bytes
    kept,  # [T, B, 4H]
    before,  # [T, B, H]
    d,  # [T, B, 4H] the gradients of m and of r, z, n before activation
    dh,  # [B, H] the gradient of the state between steps, and before step 0
    d_initial,  # [B, H] zeros, with LEARNED
    T,
    B,
    H: tl.constexpr,
    BB: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
    LEARNED: tl.constexpr,
    HAS_DY: tl.constexpr,
    HAS_DH: tl.constexpr,
    PRECISION: tl.constexpr,
    MATH: tl.constexpr,
):
    """Gradients, from the last step to the first."""
    row, column, depth = tl.arange(0, BB)[:, None], tl.arange(0, BN)[None, :], tl.arange(0, BK)
    top, step = tl.program_id(0) * BB, B.to(tl.int64)
    is_row = row < B - top
    home = top.to(tl.int64) * H
    TYPE = w.dtype.element_ty

    for back in range(T):
        at = (T - 1 - back) * step + top
        opens = tl.load(first + at + row, is_row, 0) != 0
        for j in range(0, H, BN):
            unit = j + column
            is_here = is_row & (unit < H)
            four = row * (4 * H) + unit
            m, r, z, n = parts.four(kept + at * (4 * H), four, is_here, H)
            m, r, z, n = m.to(tl.float32), r.to(tl.float32), z.to(tl.float32), n.to(tl.float32)
            state = tl.load(before + at * H + row * H + unit, is_here, 0).to(tl.float32)
            carried = tl.load(dh + home + row * H + unit, is_here & (back > 0), 0)
            if HAS_DH:
                carried += tl.load(dh_end + home + row * H + unit, is_here & (back == 0), 0)
            if HAS_DY:
                carried += tl.load(dy + at * H + row * H + unit, is_here, 0)
            dn = carried * (1 - z) * (1 - n * n)
            dz = carried * (state - n) * z * (1 - z)
            dm = dn * r
            dr = dm * m * (1 - r)
            tl.store(dh + home + row * H + unit, carried * z, is_here)
            dm = factor(dm, TYPE, PRECISION, MATH)
            dr = factor(dr, TYPE, PRECISION, MATH)
            dz = factor(dz, TYPE, PRECISION, MATH)
            parts.store_four(d + at * (4 * H), four, dm, dr, dz, dn, is_here, H)
        tl.debug_barrier()
        for j in range(0, H, BN):
            unit = j + column
            is_here = is_row & (unit < H)
            carried = tl.zeros((BB, BN), tl.float32)
            for k in tl.range(0, 3 * H, BK, num_stages=STAGES):
                across, down = (k + depth)[None, :], (k + depth)[:, None]
                low = tl.load(d + at * (4 * H) + row * (4 * H) + across, is_row & (across < 3 * H), 0)
                block = tl.load(w + unit * (3 * H) + down, (unit < H) & (down < 3 * H), 0)
                carried = dot(low, block, carried, PRECISION, MATH)
            carried += tl.load(dh + home + row * H + unit, is_here, 0)
            if LEARNED:
                start = d_initial + home + row * H + unit
                tl.store(start, tl.load(start, is_here, 0) + tl.where(opens, carried, 0), is_here)
            tl.store(dh + home + row * H + unit, tl.where(opens, 0, carried), is_here)
        tl.debug_barrier()
