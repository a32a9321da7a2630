"""The GRU of a whole unroll with recurrent weights that do not fit on the chip: any number of units.

As in ``fused_gru_resident`` a program owns BLOCK_B rows and goes through all steps. Here it computes BLOCK_N
units at a time, for which it reads the weights anew at every step, BLOCK_K rows of them at a time: they come
from the cache of level 2. The state goes through memory; a barrier stands between the threads that write
it and those that read it.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl

from recollect.kernels.triton.math import dot, factor, sigmoid, tanh, within


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
    h_end,  # [B, H], on the way the state between steps
    kept,  # [T, B, 4H], with KEEP
    before,  # [T, B, H] what each step began with; without KEEP [2, B, H], in turn
    T,
    B,
    H: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    LEARNED: tl.constexpr,
    KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
    MATH: tl.constexpr,
):
    """y and the state at the end; with KEEP also what ``backward`` needs."""
    row, column, depth = tl.arange(0, BLOCK_B)[:, None], tl.arange(0, BLOCK_N)[None, :], tl.arange(0, BLOCK_K)
    top, step = tl.program_id(0) * BLOCK_B, B.to(tl.int64)
    is_row = row < B - top
    home = top.to(tl.int64) * H
    TYPE = w.dtype.element_ty
    KEPT: tl.constexpr = kept.dtype.element_ty

    opens = tl.load(first + top + row, is_row, 0) != 0
    for j in range(0, H, BLOCK_N):
        unit = j + column
        is_here = is_row & (unit < H)
        start = tl.zeros((1, BLOCK_N), tl.float32)
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
        for j in range(0, H, BLOCK_N):
            unit = j + column
            is_here = is_row & (unit < H)
            m = tl.zeros((BLOCK_B, BLOCK_N), tl.float32)
            r = tl.zeros((BLOCK_B, BLOCK_N), tl.float32)
            z = tl.zeros((BLOCK_B, BLOCK_N), tl.float32)
            for k in tl.range(0, H, BLOCK_K, num_stages=STAGES):
                across, down = (k + depth)[None, :], (k + depth)[:, None]
                low = tl.load(before + now * H + row * H + across, is_row & (across < H), 0)
                block, is_weight = w + unit * H + down, (unit < H) & (down < H)
                r = dot(low, tl.load(block, is_weight, 0), r, PRECISION, MATH)
                z = dot(low, tl.load(block + H * H, is_weight, 0), z, PRECISION, MATH)
                m = dot(low, tl.load(block + 2 * H * H, is_weight, 0), m, PRECISION, MATH)
            gates = xg + at * (3 * H) + row * (3 * H) + unit
            x_r = tl.load(gates, is_here, 0).to(tl.float32)
            x_z = tl.load(gates + H, is_here, 0).to(tl.float32)
            x_n = tl.load(gates + 2 * H, is_here, 0).to(tl.float32)
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
                parts = kept + at * (4 * H) + row * (4 * H) + unit
                tl.store(parts, within(m, KEPT), is_here)
                tl.store(parts + H, r.to(KEPT), is_here)
                tl.store(parts + 2 * H, z.to(KEPT), is_here)
                tl.store(parts + 3 * H, n.to(KEPT), is_here)
            start = tl.zeros((1, BLOCK_N), tl.float32)
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
    d,  # [T, B, 4H] the gradients of m and of what goes into r, z, n
    dh,  # [B, H] the gradient of the state before step 0, on the way that between steps
    d_initial,  # [B, H] zeros, with LEARNED
    T,
    B,
    H: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    LEARNED: tl.constexpr,
    HAS_DY: tl.constexpr,
    HAS_DH: tl.constexpr,
    PRECISION: tl.constexpr,
    MATH: tl.constexpr,
):
    """The steps from the last to the first."""
    row, column, depth = tl.arange(0, BLOCK_B)[:, None], tl.arange(0, BLOCK_N)[None, :], tl.arange(0, BLOCK_K)
    top, step = tl.program_id(0) * BLOCK_B, B.to(tl.int64)
    is_row = row < B - top
    home = top.to(tl.int64) * H
    TYPE = w.dtype.element_ty

    for back in range(T):
        at = (T - 1 - back) * step + top
        opens = tl.load(first + at + row, is_row, 0) != 0
        for j in range(0, H, BLOCK_N):
            unit = j + column
            is_here = is_row & (unit < H)
            parts = kept + at * (4 * H) + row * (4 * H) + unit
            m = tl.load(parts, is_here, 0).to(tl.float32)
            r = tl.load(parts + H, is_here, 0).to(tl.float32)
            z = tl.load(parts + 2 * H, is_here, 0).to(tl.float32)
            n = tl.load(parts + 3 * H, is_here, 0).to(tl.float32)
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
            parts = d + at * (4 * H) + row * (4 * H) + unit
            tl.store(parts, factor(dm, TYPE, PRECISION, MATH), is_here)
            tl.store(parts + H, factor(dr, TYPE, PRECISION, MATH), is_here)
            tl.store(parts + 2 * H, factor(dz, TYPE, PRECISION, MATH), is_here)
            tl.store(parts + 3 * H, dn.to(TYPE), is_here)
        tl.debug_barrier()
        for j in range(0, H, BLOCK_N):
            unit = j + column
            is_here = is_row & (unit < H)
            carried = tl.zeros((BLOCK_B, BLOCK_N), tl.float32)
            for k in tl.range(0, 3 * H, BLOCK_K, num_stages=STAGES):
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
