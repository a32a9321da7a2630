"""The selective scan of Mamba in Triton, one launch each way; see ``kernels.cpu.selective_scan``.

    dt = softplus(delta),  h' = exp(dt A) h + (dt x) B,  y = (h' . C + D x) silu(z)

A program computes some channels of one row over all steps, with h [N, channels] in registers. It stores h
only before every ``CHUNK``-th step; the backward pass recomputes the others chunk by chunk, into scratch
memory that stays in the cache, and then back-propagates through the chunk:

    dout = dy silu(z),                   dC = sum_i h' dout,            dh += dout C
    dB   = sum_i dh dt x,                d(dt x) = sum_n dh B           n over numbers, i over channels
    back = exp(dt A) dh,                 d(dt A) = back h               and dh = back in the step before

torch computes the sums over rows (A, D) and over programs of one row (B, C), in a fixed order.
"""

# A type checker cannot follow Triton's functions.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportCallIssue=false

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from recollect.kernels.autograd_node import Grads, Kept, Need, Saved
from recollect.kernels.triton.math import sigmoid
from recollect.kernels.triton.tiling import launch

CHUNK = 8
"""Steps between two stored h."""
CHANNELS = 32
"""The most channels of a program, a multiple of 32: one per thread, with all its N numbers."""
REGISTERS: int | None = 168
"""Register limit of the backward kernel, the fewest that N = 16 needs. None: no limit."""
LOG2_E = tl.constexpr(math.log2(math.e))
"""exp(v) is exp2(v log2 e)."""
MOST_NUMBERS = 32
"""The largest N that fits into the registers of a thread."""


def _sizes(x: Tensor, A: Tensor) -> dict[str, Any]:
    """Sizes for both kernels."""
    (T, R, inner), N = x.shape, A.shape[0]
    channels = min(CHANNELS, triton.next_power_of_2(inner))
    sizes = {"rows": R, "T": T, "N": N, "NUMBERS": triton.next_power_of_2(N), "WIDTH": inner}
    return {**sizes, "CHANNELS": channels, "CHUNK": CHUNK, "num_warps": max(1, channels // 32)}


def forward(*inputs: Tensor, keep: bool) -> tuple[tuple[Tensor, Tensor], Kept]:
    """As ``kernels.cpu.selective_scan``, in float32; kept are the inputs, and h before every chunk."""
    x, delta, z, B, C, A, D, h, first = (t.contiguous() for t in inputs)
    sizes = _sizes(x, A)
    y, h_end = torch.empty_like(x), torch.empty_like(h)
    between = h.new_empty(triton.cdiv(x.shape[0], CHUNK) if keep else 0, *h.shape)
    if y.numel():
        tensors = (x, delta, z, B, C, A, D, h, first.view(torch.uint8), y, h_end, between if keep else h_end)
        grid = (x.shape[1], triton.cdiv(x.shape[2], sizes["CHANNELS"]))
        launch(_selective_forward, grid, *tensors, KEEP=keep, **sizes)
    return (y, h_end), (x, delta, z, B, C, A, D, first, between)


def backward(grads: Grads, saved: Saved, need: Need) -> Grads:
    """The gradients of x, delta, z, B, C, A, D and h."""
    (dy, dh_end), (x, delta, z, B, C, A, D, first, between) = grads, saved
    sizes = _sizes(x, A)
    (T, R, inner), N = x.shape, A.shape[0]
    parts = triton.cdiv(inner, sizes["CHANNELS"])
    dy = torch.zeros_like(x) if dy is None else dy.contiguous()
    dh_end = x.new_zeros(R, N, inner) if dh_end is None else dh_end.contiguous()
    dx, ddelta, dz, dh = (torch.empty_like(t) for t in (x, delta, z, dh_end))
    dB, dC = x.new_empty(2, parts, T, R, N)
    dA, dD = x.new_empty(R, N, inner), x.new_empty(R, inner)
    scratch = x.new_empty(min(CHUNK, T), R, N, inner)  # the states before the steps of a chunk
    if x.numel():
        given = (dy, dh_end, x, delta, z, B, C, A, D, first.view(torch.uint8), between, scratch)
        if x.is_cuda and N <= 16 and REGISTERS is not None:
            sizes["maxnreg"] = REGISTERS
        launch(_selective_backward, (R, parts), *given, dx, ddelta, dz, dB, dC, dA, dD, dh, **sizes)
    return dx, ddelta, dz, dB.sum(0), dC.sum(0), dA.sum(0), dD.sum(0), dh


# The kernels. Sums over n are free only if a thread holds all n of its channels. Triton derives the layout of
# a tile from hints on addresses: contiguous along i, so threads run along i, but aligned to one number only,
# so each thread has one channel. The hints on i have no other effect. The alignment of ``first`` varies
# between slices in time and must not trigger a recompilation.


@triton.jit
def _softplus(v):
    """log(1 + exp(v)), accurate also where it is small: log(1 + e) = 2 artanh(e / (2 + e))."""
    e = tl.exp(-tl.abs(v))
    s = e / (2 + e)
    q = s * s
    series = 1 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q * (1 / 11 + q / 13)))))
    return tl.maximum(v, 0.0) + 2 * s * series


@triton.jit(do_not_specialize_on_alignment=["first_ptr"])
def _selective_forward(
    x_ptr,
    delta_ptr,
    z_ptr,
    B_ptr,
    C_ptr,
    A_ptr,
    D_ptr,
    h_ptr,
    first_ptr,
    y_ptr,
    h_end_ptr,
    between_ptr,
    rows,
    T: tl.constexpr,
    N: tl.constexpr,
    NUMBERS: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    CHUNK: tl.constexpr,
    KEEP: tl.constexpr,
):
    """All steps of some channels of one row."""
    r = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    i = tl.max_contiguous(tl.multiple_of(i, 1), 2)  # see above
    n = tl.arange(0, NUMBERS)
    has_i, has_n = i < WIDTH, n < N
    down = n[:, None] * WIDTH
    has = has_n[:, None] & has_i[None, :]
    A = tl.load(A_ptr + i[None, :] + down, mask=has, other=0.0) * LOG2_E
    D = tl.load(D_ptr + i, mask=has_i, other=0.0)
    h = tl.load(h_ptr + r * (N * WIDTH) + i[None, :] + down, mask=has, other=0.0)

    for begin in range(0, T, CHUNK):
        if KEEP:
            tl.store(between_ptr + r * (N * WIDTH) + i[None, :] + down, h, mask=has)
            between_ptr += tl.cast(rows, tl.int64) * (N * WIDTH)
        for t in range(begin, min(begin + CHUNK, T)):
            at = t * rows + r
            dt = _softplus(tl.load(delta_ptr + at * WIDTH + i, mask=has_i, other=0.0))
            x = tl.load(x_ptr + at * WIDTH + i, mask=has_i, other=0.0)
            z = tl.load(z_ptr + at * WIDTH + i, mask=has_i, other=0.0)
            B = tl.load(B_ptr + at * N + n, mask=has_n, other=0.0)
            C = tl.load(C_ptr + at * N + n, mask=has_n, other=0.0)
            begins = tl.load(first_ptr + at) != 0
            kept = tl.where(begins, 0.0, tl.exp2(dt[None, :] * A) * h)
            h = kept + (dt * x)[None, :] * B[:, None]
            out = tl.sum(h * C[:, None], 0) + D * x
            tl.store(y_ptr + at * WIDTH + i, out * z * sigmoid(z, "plain"), mask=has_i)
    tl.store(h_end_ptr + r * (N * WIDTH) + i[None, :] + down, h, mask=has)


@triton.jit(do_not_specialize_on_alignment=["first_ptr"])
def _selective_backward(
    dy_ptr,
    dh_end_ptr,
    x_ptr,
    delta_ptr,
    z_ptr,
    B_ptr,
    C_ptr,
    A_ptr,
    D_ptr,
    first_ptr,
    between_ptr,
    scratch_ptr,
    dx_ptr,
    ddelta_ptr,
    dz_ptr,
    dB_ptr,
    dC_ptr,
    dA_ptr,
    dD_ptr,
    dh_ptr,
    rows,
    T: tl.constexpr,
    N: tl.constexpr,
    NUMBERS: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The gradients of some channels of one row, from the last chunk to the first."""
    r = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    i = tl.max_contiguous(tl.multiple_of(i, 1), 2)  # see above
    n = tl.arange(0, NUMBERS)
    has_i, has_n = i < WIDTH, n < N
    down = n[:, None] * WIDTH
    has = has_n[:, None] & has_i[None, :]
    plane = tl.cast(rows, tl.int64) * (N * WIDTH)  # numbers in a state of all rows
    state = r * (N * WIDTH)
    A = tl.load(A_ptr + i[None, :] + down, mask=has, other=0.0)
    D = tl.load(D_ptr + i, mask=has_i, other=0.0)
    dh = tl.load(dh_end_ptr + state + i[None, :] + down, mask=has, other=0.0)
    dA = tl.zeros((NUMBERS, CHANNELS), tl.float32)
    dD = tl.zeros((CHANNELS,), tl.float32)
    part = tl.program_id(1) * T * tl.cast(rows, tl.int64) * N
    dB_ptr += part
    dC_ptr += part

    for begin in range((T - 1) // CHUNK * CHUNK, -1, -CHUNK):
        h = tl.load(between_ptr + begin // CHUNK * plane + state + i[None, :] + down, mask=has, other=0.0)
        for k in range(0, min(CHUNK, T - begin)):
            at = (begin + k) * rows + r
            begins = tl.load(first_ptr + at) != 0
            h = tl.where(begins, 0.0, h)
            tl.store(scratch_ptr + k * plane + state + i[None, :] + down, h, mask=has)
            dt = _softplus(tl.load(delta_ptr + at * WIDTH + i, mask=has_i, other=0.0))
            x = tl.load(x_ptr + at * WIDTH + i, mask=has_i, other=0.0)
            B = tl.load(B_ptr + at * N + n, mask=has_n, other=0.0)
            decay = tl.exp2(dt[None, :] * (A * LOG2_E))
            h = decay * h + (dt * x)[None, :] * B[:, None]
        tl.debug_barrier()
        for k in range(min(CHUNK, T - begin) - 1, -1, -1):
            at = (begin + k) * rows + r
            delta = tl.load(delta_ptr + at * WIDTH + i, mask=has_i, other=0.0)
            x = tl.load(x_ptr + at * WIDTH + i, mask=has_i, other=0.0)
            z = tl.load(z_ptr + at * WIDTH + i, mask=has_i, other=0.0)
            dy = tl.load(dy_ptr + at * WIDTH + i, mask=has_i, other=0.0)
            B = tl.load(B_ptr + at * N + n, mask=has_n, other=0.0)
            C = tl.load(C_ptr + at * N + n, mask=has_n, other=0.0)
            begins = tl.load(first_ptr + at) != 0
            before = tl.load(scratch_ptr + k * plane + state + i[None, :] + down, mask=has, other=0.0)
            dt = _softplus(delta)
            written = dt * x
            decay = tl.exp2(dt[None, :] * (A * LOG2_E))
            h = tl.where(begins, 0.0, decay * before) + written[None, :] * B[:, None]

            out = tl.sum(h * C[:, None], 0) + D * x
            share = sigmoid(z, "plain")
            dout = dy * z * share
            tl.store(dz_ptr + at * WIDTH + i, dy * out * share * (1 + z * (1 - share)), mask=has_i)
            dD += dout * x
            dh += dout[None, :] * C[:, None]
            tl.store(dC_ptr + at * N + n, tl.sum(h * dout[None, :], 1), mask=has_n)
            tl.store(dB_ptr + at * N + n, tl.sum(dh * written[None, :], 1), mask=has_n)
            dwritten = tl.sum(dh * B[:, None], 0)
            tl.store(dx_ptr + at * WIDTH + i, dout * D + dwritten * dt, mask=has_i)

            dh = tl.where(begins, 0.0, decay * dh)
            by_decay = tl.where(begins, 0.0, dh * before)  # the gradient of dt A
            dA += by_decay * dt[None, :]
            ddt = tl.sum(by_decay * A, 0) + dwritten * x
            tl.store(ddelta_ptr + at * WIDTH + i, ddt * sigmoid(delta, "plain"), mask=has_i)
        tl.debug_barrier()

    tl.store(dA_ptr + state + i[None, :] + down, dA, mask=has)
    tl.store(dD_ptr + r * WIDTH + i, dD, mask=has_i)
    tl.store(dh_ptr + state + i[None, :] + down, dh, mask=has)
