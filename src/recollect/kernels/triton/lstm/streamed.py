"""The LSTM of a whole unroll with the recurrent weights streamed: any number of units.

A program computes all steps of BB rows. In every step it reads all recurrent weights from the L2 cache, which
all programs share. Units are computed in blocks of BN, products in blocks of depth BK; the blocks of a step
exchange data through memory, with a barrier between the program's threads.

Blocks are [units, rows], as in ``resident``.
"""

# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from recollect.kernels.triton.lstm import parts
from recollect.kernels.triton.math import dot, factor, sigmoid, tanh


@triton.jit
def _weights(w, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr):
    """A block of a matrix [ROWS, COLUMNS]; EVEN: the block sizes divide the matrix."""
    at = w + row[:, None] * COLUMNS + column[None, :]
    if EVEN:
        block = tl.load(at)
    else:
        block = tl.load(at, (row < ROWS)[:, None] & (column < COLUMNS)[None, :], 0)
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
    low,  # [2, B, H] scratch for h as a factor: the input of this step and of the next
    h_in,  # [T, B, WIDTH] of which H are written: the input h of each step, with KEEP
    gates,  # [T, B, 4H] i, f, g, o, with KEEP
    cells,  # [T + 1, B, H] c before step 0, then after each step; without KEEP [B, H], the latest
    T,
    B,
    WIDTH: tl.constexpr,
    H: tl.constexpr,
    BB: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    LEARNED: tl.constexpr,
    KEEP: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    MATH: tl.constexpr,
):
    """y and ``cells``; with KEEP also the other inputs of ``backward``."""
    row = tl.program_id(0) * BB + tl.arange(0, BB)
    is_row, step = row < B, tl.cast(B, tl.int64)
    EVEN: tl.constexpr = H % BN == 0 and H % BK == 0

    is_open = (tl.load(first + row, is_row, 0) != 0)[None, :]
    for n in range(0, H, BN):
        unit = n + tl.arange(0, BN)
        inside = (unit < H)[:, None] & is_row[None, :]
        one = row[None, :] * H + unit[:, None]
        h_now = tl.load(h + one, inside, 0)
        h_start = tl.zeros((BN, 1), tl.float32)
        if LEARNED:
            h_start += tl.load(h0 + unit, unit < H, 0)[:, None]
        h_now = tl.where(is_open, h_start, h_now)
        tl.store(low + one, h_now.to(low.dtype.element_ty), inside)
        tl.store(cells + one, tl.load(c + one, inside, 0), inside)
        if KEEP:
            tl.store(h_in + row[None, :] * WIDTH + unit[:, None], h_now.to(h_in.dtype.element_ty), inside)

    opens = tl.load(first + row, is_row, 0)
    for t in range(T):
        tl.debug_barrier()
        at = t * step
        source, target = low + (t % 2) * step * H, low + ((t + 1) % 2) * step * H
        before, after = cells, cells
        if KEEP:
            before, after = cells + at * H, cells + (at + step) * H
        is_open = (opens != 0)[None, :]
        opens = tl.load(first + at + step + row, is_row & (t + 1 < T), 0)
        for n in range(0, H, BN):
            unit = n + tl.arange(0, BN)
            inside = (unit < H)[:, None] & is_row[None, :]
            one = row[None, :] * H + unit[:, None]
            four = row[None, :] * (4 * H) + unit[:, None]
            x_i, x_f, x_g, x_o = parts.four(xg + at * (4 * H), four, inside, H)
            c_now = tl.load(before + one, inside, 0)
            zeros = tl.zeros((BN, BB), tl.float32)
            i, f, g, o = zeros, zeros, zeros, zeros
            for k in tl.range(0, H, BK, num_stages=STAGES):
                deep = k + tl.arange(0, BK)
                block = row[None, :] * H + deep[:, None]
                h_block = tl.load(source + block, (deep < H)[:, None] & is_row[None, :], 0)
                w_i = _weights(w, unit, deep, H, H, EVEN)
                w_f = _weights(w + H * H, unit, deep, H, H, EVEN)
                w_g = _weights(w + 2 * H * H, unit, deep, H, H, EVEN)
                w_o = _weights(w + 3 * H * H, unit, deep, H, H, EVEN)
                i = dot(w_i, h_block, i, PRECISION, MATH)
                f = dot(w_f, h_block, f, PRECISION, MATH)
                g = dot(w_g, h_block, g, PRECISION, MATH)
                o = dot(w_o, h_block, o, PRECISION, MATH)
            h_start = tl.zeros((BN, 1), tl.float32)
            c_start = tl.zeros((BN, 1), tl.float32)
            if LEARNED:
                h_start += tl.load(h0 + unit, unit < H, 0)[:, None]
                c_start += tl.load(c0 + unit, unit < H, 0)[:, None]
            i = sigmoid(i + x_i, MATH)
            f = sigmoid(f + x_f, MATH)
            g = tanh(g + x_g, MATH)
            o = sigmoid(o + x_o, MATH)
            c_now = f * tl.where(is_open, c_start, c_now) + i * g
            h_now = o * tanh(c_now, MATH)
            h_next = tl.where((opens != 0)[None, :], h_start, h_now)
            tl.store(after + one, c_now, inside)
            tl.store(y + at * H + one, h_now, inside)
            tl.store(target + one, h_next.to(low.dtype.element_ty), inside)
            if KEEP:
                parts.store_four(gates + at * (4 * H) + four, i, f, g, o, inside, H)
                wide = (at + step) * WIDTH + row[None, :] * WIDTH + unit[:, None]
                tl.store(h_in + wide, h_next.to(h_in.dtype.element_ty), inside & (t + 1 < T))


@triton.jit(do_not_specialize=["T", "B"], do_not_specialize_on_alignment=["first"])
def backward(
    dy,  # [T, B, H]
    w,  # [H, 4H] = W_hh^T
    first,  # [T, B] bytes
    c0,  # [H], with LEARNED
    gates,  # [T, B, 4H]
    cells,  # [T + 1, B, H]
    d,  # [T, B, 4H] the gradients of the gates before activation
    dh,  # [B, H] of the state: in: of the final state, out: of the state before step 0
    dc,  # [B, H]
    dh0,  # [B, H] of the initial state, initially zeros, with LEARNED
    dc0,  # [B, H]
    T,
    B,
    H: tl.constexpr,
    BB: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    LEARNED: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    MATH: tl.constexpr,
):
    """Gradients, from the last step to the first."""
    row = tl.program_id(0) * BB + tl.arange(0, BB)
    is_row, step = row < B, tl.cast(B, tl.int64)
    EVEN: tl.constexpr = H % BN == 0 and (4 * H) % BK == 0
    opens = tl.load(first + (T - 1) * step + row, is_row, 0)
    for back in range(T):
        at = (T - 1 - back) * step
        is_open = (opens != 0)[None, :]
        opens = tl.load(first + at - step + row, is_row & (back + 1 < T), 0)
        for n in range(0, H, BN):
            unit = n + tl.arange(0, BN)
            inside = (unit < H)[:, None] & is_row[None, :]
            one = row[None, :] * H + unit[:, None]
            four = row[None, :] * (4 * H) + unit[:, None]
            i, f, g, o = parts.four(gates + at * (4 * H), four, inside, H)
            i, f, g, o = i.to(tl.float32), f.to(tl.float32), g.to(tl.float32), o.to(tl.float32)
            out = tanh(tl.load(cells + (at + step) * H + one, inside, 0), MATH)
            c_before = tl.load(cells + at * H + one, inside, 0)
            h_carry = tl.load(dh + one, inside, 0) + tl.load(dy + at * H + one, inside, 0)
            c_carry = tl.load(dc + one, inside, 0) + h_carry * o * (1 - out * out)
            c_start = tl.zeros((BN, 1), tl.float32)
            if LEARNED:
                c_start += tl.load(c0 + unit, unit < H, 0)[:, None]
            di = c_carry * g * i * (1 - i)
            df = c_carry * tl.where(is_open, c_start, c_before) * f * (1 - f)
            dg = c_carry * i * (1 - g * g)
            do = h_carry * out * o * (1 - o)
            di = factor(di, d.dtype.element_ty, PRECISION, MATH)
            df = factor(df, d.dtype.element_ty, PRECISION, MATH)
            dg = factor(dg, d.dtype.element_ty, PRECISION, MATH)
            do = factor(do, d.dtype.element_ty, PRECISION, MATH)
            parts.store_four(d + at * (4 * H) + four, di, df, dg, do, inside, H)
            if LEARNED:
                c_sum = tl.load(dc0 + one, inside, 0)
                tl.store(dc0 + one, c_sum + tl.where(is_open, c_carry * f, 0), inside)
            tl.store(dc + one, tl.where(is_open, 0, c_carry * f), inside)
        tl.debug_barrier()
        for n in range(0, H, BN):
            unit = n + tl.arange(0, BN)
            inside = (unit < H)[:, None] & is_row[None, :]
            one = row[None, :] * H + unit[:, None]
            h_carry = tl.zeros((BN, BB), tl.float32)
            for k in tl.range(0, 4 * H, BK, num_stages=STAGES):
                deep = k + tl.arange(0, BK)
                block = row[None, :] * (4 * H) + deep[:, None]
                d_block = tl.load(d + at * (4 * H) + block, (deep < 4 * H)[:, None] & is_row[None, :], 0)
                w_block = _weights(w, unit, deep, H, 4 * H, EVEN)
                h_carry = dot(w_block, d_block, h_carry, PRECISION, MATH)
            if LEARNED:
                h_sum = tl.load(dh0 + one, inside, 0)
                tl.store(dh0 + one, h_sum + tl.where(is_open, h_carry, 0), inside)
            tl.store(dh + one, tl.where(is_open, 0, h_carry), inside)
        tl.debug_barrier()
