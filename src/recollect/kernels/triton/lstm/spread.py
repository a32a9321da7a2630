"""The LSTM of a whole unroll with the recurrent weights spread over processors: 129 to 256 units.

Weights of 256 units do not fit on one processor, those of 64 units do. So four programs, one per processor,
form a group; each member computes UNITS of the units and keeps their weights on the chip for all steps. After
every step the members exchange data through memory and synchronise (``barrier``). All programs of a launch
are on the GPU at once, which limits the number of groups; each takes blocks of BB rows one after the other.

Phases are numbered through all blocks, and two exchange buffers suffice: a member writes in phase k after
barrier k - 1, which all members reach after reading the buffer of phase k - 2.

Between arriving and waiting a member does the work that no other depends on: it stores its results and loads
the inputs of its next step; forwards, each member has prefetched a quarter of them into the cache. Sums and
carries are computed there (``materialise``). Without SYNC there are no barriers, for Triton's interpreter
(``tiling.groups``).

Blocks are [units, rows], as in ``resident``.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportAssignmentType=false

from __future__ import annotations

import triton
import triton.language as tl

from recollect.kernels.triton.barrier import arrive, wait
from recollect.kernels.triton.lstm import parts
from recollect.kernels.triton.math import divisor, dot, materialise, prefetch, sigmoid, tanh


@triton.jit(do_not_specialize=["T", "B", "slots"], do_not_specialize_on_alignment=["first"])
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
    exchange,  # [slots, groups, BB, HP] the input h of steps, as a factor
    counters,  # [groups, COUNTER_STRIDE] arrivals at barriers, initially zeros
    T,
    B,
    slots,
    WIDTH: tl.constexpr,
    H: tl.constexpr,
    HP: tl.constexpr,
    UNITS: tl.constexpr,
    BB: tl.constexpr,
    LEARNED: tl.constexpr,
    KEEP: tl.constexpr,
    SYNC: tl.constexpr,
    PRECISION: tl.constexpr,
    MATH: tl.constexpr,
):
    """y and the final state; with KEEP also the inputs of ``backward``."""
    member, group, groups = tl.program_id(0) % 4, tl.program_id(0) // 4, tl.num_programs(0) // 4
    row, every, unit = tl.arange(0, BB), tl.arange(0, HP), parts.own(member, UNITS)
    one = row[None, :] * H + unit[:, None]
    four = row[None, :] * (4 * H) + unit[:, None]
    wide = row[None, :] * WIDTH + unit[:, None]
    which, lines = parts.mixed(UNITS)
    lines += member * UNITS
    w_all = parts.weights(w + (which * (H * H))[:, None], lines[:, None], every[None, :], H, HP)
    h_start, c_start = parts.start(h0, unit, H, LEARNED), parts.start(c0, unit, H, LEARNED)
    step, phase = tl.cast(B, tl.int64), 0
    for block in tl.range(group, tl.cdiv(B, BB), groups, num_stages=1):
        top = tl.cast(block * BB, tl.int64)
        rows = B - block * BB
        is_row, inside = row < rows, parts.inside(row, unit, rows, H, HP)
        quarter, number = parts.quarter(block * BB, member, B, BB)
        is_open = (tl.load(first + top + row, is_row, 0) != 0)[None, :]
        low = h + top * H + row[None, :] * H + every[:, None]
        low = tl.load(low, parts.inside(row, every, rows, H, HP), 0)
        low = tl.where(is_open, parts.start(h0, every, H, LEARNED), low).to(w.dtype.element_ty)
        c_now = tl.load(c + top * H + one, inside, 0)
        if KEEP:
            tl.store(cells + top * H + one, c_now, inside)
            h_now = tl.where(is_open, h_start, tl.load(h + top * H + one, inside, 0))
            tl.store(h_in + top * WIDTH + wide, h_now.to(h_in.dtype.element_ty), inside)
        c_now = tl.where(is_open, c_start, c_now)
        x_i, x_f, x_g, x_o = parts.four(xg + top * (4 * H), four, inside, H)
        opens = tl.load(first + step + top + row, is_row & (T > 1), 0)  # of the next step
        for t in tl.range(0, T, num_stages=1):
            at, goes_on = t * step + top, t + 1 < T
            total = dot(w_all, low, tl.zeros((HP, BB), tl.float32), PRECISION, MATH)
            i, f, g, o = parts.parted_sums(total, x_i, x_f, x_g, x_o)
            i = sigmoid(i, MATH)
            f = sigmoid(f, MATH)
            g = tanh(g, MATH)
            o = sigmoid(o, MATH)
            c_now = f * c_now + i * g
            h_now = o * tanh(c_now, MATH)
            is_open = (opens != 0)[None, :]
            h_next = tl.where(is_open, h_start, h_now)
            slot = exchange + ((phase & (slots - 1)) * groups + group) * (BB * HP)
            if goes_on:
                tl.store(slot + row[None, :] * HP + unit[:, None], h_next.to(w.dtype.element_ty))
                if SYNC:
                    arrive(counters, group)

            ahead = tl.minimum(t + 1, T - 1) * step + top
            if KEEP:
                parts.store_four(gates + at * (4 * H) + four, i, f, g, o, inside, H)
            x_i, x_f, x_g, x_o = parts.four(xg + ahead * (4 * H), four, inside, H)
            opens = tl.load(first + ahead + step + row, is_row & (t + 2 < T), 0)
            there = tl.minimum(t + 2, T - 1) * step + quarter
            prefetch(xg + there * (4 * H), number, 4 * H, HP * BB, MATH)
            tl.store(y + at * H + one, h_now, inside)
            if KEEP:
                tl.store(cells + (at + step) * H + one, c_now, inside)
                h_next = h_next.to(h_in.dtype.element_ty)
                tl.store(h_in + (at + step) * WIDTH + wide, h_next, inside & goes_on)
            if goes_on:
                c_now = materialise(tl.where(is_open, c_start, c_now), MATH)
                phase += 1
                if SYNC:
                    wait(counters, group, 4 * phase)
                low = tl.load(slot + row[None, :] * HP + every[:, None], cache_modifier=".cg")
            else:
                tl.store(h_end + top * H + one, h_now, inside)
                tl.store(c_end + top * H + one, c_now, inside)


@triton.jit(do_not_specialize=["T", "B", "slots"], do_not_specialize_on_alignment=["first", "go"])
def backward(
    dy,  # [T, B, H]
    dh_end,  # [B, H]
    dc_end,  # [B, H]
    w,  # [4H, H] = W_hh
    first,  # [T, B] bytes
    c0,  # [H], with LEARNED
    gates,  # [T, B, 4H]
    cells,  # [T + 1, B, H]
    d,  # [T, B, 4H] the gradients of the gates before activation, with SCALED times ``gains``
    dh,  # [B, H] of the state before step 0
    dc,  # [B, H]
    dh0,  # [groups, H] of the initial state, with LEARNED
    dc0,  # [groups, H]
    d_bias,  # [groups, 4H] the sums of the gradients in d
    gains,  # [B] with SCALED
    go,  # [1] whether to do anything, with SCALED
    most,  # [B] the largest gradient of every row, initially 0, with SCALED
    exchange,  # [slots, groups, 4 (reader), 4 (reader - writer, mod 4), BB * UNITS] parts of dh
    counters,  # [groups, COUNTER_STRIDE] arrivals at barriers, initially zeros
    T,
    B,
    slots,
    H: tl.constexpr,
    HP: tl.constexpr,
    UNITS: tl.constexpr,
    BB: tl.constexpr,
    LEARNED: tl.constexpr,
    SCALED: tl.constexpr,
    SYNC: tl.constexpr,
    PRECISION: tl.constexpr,
    MATH: tl.constexpr,
):
    """Gradients, from the last step to the first. With SCALED every row is scaled to the range of float16,
    for the product of a step by its largest number, and for d by ``gains`` (``scaled_float16``).

    A member has the weights from all units to its own gates. With them it computes a part of the dh of all
    units, and sends the other members theirs.
    """
    if SCALED:  # noqa: SIM102 (without it there is no ``go`` to load)
        if tl.load(go) == 0:
            return
    member, group, groups = tl.program_id(0) % 4, tl.program_id(0) // 4, tl.num_programs(0) // 4
    row, unit = tl.arange(0, BB), parts.own(member, UNITS)
    one = row[None, :] * H + unit[:, None]
    four = row[None, :] * (4 * H) + unit[:, None]
    which, lines = parts.mixed(UNITS)
    column = tl.max_contiguous(tl.multiple_of((member + which) % 4 * UNITS + lines, 8), 8)
    gate, lines = tl.arange(0, HP) // UNITS, member * UNITS + tl.arange(0, HP) % UNITS
    w_all = parts.weights(w + (gate * (H * H))[None, :], lines[None, :], column[:, None], H, HP)
    c_start = parts.start(c0, unit, H, LEARNED)
    zeros = tl.zeros((UNITS, 16), tl.float32)
    sum_i, sum_f, sum_g, sum_o, h_sum, c_sum = zeros, zeros, zeros, zeros, zeros, zeros
    PART: tl.constexpr = BB * UNITS
    step, phase = tl.cast(B, tl.int64), 0
    for block in tl.range(group, tl.cdiv(B, BB), groups, num_stages=1):
        top = tl.cast(block * BB, tl.int64)
        rows = B - block * BB
        is_row, inside = row < rows, parts.inside(row, unit, rows, H, HP)
        last = (T - 1) * step + top
        h_carry = tl.load(dh_end + top * H + one, inside, 0)
        c_carry = tl.load(dc_end + top * H + one, inside, 0)
        c_now = tl.load(cells + (last + step) * H + one, inside, 0)
        c_before = tl.load(cells + last * H + one, inside, 0)
        dy_now = tl.load(dy + last * H + one, inside, 0)
        low_i, low_f, low_g, low_o = parts.four(gates + last * (4 * H), four, inside, H)
        opens = tl.load(first + last + row, is_row, 0)
        opened = tl.zeros_like(opens)  # in the step after this
        times = tl.full((1, BB), 1.0, tl.float32)
        peak = tl.zeros((1, BB), tl.float32)
        if SCALED:
            times = tl.load(gains + top + row, is_row, 1)[None, :]
        for back in tl.range(0, T, num_stages=1):
            at = (T - 1 - back) * step + top
            is_open = (opens != 0)[None, :]
            was_open = (opened != 0)[None, :]
            i, f = low_i.to(tl.float32), low_f.to(tl.float32)
            g, o = low_g.to(tl.float32), low_o.to(tl.float32)
            if LEARNED:
                # Combined with a loaded block first, it changes its layout between threads only once.
                h_carry = tl.where(is_row[None, :], h_carry, dy_now)
                h_sum += parts.folded(tl.where(was_open, h_carry, 0))
            h_carry = tl.where(was_open, dy_now, h_carry + dy_now)
            di, df, dg, do, c_carry = parts.gradients(
                h_carry, c_carry, i, f, g, o, c_now, c_before, c_start, is_open, MATH
            )
            scale = tl.full((1, BB), 1.0, tl.float32)
            unscale = scale
            if SCALED:
                largest = parts.largest(di, df, dg, do)[None, :]
                scale = divisor(largest)
                unscale = 1 / scale
                peak = tl.maximum(peak, tl.where(largest < float("inf"), largest, 0))
            low = parts.joined(di * unscale, df * unscale, dg * unscale, do * unscale, w.dtype.element_ty)
            total = dot(w_all, low, tl.zeros((HP, BB), tl.float32), PRECISION, MATH)
            h_own, h_1, h_2, h_3 = parts.apart(parts.beside(total * scale, UNITS, BB))
            slot = exchange + ((phase & (slots - 1)) * groups + group) * (16 * PART) + tl.arange(0, PART)
            tl.store(slot + ((member + 1) % 4 * 4 + 1) * PART, parts.flat(h_1))
            tl.store(slot + ((member + 2) % 4 * 4 + 2) * PART, parts.flat(h_2))
            tl.store(slot + ((member + 3) % 4 * 4 + 3) * PART, parts.flat(h_3))
            if SYNC:
                arrive(counters, group)

            to = d + at * (4 * H) + four
            parts.store_four(to, di * times, df * times, dg * times, do * times, inside, H)
            sum_i = materialise(sum_i + parts.folded(di), MATH)
            sum_f = materialise(sum_f + parts.folded(df), MATH)
            sum_g = materialise(sum_g + parts.folded(dg), MATH)
            sum_o = materialise(sum_o + parts.folded(do), MATH)
            c_carry *= f
            if LEARNED:
                c_sum = materialise(c_sum + parts.folded(tl.where(is_open, c_carry, 0)), MATH)
            c_carry = materialise(tl.where(is_open, 0, c_carry), MATH)
            c_now = c_before
            ahead = tl.maximum(T - 2 - back, 0) * step + top
            low_i, low_f, low_g, low_o = parts.four(gates + ahead * (4 * H), four, inside, H)
            c_before = tl.load(cells + ahead * H + one, inside, 0)
            opened = opens
            opens = tl.load(first + ahead + row, is_row, 0)
            phase += 1
            if SYNC:
                wait(counters, group, 4 * phase)
            received = slot + member * (4 * PART)
            h_1 = tl.load(received + PART, cache_modifier=".cg")
            h_2 = tl.load(received + 2 * PART, cache_modifier=".cg")
            h_3 = tl.load(received + 3 * PART, cache_modifier=".cg")
            # Last, so that the compiler keeps the layout of all loaded blocks, and only h_carry moves to it.
            dy_now = tl.load(dy + ahead * H + one, inside, 0)
            h_carry = parts.unflat(h_1 + h_2 + h_3 + parts.flat(h_own), UNITS, BB)
        was_open = (opened != 0)[None, :]
        if LEARNED:
            h_sum += parts.folded(tl.where(was_open, h_carry, 0))
        tl.store(dh + top * H + one, tl.where(was_open, 0, h_carry), inside)
        tl.store(dc + top * H + one, c_carry, inside)
        if SCALED:
            tl.atomic_max(most + top + row[None, :], peak, is_row[None, :])
    at = d_bias + group * (4 * H) + unit
    sum_i, sum_f, sum_g, sum_o = tl.sum(sum_i, 1), tl.sum(sum_f, 1), tl.sum(sum_g, 1), tl.sum(sum_o, 1)
    parts.store_four(at, sum_i, sum_f, sum_g, sum_o, unit < H, H)
    if LEARNED:
        tl.store(dh0 + group * H + unit, tl.sum(h_sum, 1), unit < H)
        tl.store(dc0 + group * H + unit, tl.sum(c_sum, 1), unit < H)
