"""Linear layers with few inputs or few outputs, in Triton: sums of float32 products without rounded factors.

``shallow`` has few inputs, ``narrow`` few outputs. The order of a sum depends only on the number of inputs,
so the bits of a result depend neither on the number of rows nor on the number of outputs.

The backward passes sum gradients of weights over rows, in as many parallel sums as there are threads. Each
program writes one row of ``sums``; torch sums these in a fixed order.
"""

# A type checker cannot follow Triton's functions: their conditions are decided at compile time.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAssignmentType=false
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false
# Triton's tuples cannot be unpacked within another:
# ruff: noqa: RUF005

from __future__ import annotations

import triton
import triton.language as tl

from recollect.kernels.triton.math import tanh


@triton.jit(do_not_specialize=["N"])
def narrow(
    x,  # [N, K]
    w,  # [M, K]
    b,  # [M], with BIAS
    y,  # [N, M]
    N,
    K: tl.constexpr,
    M: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """ROWS rows of y = x W^T + b. A thread sums inputs that are CHUNK apart, then threads add their sums."""
    top = tl.program_id(0).to(tl.int64) * ROWS
    row, unit = tl.arange(0, ROWS), tl.arange(0, CHUNK)
    is_row = row < N - top
    chunks = ()
    for k in tl.static_range(0, K, CHUNK):
        there = is_row[:, None] & (k + unit < K)[None, :]
        chunks = chunks + (tl.load(x + top * K + row[:, None] * K + (k + unit)[None, :], there, 0),)
    for m in tl.static_range(M):
        total = tl.zeros((ROWS, CHUNK), tl.float32)
        for k in tl.static_range(0, K, CHUNK):
            weights = tl.load(w + m * K + k + unit, k + unit < K, 0)
            total = tl.fma(chunks[k // CHUNK], weights[None, :], total)
        found = tl.sum(total, 1)
        if BIAS:
            found += tl.load(b + m)
        tl.store(y + top * M + row * M + m, found, is_row)


@triton.jit(do_not_specialize=["N"])
def narrow_backward(
    g,  # [N, M] the gradient of y
    x,  # [N, K]
    w,  # [M, K]
    dx,  # [N, K], with DX
    sums,  # [programs, M K + M] of dW and db
    N,
    K: tl.constexpr,
    M: tl.constexpr,
    DX: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """dx, and one program's part of dW and db: CHUNKS x CHUNK inputs, over a strided set of rows."""
    program, row = tl.program_id(0), tl.arange(0, ROWS)
    begin = tl.program_id(1) * (CHUNKS * CHUNK)
    unit = begin + tl.arange(0, CHUNK)
    weights, totals, biases = (), (), ()
    for _ in tl.static_range(M):
        biases = biases + (tl.zeros((ROWS,), tl.float32),)
    for c in tl.static_range(CHUNKS):
        k = c * CHUNK + unit
        for m in tl.static_range(M):
            totals = totals + (tl.zeros((ROWS, CHUNK), tl.float32),)
            if DX:
                weights = weights + (tl.load(w + m * K + k, k < K, 0),)
    for top in tl.range(program * ROWS, N, tl.num_programs(0) * ROWS, num_stages=STAGES):
        is_row = top + row < N
        at = tl.cast(top, tl.int64)
        gradients, more_biases, more = (), (), ()
        for m in tl.static_range(M):
            gradient = tl.load(g + at * M + row * M + m, is_row, 0)
            gradients = gradients + (gradient,)
            more_biases = more_biases + (biases[m] + gradient,)
        for c in tl.static_range(CHUNKS):
            k = c * CHUNK + unit
            there = is_row[:, None] & (k < K)[None, :]
            place = row[:, None] * K + k[None, :]
            inputs = tl.load(x + at * K + place, there, 0)
            for m in tl.static_range(M):
                more = more + (tl.fma(inputs, gradients[m][:, None], totals[c * M + m]),)
            if DX:
                total = tl.zeros((ROWS, CHUNK), tl.float32)
                for m in tl.static_range(M):
                    total = tl.fma(gradients[m][:, None], weights[c * M + m][None, :], total)
                tl.store(dx + at * K + place, total, there)
        totals, biases = more, more_biases
    sums += tl.cast(program, tl.int64) * (M * K + M)
    for c in tl.static_range(CHUNKS):
        k = c * CHUNK + unit
        for m in tl.static_range(M):
            tl.store(sums + m * K + k, tl.sum(totals[c * M + m], 0), k < K)
    for m in tl.static_range(M):
        tl.store(sums + M * K + m, tl.sum(biases[m], 0), begin == 0)


@triton.jit(do_not_specialize=["N"])
def shallow(
    x,  # [N, K]
    w,  # [M, K]
    b,  # [M], with BIAS
    y,  # [N, M]
    N,
    K: tl.constexpr,
    M: tl.constexpr,
    BIAS: tl.constexpr,
    TANH: tl.constexpr,
    MATH: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
):
    """y = x W^T + b, or its tanh: UNITS outputs, over a strided set of rows."""
    row, unit = tl.arange(0, ROWS), tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    is_unit = unit < M
    weights = ()
    for k in tl.static_range(K):
        weights = weights + (tl.load(w + unit * K + k, is_unit, 0),)
    start = tl.zeros((UNITS,), tl.float32)
    if BIAS:
        start = tl.load(b + unit, is_unit, 0)
    for top in tl.range(tl.program_id(0) * ROWS, N, tl.num_programs(0) * ROWS):
        is_row = top + row < N
        at = tl.cast(top, tl.int64)
        total = tl.broadcast_to(start[None, :], (ROWS, UNITS))
        for k in tl.static_range(K):
            inputs = tl.load(x + at * K + row * K + k, is_row, 0)
            total = tl.fma(inputs[:, None], weights[k][None, :], total)
        if TANH:
            total = tanh(total, MATH)
        tl.store(y + at * M + row[:, None] * M + unit[None, :], total, is_row[:, None] & is_unit[None, :])


@triton.jit(do_not_specialize=["N"])
def shallow_backward(
    g,  # [N, M] the gradient of y
    y,  # [N, M], with TANH
    x,  # [N, K]
    dz,  # [N, M] the gradient of the input of the tanh, with TANH and KEEP
    sums,  # [programs, M K + M] of dW and db
    N,
    K: tl.constexpr,
    M: tl.constexpr,
    TANH: tl.constexpr,
    KEEP: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One program's part of dW and db: UNITS outputs, over a strided set of rows."""
    program, row = tl.program_id(0), tl.arange(0, ROWS)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    is_unit = unit < M
    totals = ()
    for _ in tl.static_range(K):
        totals = totals + (tl.zeros((ROWS, UNITS), tl.float32),)
    biases = tl.zeros((ROWS, UNITS), tl.float32)
    for top in tl.range(program * ROWS, N, tl.num_programs(0) * ROWS, num_stages=STAGES):
        is_row = top + row < N
        at = tl.cast(top, tl.int64)
        there = is_row[:, None] & is_unit[None, :]
        place = at * M + row[:, None] * M + unit[None, :]
        gradient = tl.load(g + place, there, 0)
        if TANH:
            output = tl.load(y + place, there, 0)
            gradient *= 1 - output * output
            if KEEP:
                tl.store(dz + place, gradient, there)
        more = ()
        for k in tl.static_range(K):
            inputs = tl.load(x + at * K + row * K + k, is_row, 0)
            more = more + (tl.fma(gradient, inputs[:, None], totals[k]),)
        totals = more
        biases += gradient
    sums += tl.cast(program, tl.int64) * (M * K + M)
    for k in tl.static_range(K):
        tl.store(sums + unit * K + k, tl.sum(totals[k], 0), is_unit)
    tl.store(sums + M * K + unit, tl.sum(biases, 0), is_unit)
