"""The linear recurrence of ``recollect.kernels.linear_scan`` in Triton: one launch forwards, one backwards.

    h_t = a_t h_{t-1} + b_t        with ``initial``, or nothing, instead of h_{t-1} where first

Each row and feature is an independent column in time. A thread computes a few columns with h in registers, so
every input is read once and every output written once; the kernel is bound by memory bandwidth. It loads the
inputs of ``STEPS`` steps ahead of their computation.

Complex numbers are pairs of reals. For real numbers the imaginary part aliases the real one and is unused.
"""

# A type checker cannot follow Triton's functions: their conditions are decided at compile time.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAssignmentType=false
# pyright: reportPossiblyUnboundVariable=false, reportArgumentType=false, reportReturnType=false
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from recollect.kernels.autograd_node import Grads, Kept, Need, Saved
from recollect.kernels.triton.tiling import launch

BLOCK = 128
"""Reals in the columns of a program: a column of complex numbers counts twice."""
WARPS = 2
STEPS = 4
"""Steps whose inputs are loaded together, a power of two; more need more registers."""


def _plain(*tensors: Any) -> Any:
    """Tensors, or None, contiguous and with lazy conjugation resolved."""
    return [None if t is None else t.resolve_conj().resolve_neg().contiguous() for t in tensors]


def _reals(t: Tensor) -> Tensor:
    """t, or its pairs of reals; flags as numbers."""
    if t.dtype == torch.bool:
        return t.view(torch.uint8)
    return torch.view_as_real(t) if t.is_complex() else t


def _launch(kernel: Any, a: Tensor, b: Tensor, *tensors: Tensor, **flags: Any) -> None:
    """Launch ``kernel`` on the tensors, over all columns of b [T, B, ...] with factors a."""
    if b.numel() == 0:
        return
    (T, B), n, block = b.shape[:2], b[0].numel(), BLOCK // 2 if b.is_complex() else BLOCK
    sizes = {"n": n, "features": n // B, "rows": B, "T": T, "BLOCK": block, "num_warps": WARPS}
    sizes |= {"VARIES": a.dim() == b.dim(), "COMPLEX": b.is_complex()}
    sizes["STEPS"] = next(k for k in (STEPS, 2, 1) if T % k == 0)
    launch(kernel, (triton.cdiv(n, block),), *(_reals(t) for t in tensors), **sizes, **flags)


def forward(*inputs: Tensor | None, keep: bool) -> tuple[tuple[Tensor], Kept]:
    """h [T, B, ...] of a, b, h0, first and initial as in ``linear_scan.scan``, in float32 or complex64."""
    a, b, h0, first, initial = _plain(*inputs)
    h, start, has_initial = torch.empty_like(b), h0 if initial is None else initial, initial is not None
    _launch(_scan_forward, a, b, a, b, h0, first, start, h, HAS_INITIAL=has_initial)
    return (h,), (a, h, h0, first, initial)


def backward(grads: Grads, saved: Saved, need: Need) -> Grads:
    """The gradients of a, b, h0, first and initial."""
    (dh,), (a, h, h0, first, initial) = _plain(*grads), saved
    db, dh0, varies = torch.empty_like(h), torch.empty_like(h0), a.dim() == h.dim()
    # The kernel sums over time, torch over rows, in a fixed order.
    da = torch.empty_like(h if varies else h0) if need[0] else None
    dinitial = None if initial is None else torch.empty_like(h0)
    given = (dh, a, h, h0, first, h0 if initial is None else initial)
    wanted = (db if da is None else da, db, dh0, dh0 if dinitial is None else dinitial)
    flags = {"HAS_INITIAL": initial is not None, "NEED_A": need[0]}
    _launch(_scan_backward, a, h, *given, *wanted, **flags)
    if da is not None and not varies:
        da = da.sum(0)
    return da, db, dh0, None, None if dinitial is None else dinitial.sum(0, keepdim=True)


# The kernels. Pointers are to the first step; a step has n columns, those of a row side by side. The
# alignment of ``first`` varies between slices in time and must not trigger a recompilation.


@triton.jit
def _load(numbers, columns, mask, COMPLEX: tl.constexpr):
    """The real and the imaginary parts of numbers[columns]."""
    if COMPLEX:
        places = 2 * columns[:, None] + tl.arange(0, 2)[None, :]
        real, imaginary = tl.split(tl.load(numbers + places, mask=mask[:, None], other=0.0))
    else:
        real = tl.load(numbers + columns, mask=mask, other=0.0)
        imaginary = real
    return real, imaginary


@triton.jit
def _store(numbers, columns, real, imaginary, mask, COMPLEX: tl.constexpr):
    """numbers[columns] = real + i imaginary."""
    if COMPLEX:
        places = 2 * columns[:, None] + tl.arange(0, 2)[None, :]
        tl.store(numbers + places, tl.join(real, imaginary), mask=mask[:, None])
    else:
        tl.store(numbers + columns, real, mask=mask)


@triton.jit
def _times(p, pi, q, qi, COMPLEX: tl.constexpr):
    """p q."""
    if COMPLEX:
        real, imaginary = p * q - pi * qi, p * qi + pi * q
    else:
        real = p * q
        imaginary = real
    return real, imaginary


@triton.jit
def _times_conjugate(p, pi, q, qi, COMPLEX: tl.constexpr):
    """p conj(q)."""
    if COMPLEX:
        real, imaginary = p * q + pi * qi, pi * q - p * qi
    else:
        real = p * q
        imaginary = real
    return real, imaginary


@triton.jit(do_not_specialize_on_alignment=["first_ptr"])
def _scan_forward(
    a_ptr,
    b_ptr,
    h0_ptr,
    first_ptr,
    initial_ptr,
    h_ptr,
    n,
    features,
    rows,
    T: tl.constexpr,
    VARIES: tl.constexpr,
    COMPLEX: tl.constexpr,
    HAS_INITIAL: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """All h of ``BLOCK`` columns."""
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < n
    row, feature = columns // features, columns % features
    width = n * 2 if COMPLEX else n  # reals in a step
    h, hi = _load(h0_ptr, columns, inside, COMPLEX)
    if HAS_INITIAL:
        start, starti = _load(initial_ptr, feature, inside, COMPLEX)
    if not VARIES:
        a, ai = _load(a_ptr, feature, inside, COMPLEX)

    for _ in range(0, T, STEPS):
        every_a, every_b, every_first = (), (), ()
        for k in tl.static_range(STEPS):
            if VARIES:
                every_a += (_load(a_ptr + k * width, columns, inside, COMPLEX),)
            every_b += (_load(b_ptr + k * width, columns, inside, COMPLEX),)
            every_first += (tl.load(first_ptr + k * rows + row, mask=inside, other=0) != 0,)
        for k in tl.static_range(STEPS):
            if VARIES:
                a, ai = every_a[k]
            b, bi = every_b[k]
            begins = every_first[k]
            if HAS_INITIAL:
                h, hi = tl.where(begins, start, h), tl.where(begins, starti, hi)
            h, hi = _times(a, ai, h, hi, COMPLEX)
            if not HAS_INITIAL:
                h, hi = tl.where(begins, 0.0, h), tl.where(begins, 0.0, hi)
            h, hi = h + b, hi + bi
            _store(h_ptr + k * width, columns, h, hi, inside, COMPLEX)
        if VARIES:
            a_ptr += STEPS * width
        b_ptr += STEPS * width
        h_ptr += STEPS * width
        first_ptr += STEPS * rows


@triton.jit(do_not_specialize_on_alignment=["first_ptr"])
def _scan_backward(
    dh_ptr,
    a_ptr,
    h_ptr,
    h0_ptr,
    first_ptr,
    initial_ptr,
    da_ptr,
    db_ptr,
    dh0_ptr,
    dinitial_ptr,
    n,
    features,
    rows,
    T: tl.constexpr,
    VARIES: tl.constexpr,
    COMPLEX: tl.constexpr,
    HAS_INITIAL: tl.constexpr,
    NEED_A: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradients of ``BLOCK`` columns, from the last step to the first."""
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < n
    row, feature = columns // features, columns % features
    width = n * 2 if COMPLEX else n
    last = (T - 1) * tl.cast(width, tl.int64)
    dh_ptr += last
    db_ptr += last
    h_ptr += last - width  # the input state of the last step
    first_ptr += (T - 1) * tl.cast(rows, tl.int64)
    if VARIES:
        a_ptr += last
        da_ptr += last
    else:
        a, ai = _load(a_ptr, feature, inside, COMPLEX)
    back = tl.zeros((BLOCK,), tl.float32)  # the gradient that flows back to the step before
    backi, sum_a, sum_ai, sum_start, sum_starti = back, back, back, back, back
    start, starti = back, back
    if HAS_INITIAL:
        start, starti = _load(initial_ptr, feature, inside, COMPLEX)

    for done in range(0, T, STEPS):
        every_g, every_a, every_h, every_first = (), (), (), ()
        for k in tl.static_range(STEPS):
            every_g += (_load(dh_ptr - k * width, columns, inside, COMPLEX),)
            if VARIES:
                every_a += (_load(a_ptr - k * width, columns, inside, COMPLEX),)
            if NEED_A:
                if k == STEPS - 1:  # only this one can be the first step of the sequence
                    later = done + STEPS < T
                    h, hi = _load(h_ptr - k * width, columns, inside & later, COMPLEX)
                    h0, h0i = _load(h0_ptr, columns, inside & (done + STEPS >= T), COMPLEX)
                    every_h += ((tl.where(later, h, h0), tl.where(later, hi, h0i)),)
                else:
                    every_h += (_load(h_ptr - k * width, columns, inside, COMPLEX),)
            every_first += (tl.load(first_ptr - k * rows + row, mask=inside, other=0) != 0,)
        for k in tl.static_range(STEPS):
            g, gi = every_g[k]
            g, gi = g + back, gi + backi
            begins = every_first[k]
            _store(db_ptr - k * width, columns, g, gi, inside, COMPLEX)
            if NEED_A:
                h, hi = every_h[k]
                if HAS_INITIAL:
                    h, hi = tl.where(begins, start, h), tl.where(begins, starti, hi)
                da, dai = _times_conjugate(g, gi, h, hi, COMPLEX)
                if not HAS_INITIAL:
                    da, dai = tl.where(begins, 0.0, da), tl.where(begins, 0.0, dai)
                if VARIES:
                    _store(da_ptr - k * width, columns, da, dai, inside, COMPLEX)
                else:
                    sum_a, sum_ai = sum_a + da, sum_ai + dai
            if VARIES:
                a, ai = every_a[k]
            back, backi = _times_conjugate(g, gi, a, ai, COMPLEX)
            if HAS_INITIAL:
                sum_start = tl.where(begins, sum_start + back, sum_start)
                sum_starti = tl.where(begins, sum_starti + backi, sum_starti)
            back, backi = tl.where(begins, 0.0, back), tl.where(begins, 0.0, backi)
        dh_ptr -= STEPS * width
        db_ptr -= STEPS * width
        h_ptr -= STEPS * width
        first_ptr -= STEPS * rows
        if VARIES:
            a_ptr -= STEPS * width
            da_ptr -= STEPS * width

    _store(dh0_ptr, columns, back, backi, inside, COMPLEX)
    if HAS_INITIAL:
        _store(dinitial_ptr, columns, sum_start, sum_starti, inside, COMPLEX)
    if NEED_A and not VARIES:
        _store(da_ptr, columns, sum_a, sum_ai, inside, COMPLEX)
