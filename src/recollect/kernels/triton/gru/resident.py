"""The GRU of a whole unroll with the recurrent weights on the chip: up to 128 units.

A program computes all steps of BB rows; programs are independent. Weights are read once and stay in shared
memory, the state stays in registers.

Inputs of a step are loaded early: with AHEAD by the kernel, one step before, into registers; otherwise by the
compiler, with STAGES. Three stages hide the latency of memory; with fewer, inputs are prefetched into the
cache two steps before.
A loaded block is combined with the result of a product first: so it changes its layout between threads once,
through shared memory, and in its stored dtype.

Stored blocks of H columns are in the order m, r, z, n (``parts``).
"""

# pyright: reportMissingImports=false, reportAssignmentType=false

from __future__ import annotations

import triton
import triton.language as tl

from recollect.kernels.triton.gru import parts
from recollect.kernels.triton.math import dot, factor, prefetch, sigmoid, tanh


@triton.jit
def _square(
    w, TYPE: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, PRECISION: tl.constexpr, MATH: tl.constexpr
):
    """The transpose of one gate's weights [H, H], as a factor."""
    unit = tl.arange(0, HP)
    return parts.weights(w, unit[None, :], unit[:, None], TYPE, H, PRECISION, MATH)


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
    before,  # [T, B, H] the input state of each step, with KEEP
    T,
    B,
    H: tl.constexpr,
    BB: tl.constexpr,
    HP: tl.constexpr,
    STAGES: tl.constexpr,
    LEARNED: tl.constexpr,
    KEEP: tl.constexpr,
    AHEAD: tl.constexpr,
    HALF: tl.constexpr,
    PRECISION: tl.constexpr,
    MATH: tl.constexpr,
):
    """y and the final state; with KEEP also the inputs of ``backward``. With HALF factors are float16."""
    row, unit = tl.arange(0, BB), tl.arange(0, HP)
    top, step = tl.program_id(0) * BB, B.to(tl.int64)
    is_row, is_unit = row < B - top, unit < H
    is_here = is_row[:, None] & is_unit[None, :]
    one = row[:, None] * H + unit[None, :]
    three = row[:, None] * (3 * H) + unit[None, :]
    four = row[:, None] * (4 * H) + unit[None, :]
    TYPE: tl.constexpr = tl.float16 if HALF else xg.dtype.element_ty

    w_r = _square(w, TYPE, H, HP, PRECISION, MATH)
    w_z = _square(w + H * H, TYPE, H, HP, PRECISION, MATH)
    w_n = _square(w + 2 * H * H, TYPE, H, HP, PRECISION, MATH)
    b_r, b_z, b_n, b_m = parts.biases(b_ih, b_hh, unit, is_unit, H)
    start = tl.zeros((1, HP), tl.float32)
    if LEARNED:
        start += tl.load(initial + unit, is_unit, 0)[None, :]

    opens = tl.load(first + top + row, is_row, 0)
    state = tl.load(h + top.to(tl.int64) * H + one, is_here, 0)
    state = tl.where((opens != 0)[:, None], start, state)
    x_r, x_z, x_n = parts.three(xg + top.to(tl.int64) * (3 * H), three, is_here, H)
    for t in tl.range(0, T, num_stages=STAGES):
        at = t * step + top
        if STAGES < 3:
            there = tl.minimum(t + 2, T - 1) * step + top
            prefetch(xg + there * (3 * H), tl.minimum(B - top, BB), 3 * H, 4 * HP * BB, MATH)
        if not AHEAD:
            x_r, x_z, x_n = parts.three(xg + at * (3 * H), three, is_here, H)
        opens = tl.load(first + at + step + row, is_row & (t + 1 < T), 0)  # of the next step
        low = factor(state, TYPE, PRECISION, MATH)
        m = dot(low, w_n, tl.zeros((BB, HP), tl.float32), PRECISION, MATH) + b_m
        r = sigmoid(dot(low, w_r, x_r.to(tl.float32), PRECISION, MATH) + b_r, MATH)
        z = sigmoid(dot(low, w_z, x_z.to(tl.float32), PRECISION, MATH) + b_z, MATH)
        n = tanh(r * m + x_n.to(tl.float32) + b_n, MATH)
        if AHEAD:
            ahead = tl.minimum(t + 1, T - 1) * step + top
            x_r, x_z, x_n = parts.three(xg + ahead * (3 * H), three, is_here, H)
        new = n + z * (state - n)
        tl.store(y + at * H + one, new, is_here)
        if KEEP:
            tl.store(before + at * H + one, state.to(before.dtype.element_ty), is_here)
            parts.store_four(kept + at * (4 * H), four, m, r, z, n, is_here, H)
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
    d,  # [T, B, 4H] the gradients of m and of r, z, n before activation
    dh,  # [B, H] the gradient of the state before step 0
    d_initial,  # [programs, H], with LEARNED
    d_bias,  # [programs, 4H] the sums of d
    T,
    B,
    H: tl.constexpr,
    BB: tl.constexpr,
    HP: tl.constexpr,
    STAGES: tl.constexpr,
    LEARNED: tl.constexpr,
    HAS_DY: tl.constexpr,
    HAS_DH: tl.constexpr,
    AHEAD: tl.constexpr,
    HALF: tl.constexpr,
    PRECISION: tl.constexpr,
    MATH: tl.constexpr,
):
    """Gradients, from the last step to the first. With HALF factors are float16, each row scaled to fit."""
    row, unit = tl.arange(0, BB), tl.arange(0, HP)
    top, step = tl.program_id(0) * BB, B.to(tl.int64)
    is_row, is_unit = row < B - top, unit < H
    is_here = is_row[:, None] & is_unit[None, :]
    one = row[:, None] * H + unit[None, :]
    four = row[:, None] * (4 * H) + unit[None, :]
    TYPE: tl.constexpr = tl.float16 if HALF else d.dtype.element_ty
    STORED: tl.constexpr = d.dtype.element_ty

    w_r = _square(w, TYPE, H, HP, PRECISION, MATH)
    w_z = _square(w + H * H, TYPE, H, HP, PRECISION, MATH)
    w_n = _square(w + 2 * H * H, TYPE, H, HP, PRECISION, MATH)
    zeros = tl.zeros((HP,), tl.float32)
    sum_m, sum_r, sum_z, sum_n = zeros, zeros, zeros, zeros
    sum_start = tl.zeros((BB, HP), tl.float32)

    carried = tl.zeros((BB, HP), tl.float32)
    if HAS_DH:
        carried += tl.load(dh_end + top.to(tl.int64) * H + one, is_here, 0)
    last = (T - 1) * step + top
    low_m, low_r, low_z, low_n, low_state, dy_now = parts.step(
        kept, before, dy, last, four, one, is_here, H, HAS_DY
    )
    for back in tl.range(0, T, num_stages=STAGES):
        at = (T - 1 - back) * step + top
        if STAGES < 3:
            there, number = tl.maximum(T - 3 - back, 0) * step + top, tl.minimum(B - top, BB)
            prefetch(kept + there * (4 * H), number, 4 * H, 4 * HP * BB, MATH)
            prefetch(before + there * H, number, H, HP * BB, MATH)
            if HAS_DY:
                prefetch(dy + there * H, number, H, HP * BB, MATH)
        if not AHEAD:
            low_m, low_r, low_z, low_n, low_state, dy_now = parts.step(
                kept, before, dy, at, four, one, is_here, H, HAS_DY
            )
        opens = tl.load(first + at + row, is_row, 0)
        m, r = low_m.to(tl.float32), low_r.to(tl.float32)
        z, n, state = low_z.to(tl.float32), low_n.to(tl.float32), low_state.to(tl.float32)
        carried += dy_now
        scale, unscale = parts.scales(carried, HALF)
        dm, dr, dz, dn, carried = parts.gradients(carried, m, r, z, n, state)
        if AHEAD:
            ahead = tl.maximum(T - 2 - back, 0) * step + top
            low_m, low_r, low_z, low_n, low_state, dy_now = parts.step(
                kept, before, dy, ahead, four, one, is_here, H, HAS_DY
            )
        # One product after the other, so that their left factors share one place in shared memory.
        now = d + at * (4 * H) + four
        tl.store(now + 3 * H, dn.to(STORED), is_here)
        sum_n += tl.sum(dn, 0)
        tl.store(now + 2 * H, dz.to(STORED), is_here)
        sum_z += tl.sum(dz, 0)
        if HALF:
            carried *= unscale
        carried = dot(factor(dz * unscale, TYPE, PRECISION, MATH), w_z, carried, PRECISION, MATH)
        tl.store(now, dm.to(STORED), is_here)
        sum_m += tl.sum(dm, 0)
        carried = dot(factor(dm * unscale, TYPE, PRECISION, MATH), w_n, carried, PRECISION, MATH)
        tl.store(now + H, dr.to(STORED), is_here)
        sum_r += tl.sum(dr, 0)
        carried = dot(factor(dr * unscale, TYPE, PRECISION, MATH), w_r, carried, PRECISION, MATH)
        if HALF:
            carried *= scale
        is_open = (opens != 0)[:, None]
        if LEARNED:
            sum_start += tl.where(is_open, carried, 0)
        carried = tl.where(is_open, 0, carried)

    tl.store(dh + top.to(tl.int64) * H + one, carried, is_here)
    line = tl.program_id(0) * (4 * H) + unit
    parts.store_four(d_bias, line, sum_m, sum_r, sum_z, sum_n, is_unit, H)
    if LEARNED:
        tl.store(d_initial + tl.program_id(0) * H + unit, tl.sum(sum_start, 0), is_unit)
