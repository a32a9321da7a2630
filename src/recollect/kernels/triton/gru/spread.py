"""The GRU of a whole unroll with the recurrent weights spread over processors: 129 to 256 units.

The weights of so many units do not fit on one processor, but on a few. A group of programs, each on a
processor of its own, owns BLOCK_B rows; a member of it owns UNITS of the units and keeps their part of the
weights in shared memory for all steps. After every step the members meet (``fused_meeting``) and exchange, by
memory that stays in the cache of level 2, what they need of each other: forwards the new state as a factor,
backwards what the own gates add to the gradient of everybody's state. Meeting k uses place k % slots. Two
places suffice: who writes to one of them has met all others since they read from it. Groups take blocks of
rows in turn, so that weights are read once.

Between arriving and waiting a member stores what is not for the others and, with AHEAD, asks for what its
next step reads. Without MEETS nobody waits: for Triton's interpreter, see ``fused_blocks.groups``.

Blocks of H columns are in the order m, r, z, n, as in ``fused_gru_resident``. Units beyond H are 0.
"""

# pyright: reportMissingImports=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from recollect.kernels.triton.barrier import arrive, wait
from recollect.kernels.triton.gru import parts as parts
from recollect.kernels.triton.math import dot, factor, sigmoid, tanh


@triton.jit
def _alone(a, b, PRECISION: tl.constexpr, MATH: tl.constexpr):
    """a [M, K] @ b [K, N], of which the compiler does not see that its sum could go on from another's.

    In a chain of products of 64 rows it would have half of the warps do what the others do.
    """
    product = dot(a, b, tl.zeros((a.shape[0], b.shape[1]), tl.float32), PRECISION, MATH)
    if MATH != "plain":
        product = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [product], tl.float32, True, 1)
    return product


@triton.jit
def _add_four(a, b, c, d, e, f, g, h):
    """The sums of four pairs."""
    return a + e, b + f, c + g, d + h


@triton.jit
def _sums(m, r, z, n, MATH: tl.constexpr):
    """The sums over rows, of all four with as many barriers as of one; the interpreter is slow with that."""
    if MATH == "plain":
        m, r, z, n = tl.sum(m, 0), tl.sum(r, 0), tl.sum(z, 0), tl.sum(n, 0)
    else:
        m, r, z, n = tl.reduce((m, r, z, n), 0, _add_four)
    return m, r, z, n


@triton.jit(do_not_specialize=["slots", "T", "B"], do_not_specialize_on_alignment=["first"])
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
    exchange,  # [slots, groups, BLOCK_B, BLOCK_H] states, as factors
    counters,  # [groups, APART] zeros
    slots,
    T,
    B,
    H: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    UNITS: tl.constexpr,
    LEARNED: tl.constexpr,
    KEEP: tl.constexpr,
    AHEAD: tl.constexpr,
    HALF: tl.constexpr,
    MEETS: tl.constexpr,
    PRECISION: tl.constexpr,
    MATH: tl.constexpr,
):
    """y and the state at the end; with KEEP also what ``backward`` needs. With HALF factors are float16."""
    MEMBERS: tl.constexpr = BLOCK_H // UNITS
    member, group = tl.program_id(0) % MEMBERS, tl.program_id(0) // MEMBERS
    row, every, own = tl.arange(0, BLOCK_B), tl.arange(0, BLOCK_H), tl.arange(0, UNITS)
    unit, step = member * UNITS + own, B.to(tl.int64)
    is_unit = unit < H
    one = row[:, None] * H + unit[None, :]
    three = row[:, None] * (3 * H) + unit[None, :]
    four = row[:, None] * (4 * H) + unit[None, :]
    all_of = row[:, None] * BLOCK_H + every[None, :]
    mine_of = row[:, None] * BLOCK_H + unit[None, :]
    TYPE: tl.constexpr = tl.float16 if HALF else xg.dtype.element_ty

    w_r = parts.weights(w, unit[None, :], every[:, None], TYPE, H, PRECISION, MATH)
    w_z = parts.weights(w + H * H, unit[None, :], every[:, None], TYPE, H, PRECISION, MATH)
    w_n = parts.weights(w + 2 * H * H, unit[None, :], every[:, None], TYPE, H, PRECISION, MATH)
    b_r = (tl.load(b_ih + unit, is_unit, 0) + tl.load(b_hh + unit, is_unit, 0))[None, :]
    b_z = (tl.load(b_ih + H + unit, is_unit, 0) + tl.load(b_hh + H + unit, is_unit, 0))[None, :]
    b_n = tl.load(b_ih + 2 * H + unit, is_unit, 0)[None, :]
    b_m = tl.load(b_hh + 2 * H + unit, is_unit, 0)[None, :]
    start = tl.zeros((1, UNITS), tl.float32)
    if LEARNED:
        start += tl.load(initial + unit, is_unit, 0)[None, :]

    groups, met = tl.num_programs(0) // MEMBERS, 0
    for top in range(group * BLOCK_B, B, groups * BLOCK_B):
        is_row = row < B - top
        is_here = is_row[:, None] & is_unit[None, :]
        home = 0 * step + top
        is_open = (tl.load(first + top + row, is_row, 0) != 0)[:, None]
        state = tl.where(is_open, start, tl.load(h + home * H + one, is_here, 0))
        whole = tl.load(h + home * H + row[:, None] * H + every, is_row[:, None] & (every < H)[None, :], 0)
        if LEARNED:
            whole = tl.where(is_open, tl.load(initial + every, every < H, 0)[None, :], whole)
        else:
            whole = tl.where(is_open, 0.0, whole)
        low = factor(whole, TYPE, PRECISION, MATH)
        x_r, x_z, x_n = parts.three(xg + home * (3 * H), three, is_here, H)
        opens = tl.load(first + step + top + row, is_row & (T > 1), 0)  # of the next step
        for t in range(T):
            at = t * step + top
            if not AHEAD:
                x_r, x_z, x_n = parts.three(xg + at * (3 * H), three, is_here, H)
                opens = tl.load(first + at + step + row, is_row & (t + 1 < T), 0)
            m = dot(low, w_n, tl.zeros((BLOCK_B, UNITS), tl.float32), PRECISION, MATH) + b_m
            r = sigmoid(dot(low, w_r, x_r.to(tl.float32), PRECISION, MATH) + b_r, MATH)
            z = sigmoid(dot(low, w_z, x_z.to(tl.float32), PRECISION, MATH) + b_z, MATH)
            n = tanh(r * m + x_n.to(tl.float32) + b_n, MATH)
            new = n + z * (state - n)
            old, state = state, tl.where((opens != 0)[:, None], start, new)
            slot = exchange + (met % slots * groups + group) * (BLOCK_B * BLOCK_H)
            if t + 1 < T:
                tl.store(slot + mine_of, factor(state, TYPE, PRECISION, MATH))
                if MEETS:
                    arrive(counters, group)
            tl.store(y + at * H + one, new, is_here)
            if KEEP:
                tl.store(before + at * H + one, old.to(before.dtype.element_ty), is_here)
                parts.store_four(kept + at * (4 * H), four, m, r, z, n, is_here, H)
            if AHEAD:
                ahead = tl.minimum(t + 1, T - 1) * step + top
                x_r, x_z, x_n = parts.three(xg + ahead * (3 * H), three, is_here, H)
                opens = tl.load(first + ahead + step + row, is_row & (t + 2 < T), 0)
            if t + 1 < T:
                met += 1
                if MEETS:
                    wait(counters, group, met * MEMBERS)
                low = tl.load(slot + all_of, cache_modifier=".cg")
        tl.store(h_end + home * H + one, state, is_here)


@triton.jit(do_not_specialize=["slots", "T", "B"], do_not_specialize_on_alignment=["first"])
def backward(
    dy,  # [T, B, H], with HAS_DY
    dh_end,  # [B, H], with HAS_DH
    w,  # [3H, H] = W_hh in float32
    first,  # [T, B] bytes
    kept,  # [T, B, 4H]
    before,  # [T, B, H]
    d,  # [T, B, 4H] the gradients of m and of what goes into r, z, n
    dh,  # [B, H] the gradient of the state before step 0
    d_initial,  # [groups, H], with LEARNED
    d_bias,  # [groups, 4H] the sums of d
    exchange,  # [slots, groups, MEMBERS to, MEMBERS from, BLOCK_B, UNITS] parts of gradients of states
    counters,  # [groups, APART] zeros
    slots,
    T,
    B,
    H: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    UNITS: tl.constexpr,
    LEARNED: tl.constexpr,
    HAS_DY: tl.constexpr,
    HAS_DH: tl.constexpr,
    AHEAD: tl.constexpr,
    HALF: tl.constexpr,
    MEETS: tl.constexpr,
    PRECISION: tl.constexpr,
    MATH: tl.constexpr,
):
    """The steps from the last to the first. With HALF factors are float16, each row brought to its range."""
    MEMBERS: tl.constexpr = BLOCK_H // UNITS
    member, group = tl.program_id(0) % MEMBERS, tl.program_id(0) // MEMBERS
    row, own = tl.arange(0, BLOCK_B), tl.arange(0, UNITS)
    unit, step = member * UNITS + own, B.to(tl.int64)
    is_unit = unit < H
    one = row[:, None] * H + unit[None, :]
    four = row[:, None] * (4 * H) + unit[None, :]
    tile = row[:, None] * UNITS + own[None, :]
    TYPE: tl.constexpr = tl.float16 if HALF else d.dtype.element_ty
    STORED: tl.constexpr = d.dtype.element_ty

    w_r, w_z, w_n = (), (), ()
    for s in tl.static_range(MEMBERS):
        theirs = (s * UNITS + own)[None, :]
        w_r += (parts.weights(w, unit[:, None], theirs, TYPE, H, PRECISION, MATH),)
        w_z += (parts.weights(w + H * H, unit[:, None], theirs, TYPE, H, PRECISION, MATH),)
        w_n += (parts.weights(w + 2 * H * H, unit[:, None], theirs, TYPE, H, PRECISION, MATH),)
    sum_m = tl.zeros((UNITS,), tl.float32)
    sum_r = tl.zeros((UNITS,), tl.float32)
    sum_z = tl.zeros((UNITS,), tl.float32)
    sum_n = tl.zeros((UNITS,), tl.float32)
    sum_start = tl.zeros((BLOCK_B, UNITS), tl.float32)

    SIZE: tl.constexpr = BLOCK_B * UNITS
    groups, met = tl.num_programs(0) // MEMBERS, 0
    for top in range(group * BLOCK_B, B, groups * BLOCK_B):
        is_row = row < B - top
        is_here = is_row[:, None] & is_unit[None, :]
        home = 0 * step + top
        carried = tl.zeros((BLOCK_B, UNITS), tl.float32)
        if HAS_DH:
            carried += tl.load(dh_end + home * H + one, is_here, 0)
        last = (T - 1) * step + top
        low_m, low_r, low_z, low_n = parts.four(kept + last * (4 * H), four, is_here, H)
        low_state = tl.load(before + last * H + one, is_here, 0)
        dy_now = tl.zeros((BLOCK_B, UNITS), tl.float32)
        if HAS_DY:
            dy_now = tl.load(dy + last * H + one, is_here, 0)
        for back in range(T):
            at = (T - 1 - back) * step + top
            if not AHEAD:
                low_m, low_r, low_z, low_n = parts.four(kept + at * (4 * H), four, is_here, H)
                low_state = tl.load(before + at * H + one, is_here, 0)
                if HAS_DY:
                    dy_now = tl.load(dy + at * H + one, is_here, 0)
            opens = tl.load(first + at + row, is_row, 0)
            m, r = low_m.to(tl.float32), low_r.to(tl.float32)
            z, n, state = low_z.to(tl.float32), low_n.to(tl.float32), low_state.to(tl.float32)
            carried += dy_now
            scale, unscale = parts.scales(carried, HALF)
            dm, dr, dz, dn, carried = parts.gradients(carried, m, r, z, n, state)
            low_z = factor(dz * unscale, TYPE, PRECISION, MATH)
            low_m = factor(dm * unscale, TYPE, PRECISION, MATH)
            low_r = factor(dr * unscale, TYPE, PRECISION, MATH)
            slot = exchange + (met % slots * groups + group) * (MEMBERS * MEMBERS * SIZE)
            for s in tl.static_range(MEMBERS):
                part = _alone(low_z, w_z[s], PRECISION, MATH)
                part += _alone(low_m, w_n[s], PRECISION, MATH)
                part += _alone(low_r, w_r[s], PRECISION, MATH)
                if HALF:
                    part *= scale
                tl.store(slot + (s * MEMBERS + member) * SIZE + tile, part)
            if MEETS:
                arrive(counters, group)
            now = d + at * (4 * H) + four
            tl.store(now, dm.to(STORED), is_here)
            tl.store(now + H, dr.to(STORED), is_here)
            tl.store(now + 2 * H, dz.to(STORED), is_here)
            tl.store(now + 3 * H, dn.to(STORED), is_here)
            more_m, more_r, more_z, more_n = _sums(dm, dr, dz, dn, MATH)
            sum_m += more_m
            sum_r += more_r
            sum_z += more_z
            sum_n += more_n
            if AHEAD:
                ahead = tl.maximum(T - 2 - back, 0) * step + top
                low_m, low_r, low_z, low_n = parts.four(kept + ahead * (4 * H), four, is_here, H)
                low_state = tl.load(before + ahead * H + one, is_here, 0)
                if HAS_DY:
                    dy_now = tl.load(dy + ahead * H + one, is_here, 0)
            met += 1
            if MEETS:
                wait(counters, group, met * MEMBERS)
            for s in tl.static_range(MEMBERS):
                carried += tl.load(slot + (member * MEMBERS + s) * SIZE + tile, cache_modifier=".cg")
            is_open = (opens != 0)[:, None]
            if LEARNED:
                sum_start += tl.where(is_open, carried, 0)
            carried = tl.where(is_open, 0, carried)
        tl.store(dh + home * H + one, carried, is_here)

    line = group * (4 * H) + unit
    tl.store(d_bias + line, sum_m, is_unit)
    tl.store(d_bias + H + line, sum_r, is_unit)
    tl.store(d_bias + 2 * H + line, sum_z, is_unit)
    tl.store(d_bias + 3 * H + line, sum_n, is_unit)
    if LEARNED:
        tl.store(d_initial + group * H + unit, tl.sum(sum_start, 0), is_unit)
