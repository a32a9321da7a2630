"""Elementwise device functions: roundings, cache prefetch, and sigmoid and tanh in one of three modes.

- ``plain``: Triton's exp; runs everywhere, also in Triton's interpreter.
- ``exact``: the GPU's instructions for powers of two and reciprocals, with errors of about 1e-7.
- ``coarse``: the GPU's tanh instruction, with errors of up to 5e-4, for values that become bf16.
"""

# pyright: reportMissingImports=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def factor(x, TYPE: tl.constexpr, PRECISION: tl.constexpr, MATH: tl.constexpr):
    """A float32 block as a factor of a product in ``TYPE``.

    In TF32 it is rounded to nearest, because tensor cores truncate towards zero. The assembly is declared
    impure, which keeps the compiler from computing the block a second time in the layout of the product.
    """
    if tl.float32 == TYPE and PRECISION == "tf32" and MATH != "plain":
        y = tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], tl.float32, False, 1)
    else:
        y = x.to(TYPE)
    return y


@triton.jit
def dot(a, b, total, PRECISION: tl.constexpr, MATH: tl.constexpr):
    """total + a @ b in float32. Triton's interpreter cannot multiply bf16, and gets float32 copies."""
    if MATH == "plain":
        total = tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision=PRECISION)
    else:
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit
def within(x, TYPE: tl.constexpr):
    """x in ``TYPE``, clamped to the range of float16; NaN stays NaN."""
    if tl.float16 == TYPE:
        x = tl.where(tl.abs(x) > 65504.0, tl.where(x > 0, 65504.0, -65504.0), x)
    return x.to(TYPE)


@triton.jit
def divisor(most):
    """The divisor that brings numbers with maximum ``most`` into the range of float16.

    Its reciprocal is never 0, so infinite numbers stay infinite.
    """
    return tl.minimum(tl.maximum(most, 1e-30), 8e37)


@triton.jit
def materialise(x, MATH: tl.constexpr):
    """x, computed here: the compiler could otherwise defer it and keep its inputs in registers."""
    if MATH != "plain":
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [x], tl.float32, False, 1)
    return x


@triton.jit
def prefetch(rows, number, WIDTH: tl.constexpr, PADDED: tl.constexpr, MATH: tl.constexpr):
    """Prefetch ``number`` contiguous rows of WIDTH numbers into the L2 cache, asynchronously.

    PADDED is a power of two >= the numbers of all rows.
    """
    if MATH != "plain":
        SIZE: tl.constexpr = rows.dtype.element_ty.primitive_bitwidth // 8
        line = tl.arange(0, PADDED * SIZE // 128) * (128 // SIZE)
        at = (rows + tl.minimum(line, number * WIDTH - 1)).to(tl.int64)
        tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], tl.int32, False, 1)


@triton.jit
def _tanh_coarse(x):
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)


@triton.jit
def sigmoid(x, MATH: tl.constexpr):
    """1 / (1 + exp(-x)) of a float32 block."""
    if MATH == "plain":
        y = 1 / (1 + tl.exp(-x))
    elif MATH == "coarse":
        y = 0.5 + 0.5 * _tanh_coarse(0.5 * x)
    else:
        powers = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * -1.4426950408889634], tl.float32, True, 1
        )
        y = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [1 + powers], tl.float32, True, 1)
    return y


@triton.jit
def tanh(x, MATH: tl.constexpr):
    """The hyperbolic tangent of a float32 block, computed by the sigmoid except for ``coarse``."""
    if MATH == "coarse":
        y = _tanh_coarse(x)
    else:
        y = 2 * sigmoid(2 * x, MATH) - 1
    return y
