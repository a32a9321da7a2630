"""Large tensors as float16 with gains: their products are more than twice as fast as those in TF32.

Float16 has the mantissa bits of TF32, but full precision over only 30 powers of two. So numbers are
multiplied by a power of two, their gain, before rounding. For numbers that a kernel is still to compute, the
gain is a guess; the kernel measures their maximum, and if the gain does not fit, it runs a second time
(``tried``). The device decides, without synchronising with the host.

A gain fits if it brings the largest number into [2^-6, 65504]. Then every number has an error of at most
2^-11 of itself, as in TF32, or 2^-19 of the largest number with that gain, whichever is larger.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from recollect.kernels.triton.math import dot
from recollect.kernels.triton.tiling import launch as run
from recollect.kernels.triton.tiling import padded, rounding

_USUAL = 256.0
"""The first guess for layer outputs: it fits maxima from 6e-5 to 255."""
_LEAST, _MOST = tl.constexpr(2.0**-6), tl.constexpr(65504.0)
"""The range for the scaled maximum."""
_OF_ZEROS = tl.constexpr(2.0**126)
"""The gain of all-zero numbers: large, so that it is never the least of several."""
_GUESSED, _SURE = tl.constexpr(10), tl.constexpr(14)
"""The exponent of the scaled maximum, for a sample and for exact maxima; float16 ends at 16."""


@triton.jit
def _size(x):
    """|x|; 0 where x is not finite."""
    size = tl.abs(x)
    return tl.where(size < float("inf"), size, 0)


@triton.jit(do_not_specialize=["n"])
def _settle(
    most,  # [1] or [n] the largest numbers that were found
    given,  # [n] their gains, but for FIRST
    found,  # [n] the gains that fit
    again,  # [1] becomes 1 if a given gain does not fit, but for FIRST
    n,
    APART: tl.constexpr,
    AIM: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The power of two that brings the largest number, unless 0, to about 2^AIM; a gain that fits is kept."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_in = at < n
    largest = _size(tl.load(most + at * APART, is_in, 0))
    power = AIM + 127 - (largest.to(tl.int32, bitcast=True) >> 23)
    power = tl.minimum(tl.maximum(power, -126), 126)
    fit = tl.where(largest > 0, ((power + 127) << 23).to(tl.float32, bitcast=True), 1)
    if not FIRST:
        old = tl.load(given + at, is_in, 1)
        fits = (largest == 0) | ((largest * old >= _LEAST) & (largest * old <= _MOST))
        fit = tl.where(largest == 0, _OF_ZEROS, tl.where(fits, old, fit))
        tl.atomic_max(again, tl.max((is_in & (fits == 0)).to(tl.int32), 0))
    tl.store(found + at, fit, is_in)


@triton.jit(do_not_specialize=["rows", "apart"], do_not_specialize_on_alignment=["go"])
def _narrow(
    x,  # [rows, WIDTH]
    out,  # [rows, WIDTH], ``apart`` numbers from row to row
    gain,  # [1]
    go,  # [1] whether to do anything
    most,  # [1] the largest number, from 0 on
    rows,
    apart,
    WIDTH: tl.constexpr,
    BR: tl.constexpr,
    BW: tl.constexpr,
):
    if tl.load(go) == 0:
        return
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    column = tl.program_id(1) * BW + tl.arange(0, BW)
    is_in = (row < rows)[:, None] & (column < WIDTH)[None, :]
    block = tl.load(x + row[:, None] * WIDTH + column[None, :], is_in, 0)
    tl.store(out + row[:, None] * apart + column[None, :], (block * tl.load(gain)).to(tl.float16), is_in)
    tl.atomic_max(most, tl.max(tl.max(_size(block), 1), 0))


@triton.jit(do_not_specialize=["rows", "B"])
def _multiply(
    a,  # [rows, K] float16, row k with gains[k % B]
    b,  # [K, N] float16
    gains,  # [B]
    gain,  # [1] of b
    out,  # [rows, N]
    rows,
    B,
    K: tl.constexpr,
    N: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    MATH: tl.constexpr,
):
    COLUMNS: tl.constexpr = (N + BN - 1) // BN
    row = (tl.program_id(0) // COLUMNS).to(tl.int64) * BM + tl.arange(0, BM)
    column, k = tl.program_id(0) % COLUMNS * BN + tl.arange(0, BN), tl.arange(0, BK)
    a += tl.minimum(row, rows - 1)[:, None] * K + k[None, :]
    b += k[:, None] * N + column[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in tl.range(0, K, BK):
        if K % BK == 0 and N % BN == 0:
            low, high = tl.load(a), tl.load(b)
        else:
            is_k = k < K - start
            low = tl.load(a, is_k[None, :], 0)
            high = tl.load(b, is_k[:, None] & (column < N)[None, :], 0)
        total = dot(low, high, total, "tf32", MATH)
        a += BK
        b += BK * N
    total *= 1 / tl.load(gain)  # first: the gains of gradients are extreme and could under- or overflow
    total *= (1 / tl.load(gains + row % B))[:, None]
    tl.store(out + row[:, None] * N + column[None, :], total, (row < rows)[:, None] & (column < N)[None, :])


@triton.jit(do_not_specialize=["rows", "B"])
def _level(
    a,  # [rows, WIDTH] float16, row k with gains[k % B]: in place
    gains,  # [B]
    least,  # [1] of all of them
    go,  # [1] whether to do anything
    rows,
    B,
    WIDTH: tl.constexpr,
    BW: tl.constexpr,
):
    if tl.load(go) == 0:
        return
    column, gain = tl.arange(0, BW), tl.load(least)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        ratio = gain / tl.load(gains + row % B)
        if ratio != 1:
            at = a + tl.cast(row, tl.int64) * WIDTH + column
            number = tl.load(at, column < WIDTH, 0).to(tl.float32)
            tl.store(at, (number * ratio).to(tl.float16), column < WIDTH)


class Gains(NamedTuple):
    """The gains of n groups of numbers."""

    each: Tensor  # [n]
    differ: Tensor  # [1] whether they may differ; otherwise all groups with a nonzero number share one


Launch = Callable[[Tensor, Tensor, Tensor], None]
"""Takes gains [n], ``go`` [1], whether to do anything, and ``most`` [n], to be raised to the maxima."""


def tried(launch: Launch, gains: Tensor) -> Gains:
    """Launch with equal ``gains``, and a second time with fitting ones where these do not fit."""
    most = torch.zeros_like(gains)
    go = torch.arange(1, -1, -1, dtype=torch.int32, device=gains.device)
    launch(gains, go[:1], most)
    found, n = torch.empty_like(gains), gains.numel()
    flags = {"APART": 1, "AIM": _SURE, "FIRST": False, "BLOCK": 1024}
    run(_settle, (-(-n // 1024),), most, gains, found, go[1:], n, **flags)
    launch(found, go[1:], most)
    return Gains(found, go[1:])


def guess(*samples: Tensor, n: int = 1) -> Tensor:
    """A gain [n], equal for all, for numbers of the size of the samples."""
    most = reduce(torch.maximum, (torch.linalg.vector_norm(sample, torch.inf) for sample in samples)).view(1)
    found = torch.empty(n, dtype=torch.float32, device=most.device)
    flags = {"APART": 0, "AIM": _GUESSED, "FIRST": True, "BLOCK": 1024}
    run(_settle, (-(-n // 1024),), most, most, found, found, n, **flags)
    return found


def narrow(x: Tensor, out: Tensor) -> Tensor:
    """x [rows, width] as float16 into ``out``, whose rows may be wider; returns its gain, [1]."""
    rows, width = x.shape
    wide = min(padded(width), 256)
    tall = 4096 // wide

    def launch(gain: Tensor, go: Tensor, most: Tensor) -> None:
        grid = (-(-rows // tall), -(-width // wide))
        run(_narrow, grid, x, out, gain, go, most, rows, out.stride(0), WIDTH=width, BR=tall, BW=wide)

    return tried(launch, torch.full((1,), _USUAL, dtype=torch.float32, device=x.device)).each


def multiply(a: Tensor, b: Tensor, gains: Gains) -> Tensor:
    """a @ b in float32, of float16 a [rows, K], whose row k has gain k % n, and float32 b [K, N]."""
    (rows, K), N = a.shape, b.shape[1]
    out, gain = torch.empty(rows, N, dtype=torch.float32, device=a.device), guess(b)
    given = (a, (b * gain).half().contiguous(), gains.each, gain, out, rows, gains.each.numel())
    sizes = {"BM": 128, "BN": min(padded(N), 256), "BK": 64, "num_warps": 8, "num_stages": 4}
    grid = (-(-rows // sizes["BM"]) * -(-N // sizes["BN"]),)
    run(_multiply, grid, *given, K=K, N=N, MATH=rounding(a, "tf32")["MATH"], **sizes)
    return out


def level(a: Tensor, gains: Gains) -> Tensor:
    """Rescale a [rows, width] in place to the least gain of its rows; returns that gain, [1]."""
    (rows, width), (each, differ) = a.shape, gains
    least = each.amin(0, keepdim=True)
    given = (a, each, least, differ, rows, each.numel())
    run(_level, (min(rows, 1024),), *given, WIDTH=width, BW=padded(width))
    return least
