"""The GRU of a whole unroll with the recurrent weights spread over processors: 129 to 256 units.

The weights of so many units fit on a few processors, not on one. A group of programs, one per processor,
computes BB rows; each member computes UNITS of the units and keeps their weights in shared memory for all
steps. After every step the members synchronise (``barrier``) and exchange data through the L2 cache: forwards
the new state as a factor, backwards each member's contribution to the gradient of all states. Phase k uses
buffer k % slots. Two buffers suffice: a member writes to a buffer only after a barrier that follows all reads
of it. Groups take blocks of rows in turn, so weights are read once.

Between arriving and waiting a member stores its own results and loads the inputs of its next step. Without
SYNC there are no barriers, for Triton's interpreter (``tiling.groups``).

Stored blocks of H columns are in the order m, r, z, n (``parts``). Units beyond H are 0.
"""

# pyright: reportMissingImports=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from recollect.kernels.triton.barrier import arrive, wait
from recollect.kernels.triton.gru import parts
from recollect.kernels.triton.math import dot, factor, sigmoid, tanh


@triton.jit
def _alone(a, b, PRECISION: tl.constexpr, MATH: tl.constexpr):
    """a [M, K] @ b [K, N], hidden from the compiler's fusion with other sums.

    In a fused chain of products of 64 rows, half of the warps would repeat the work of the others.
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
    """Sums over rows, of all four in one reduction, except in the interpreter, where that is slow."""
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
    before,  # [T, B, H] the input state of each step, with KEEP
    exchange,  # [slots, groups, BB, HP] states, as factors
    counters,  # [groups, COUNTER_STRIDE] zeros
    slots,
    T,
    B,
    H: tl.constexpr,
    BB: tl.constexpr,
    HP: tl.constexpr,
    UNITS: tl.constexpr,
    LEARNED: tl.constexpr,
    KEEP: tl.constexpr,
    HALF: tl.constexpr,
    SYNC: tl.constexpr,
    PRECISION: tl.constexpr,
    MATH: tl.constexpr,
):
    """y and the final state; with KEEP also the inputs of ``backward``. With HALF factors are float16."""
    MEMBERS: tl.constexpr = HP // UNITS
    member, group = tl.program_id(0) % MEMBERS, tl.program_id(0) // MEMBERS
    row, every, own = tl.arange(0, BB), tl.arange(0, HP), tl.arange(0, UNITS)
    unit, step = member * UNITS + own, B.to(tl.int64)
    is_unit = unit < H
    one = row[:, None] * H + unit[None, :]
    three = row[:, None] * (3 * H) + unit[None, :]
    four = row[:, None] * (4 * H) + unit[None, :]
    all_of = row[:, None] * HP + every[None, :]
    mine_of = row[:, None] * HP + unit[None, :]
    TYPE: tl.constexpr = tl.float16 if HALF else xg.dtype.element_ty

    w_r = parts.weights(w, unit[None, :], every[:, None], TYPE, H, PRECISION, MATH)
    w_z = parts.weights(w + H * H, unit[None, :], every[:, None], TYPE, H, PRECISION, MATH)
    w_n = parts.weights(w + 2 * H * H, unit[None, :], every[:, None], TYPE, H, PRECISION, MATH)
    b_r, b_z, b_n, b_m = parts.biases(b_ih, b_hh, unit, is_unit, H)
    start = tl.zeros((1, UNITS), tl.float32)
    if LEARNED:
        start += tl.load(initial + unit, is_unit, 0)[None, :]

    groups, phase = tl.num_programs(0) // MEMBERS, 0
    for top in range(group * BB, B, groups * BB):
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
            m = dot(low, w_n, tl.zeros((BB, UNITS), tl.float32), PRECISION, MATH) + b_m
            r = sigmoid(dot(low, w_r, x_r.to(tl.float32), PRECISION, MATH) + b_r, MATH)
            z = sigmoid(dot(low, w_z, x_z.to(tl.float32), PRECISION, MATH) + b_z, MATH)
            n = tanh(r * m + x_n.to(tl.float32) + b_n, MATH)
            new = n + z * (state - n)
            old, state = state, tl.where((opens != 0)[:, None], start, new)
            slot = exchange + (phase % slots * groups + group) * (BB * HP)
            if t + 1 < T:
                tl.store(slot + mine_of, factor(state, TYPE, PRECISION, MATH))
                if SYNC:
                    arrive(counters, group)
            tl.store(y + at * H + one, new, is_here)
            if KEEP:
                tl.store(before + at * H + one, old.to(before.dtype.element_ty), is_here)
                parts.store_four(kept + at * (4 * H), four, m, r, z, n, is_here, H)
            ahead = tl.minimum(t + 1, T - 1) * step + top
            x_r, x_z, x_n = parts.three(xg + ahead * (3 * H), three, is_here, H)
            opens = tl.load(first + ahead + step + row, is_row & (t + 2 < T), 0)
            if t + 1 < T:
                phase += 1
                if SYNC:
                    wait(counters, group, phase * MEMBERS)
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
    d,  # [T, B, 4H] the gradients of m and of r, z, n before activation
    dh,  # [B, H] the gradient of the state before step 0
    d_initial,  # [groups, H], with LEARNED
    d_bias,  # [groups, 4H] the sums of d
    exchange,  # [slots, groups, MEMBERS to, MEMBERS from, BB, UNITS] parts of gradients of states
    counters,  # [groups, COUNTER_STRIDE] zeros
    slots,
    T,
    B,
    H: tl.constexpr,
    BB: tl.constexpr,
    HP: tl.constexpr,
    UNITS: tl.constexpr,
    LEARNED: tl.constexpr,
    HAS_DY: tl.constexpr,
    HAS_DH: tl.constexpr,
    HALF: tl.constexpr,
    SYNC: tl.constexpr,
    PRECISION: tl.constexpr,
    MATH: tl.constexpr,
):
    """Gradients, from the last step to the first. With HALF factors are float16, each row scaled to fit."""
    MEMBERS: tl.constexpr = HP // UNITS
    member, group = tl.program_id(0) % MEMBERS, tl.program_id(0) // MEMBERS
    row, own = tl.arange(0, BB), tl.arange(0, UNITS)
    unit, step = member * UNITS + own, B.to(tl.int64)
    is_unit = unit < H
    one = row[:, None] * H + unit[None, :]
    four = row[:, None] * (4 * H) + unit[None, :]
    tile = row[:, None] * UNITS + own[None, :]
    TYPE: tl.constexpr = tl.float16 if HALF else d.dtype.element_ty

    w_r, w_z, w_n = (), (), ()
    for s in tl.static_range(MEMBERS):
        theirs = (s * UNITS + own)[None, :]
        w_r += (parts.weights(w, unit[:, None], theirs, TYPE, H, PRECISION, MATH),)
        w_z += (parts.weights(w + H * H, unit[:, None], theirs, TYPE, H, PRECISION, MATH),)
        w_n += (parts.weights(w + 2 * H * H, unit[:, None], theirs, TYPE, H, PRECISION, MATH),)
    zeros = tl.zeros((UNITS,), tl.float32)
    sum_m, sum_r, sum_z, sum_n = zeros, zeros, zeros, zeros
    sum_start = tl.zeros((BB, UNITS), tl.float32)

    SIZE: tl.constexpr = BB * UNITS
    groups, phase = tl.num_programs(0) // MEMBERS, 0
    for top in range(group * BB, B, groups * BB):
        is_row = row < B - top
        is_here = is_row[:, None] & is_unit[None, :]
        home = 0 * step + top
        carried = tl.zeros((BB, UNITS), tl.float32)
        if HAS_DH:
            carried += tl.load(dh_end + home * H + one, is_here, 0)
        last = (T - 1) * step + top
        low_m, low_r, low_z, low_n, low_state, dy_now = parts.step(
            kept, before, dy, last, four, one, is_here, H, HAS_DY
        )
        for back in range(T):
            at = (T - 1 - back) * step + top
            opens = tl.load(first + at + row, is_row, 0)
            m, r = low_m.to(tl.float32), low_r.to(tl.float32)
            z, n, state = low_z.to(tl.float32), low_n.to(tl.float32), low_state.to(tl.float32)
            carried += dy_now
            scale, unscale = parts.scales(carried, HALF)
            dm, dr, dz, dn, carried = parts.gradients(carried, m, r, z, n, state)
            low_z = factor(dz * unscale, TYPE, PRECISION, MATH)
            low_m = factor(dm * unscale, TYPE, PRECISION, MATH)
            low_r = factor(dr * unscale, TYPE, PRECISION, MATH)
            slot = exchange + (phase % slots * groups + group) * (MEMBERS * MEMBERS * SIZE)
            for s in tl.static_range(MEMBERS):
                part = _alone(low_z, w_z[s], PRECISION, MATH)
                part += _alone(low_m, w_n[s], PRECISION, MATH)
                part += _alone(low_r, w_r[s], PRECISION, MATH)
                if HALF:
                    part *= scale
                tl.store(slot + (s * MEMBERS + member) * SIZE + tile, part)
            if SYNC:
                arrive(counters, group)
            parts.store_four(d + at * (4 * H), four, dm, dr, dz, dn, is_here, H)
            more_m, more_r, more_z, more_n = _sums(dm, dr, dz, dn, MATH)
            sum_m += more_m
            sum_r += more_r
            sum_z += more_z
            sum_n += more_n
            ahead = tl.maximum(T - 2 - back, 0) * step + top
            low_m, low_r, low_z, low_n, low_state, dy_now = parts.step(
                kept, before, dy, ahead, four, one, is_here, H, HAS_DY
            )
            phase += 1
            if SYNC:
                wait(counters, group, phase * MEMBERS)
            for s in tl.static_range(MEMBERS):
                carried += tl.load(slot + (member * MEMBERS + s) * SIZE + tile, cache_modifier=".cg")
            is_open = (opens != 0)[:, None]
            if LEARNED:
                sum_start += tl.where(is_open, carried, 0)
            carried = tl.where(is_open, 0, carried)
        tl.store(dh + home * H + one, carried, is_here)

    parts.store_four(d_bias, group * (4 * H) + unit, sum_m, sum_r, sum_z, sum_n, is_unit, H)
    if LEARNED:
        tl.store(d_initial + group * H + unit, tl.sum(sum_start, 0), is_unit)
