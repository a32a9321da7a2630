"""The LSTM of a whole unroll with the recurrent weights on the chip: up to 128 units.

A program computes all steps of BB rows; programs are independent. Weights are read once and stay in shared
memory, the state stays in registers.

Inputs of a step are loaded early: with AHEAD by the kernel, one step before, into registers; otherwise by the
compiler, with STAGES. Three stages hide the latency of memory; with fewer, inputs are prefetched into the
cache two steps before.

Blocks are [units, rows]: weights are the left factor of every product, so that few rows fill tensor cores.
"""

# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from recollect.kernels.triton.lstm import parts
from recollect.kernels.triton.math import divisor, dot, prefetch, sigmoid, tanh


@triton.jit
def _square(w, H: tl.constexpr, HP: tl.constexpr, TRANSPOSED: tl.constexpr):
    """One gate's weights [H, H], or their transpose, as a block."""
    row, column = tl.arange(0, HP)[:, None], tl.arange(0, HP)[None, :]
    if TRANSPOSED:
        block = parts.weights(w, column, row, H, HP)
    else:
        block = parts.weights(w, row, column, H, HP)
    return block


@triton.jit(do_not_specialize=["T", "B"], do_not_specialize_on_alignment=["first"])
def forward(
    xg,  # [T, B, 4H] = x W_ih^T + b
    h,  # [B, H] the state before step 0
    c,  # [B, H]
    w,  # [4H, H] = W_hh
    first,  # [T, B] bytes
    h0,  # [H], with LEARNED
    c0,  # [H], with LEARNED
    y,  # [T, B, H]
    h_end,  # [B, H]
    c_end,  # [B, H]
    h_in,  # [T, B, WIDTH] of which H are written: the input h of each step, with KEEP
    gates,  # [T, B, 4H] i, f, g, o, with KEEP
    cells,  # [T + 1, B, H] c before step 0, then after each step, with KEEP
    T,
    B,
    WIDTH: tl.constexpr,
    H: tl.constexpr,
    HP: tl.constexpr,
    BB: tl.constexpr,
    LEARNED: tl.constexpr,
    KEEP: tl.constexpr,
    AHEAD: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    MATH: tl.constexpr,
):
    """y and the final state; with KEEP also the inputs of ``backward``."""
    top = tl.program_id(0) * BB
    row, unit = top + tl.arange(0, BB), tl.arange(0, HP)
    is_row, inside = row < B, parts.inside(row, unit, B, H, HP)
    one = row[None, :] * H + unit[:, None]
    four = row[None, :] * (4 * H) + unit[:, None]
    wide = row[None, :] * WIDTH + unit[:, None]
    step = tl.cast(B, tl.int64)

    w_i = _square(w, H, HP, False)
    w_f = _square(w + H * H, H, HP, False)
    w_g = _square(w + 2 * H * H, H, HP, False)
    w_o = _square(w + 3 * H * H, H, HP, False)
    h_now = tl.load(h + one, inside, 0)
    c_now = tl.load(c + one, inside, 0)
    h_start = tl.zeros((HP, 1), tl.float32)
    c_start = tl.zeros((HP, 1), tl.float32)
    if LEARNED:
        h_start += tl.load(h0 + unit, unit < H, 0)[:, None]
        c_start += tl.load(c0 + unit, unit < H, 0)[:, None]
    if KEEP:
        tl.store(cells + one, c_now, inside)

    opens = tl.load(first + row, is_row, 0)
    x_i, x_f, x_g, x_o = parts.four(xg, four, inside, H)
    for t in tl.range(0, T, num_stages=STAGES):
        at = t * step
        if STAGES < 3:
            there = tl.minimum(t + 2, T - 1) * step + top
            prefetch(xg + there * (4 * H), tl.minimum(B - top, BB), 4 * H, 4 * HP * BB, MATH)
        if not AHEAD:
            x_i, x_f, x_g, x_o = parts.four(xg + at * (4 * H), four, inside, H)
        is_open = (opens != 0)[None, :]
        opens = tl.load(first + at + step + row, is_row & (t + 1 < T), 0)  # of the next step
        h_now = tl.where(is_open, h_start, h_now)
        c_now = tl.where(is_open, c_start, c_now)
        low = h_now.to(w.dtype.element_ty)
        if KEEP:
            tl.store(h_in + at * WIDTH + wide, h_now.to(h_in.dtype.element_ty), inside)
        i = sigmoid(dot(w_i, low, x_i.to(tl.float32), PRECISION, MATH), MATH)
        g = tanh(dot(w_g, low, x_g.to(tl.float32), PRECISION, MATH), MATH)
        f = sigmoid(dot(w_f, low, x_f.to(tl.float32), PRECISION, MATH), MATH)
        o = sigmoid(dot(w_o, low, x_o.to(tl.float32), PRECISION, MATH), MATH)
        if AHEAD:
            ahead = tl.minimum(t + 1, T - 1) * step
            x_i, x_f, x_g, x_o = parts.four(xg + ahead * (4 * H), four, inside, H)
        c_now = f * c_now + i * g
        h_now = o * tanh(c_now, MATH)
        tl.store(y + at * H + one, h_now, inside)
        if KEEP:
            parts.store_four(gates + at * (4 * H) + four, i, f, g, o, inside, H)
            tl.store(cells + (at + step) * H + one, c_now, inside)
    tl.store(h_end + one, h_now, inside)
    tl.store(c_end + one, c_now, inside)


@triton.jit(do_not_specialize=["T", "B"], do_not_specialize_on_alignment=["first"])
def backward(
    dy,  # [T, B, H]
    dh_end,  # [B, H]
    dc_end,  # [B, H]
    w,  # [4H, H] = W_hh
    first,  # [T, B] bytes
    c0,  # [H], with LEARNED
    gates,  # [T, B, 4H]
    cells,  # [T + 1, B, H]
    d,  # [T, B, 4H] the gradients of the gates before activation
    dh,  # [B, H] of the state before step 0
    dc,  # [B, H]
    dh0,  # [B, H] of the initial state, with LEARNED
    dc0,  # [B, H]
    d_bias,  # [programs, 4H] the sums of d
    T,
    B,
    H: tl.constexpr,
    HP: tl.constexpr,
    BB: tl.constexpr,
    LEARNED: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    SCALED: tl.constexpr,
    AHEAD: tl.constexpr,
    MATH: tl.constexpr,
):
    """Gradients, from the last step to the first. With SCALED every row is scaled to the range of float16."""
    top = tl.program_id(0) * BB
    row, unit = top + tl.arange(0, BB), tl.arange(0, HP)
    is_row, inside = row < B, parts.inside(row, unit, B, H, HP)
    one = row[None, :] * H + unit[:, None]
    four = row[None, :] * (4 * H) + unit[:, None]
    step = tl.cast(B, tl.int64)

    w_i = _square(w, H, HP, True)
    w_f = _square(w + H * H, H, HP, True)
    w_g = _square(w + 2 * H * H, H, HP, True)
    w_o = _square(w + 3 * H * H, H, HP, True)
    c_start = tl.zeros((HP, 1), tl.float32)
    zeros = tl.zeros((HP,), tl.float32)
    sum_i, sum_f, sum_g, sum_o = zeros, zeros, zeros, zeros
    h_sum = tl.zeros((HP, BB), tl.float32)
    c_sum = tl.zeros((HP, BB), tl.float32)
    if LEARNED:
        c_start += tl.load(c0 + unit, unit < H, 0)[:, None]
    h_carry = tl.load(dh_end + one, inside, 0)
    c_carry = tl.load(dc_end + one, inside, 0)

    last = (T - 1) * step
    c_now = tl.load(cells + (last + step) * H + one, inside, 0)
    opens = tl.load(first + last + row, is_row, 0)
    low_i, low_f, low_g, low_o = parts.four(gates + last * (4 * H), four, inside, H)
    c_before = tl.load(cells + last * H + one, inside, 0)
    dy_now = tl.load(dy + last * H + one, inside, 0)
    for back in tl.range(0, T, num_stages=STAGES):
        at = (T - 1 - back) * step
        if STAGES < 3:
            there, number = tl.maximum(T - 3 - back, 0) * step + top, tl.minimum(B - top, BB)
            prefetch(gates + there * (4 * H), number, 4 * H, 4 * HP * BB, MATH)
            prefetch(cells + there * H, number, H, HP * BB, MATH)
            prefetch(dy + there * H, number, H, HP * BB, MATH)
        if not AHEAD:
            low_i, low_f, low_g, low_o = parts.four(gates + at * (4 * H), four, inside, H)
            c_before = tl.load(cells + at * H + one, inside, 0)
            dy_now = tl.load(dy + at * H + one, inside, 0)
        i, f, g, o = low_i.to(tl.float32), low_f.to(tl.float32), low_g.to(tl.float32), low_o.to(tl.float32)
        # Loaded blocks are combined with a carry, the result of a product, first: so they change their layout
        # between threads once, through shared memory, and not again for 1 - i or as c_now of the next step.
        h_carry += dy_now
        c_next = c_before
        c_before = tl.where(is_row[None, :], c_before, h_carry)
        is_open = (opens != 0)[None, :]
        opens = tl.load(first + at - step + row, is_row & (back + 1 < T), 0)  # of the step before
        di, df, dg, do, c_carry = parts.gradients(
            h_carry, c_carry, i, f, g, o, c_now, c_before, c_start, is_open, MATH
        )
        c_carry *= f
        if AHEAD:
            ahead = tl.maximum(T - 2 - back, 0) * step
            low_i, low_f, low_g, low_o = parts.four(gates + ahead * (4 * H), four, inside, H)
            c_next = tl.load(cells + ahead * H + one, inside, 0)
            dy_now = tl.load(dy + ahead * H + one, inside, 0)
        parts.store_four(d + at * (4 * H) + four, di, df, dg, do, inside, H)
        sum_i += tl.sum(di, 1)
        sum_f += tl.sum(df, 1)
        sum_g += tl.sum(dg, 1)
        sum_o += tl.sum(do, 1)
        scale = tl.full((1, BB), 1.0, tl.float32)
        if SCALED:
            scale = divisor(parts.largest(di, df, dg, do))[None, :]
            unscale = 1 / scale
            di, df, dg, do = di * unscale, df * unscale, dg * unscale, do * unscale
        h_carry = tl.zeros((HP, BB), tl.float32)
        h_carry = dot(w_i, di.to(w.dtype.element_ty), h_carry, PRECISION, MATH)
        h_carry = dot(w_f, df.to(w.dtype.element_ty), h_carry, PRECISION, MATH)
        h_carry = dot(w_g, dg.to(w.dtype.element_ty), h_carry, PRECISION, MATH)
        h_carry = dot(w_o, do.to(w.dtype.element_ty), h_carry, PRECISION, MATH)
        if SCALED:
            h_carry *= scale
        if LEARNED:
            h_sum += tl.where(is_open, h_carry, 0)
            c_sum += tl.where(is_open, c_carry, 0)
        h_carry = tl.where(is_open, 0, h_carry)
        c_carry = tl.where(is_open, 0, c_carry)
        c_now = c_before
        c_before = c_next
    tl.store(dh + one, h_carry, inside)
    tl.store(dc + one, c_carry, inside)
    line = d_bias + tl.program_id(0) * (4 * H) + unit
    parts.store_four(line, sum_i, sum_f, sum_g, sum_o, unit < H, H)
    if LEARNED:
        tl.store(dh0 + one, h_sum, inside)
        tl.store(dc0 + one, c_sum, inside)
