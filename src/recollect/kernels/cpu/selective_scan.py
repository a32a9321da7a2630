"""The selective scan of Mamba over sequences with resets, as one node of the autograd graph.

    dt = softplus(delta),  h' = exp(dt A) h + (dt x) B,  y = (h' . C + D x) silu(z)

with h [N, I] in every row, a diagonal A [N, I], and B and C [N] for each step. All h of a batch take
gigabytes, so speed depends on the cache. Rows are processed in blocks and time in chunks, so small that
tensors [chunk, rows, N, I] stay in the cache of a CPU core. Only the h between chunks is kept; the backward
pass recomputes the others. Everything without a recurrence (decays, writes, all gradients except dh) is
computed for a whole chunk at once, so the loops over time, in both directions, are one operation a step:

    h[k] += a[k] h[k-1]          dh[k] += a[k+1] dh[k+1]          a = exp(dt A)

At a reset that operation is undone for its row rather than multiplied by zero: 0 * NaN is NaN.

In float32 on a GPU, ``kernels.triton.scan.fused_selective_scan`` does the same in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from recollect.base import devices, triton_support
from recollect.kernels.autograd_node import Grads, Kept, Need, Saved, node

Reset = Tensor | None
"""The rows that reset at a step, or None; where a host read synchronises, a mask of all rows."""
ROWS, STEPS = 8, 8
"""Rows of a block and steps of a chunk on a CPU."""
GPU_STEPS = 16
"""Steps of a chunk on a GPU, where a block is all rows."""
LOG2_E = math.log2(math.e)
"""exp(v) is computed as exp2(v log2 e), which is nearly three times as fast on a CPU."""


def selective_scan(
    x: Tensor,
    delta: Tensor,
    z: Tensor,
    B: Tensor,
    C: Tensor,
    A: Tensor,
    D: Tensor,
    h: Tensor,
    first: Tensor,
) -> tuple[Tensor, Tensor]:
    """T steps of all rows.

    Args:
        x: [T, R, I].
        delta: [T, R, I] the step sizes before the softplus.
        z: [T, R, I] the gates before the silu.
        B: [T, R, N] the write directions.
        C: [T, R, N] the read directions.
        A: [N, I], negative.
        D: [I].
        h: [R, N, I] the raw state before the first step.
        first: [T, R] where h becomes zero before the step.

    Returns:
        y [T, R, I] and h [R, N, I] after the last step.
    """
    forward, backward = _forward, _backward
    if triton_support.suits(x):
        from recollect.kernels.triton.scan import fused_selective_scan as fused

        if A.shape[0] <= fused.MOST_NUMBERS:
            forward, backward = fused.forward, fused.backward
    return node(forward, backward, x, delta, z, B, C, A, D, h, first)


class _Scratch(NamedTuple):
    """Buffers for a chunk, and cached views of them: a view costs as much as a small operation."""

    a: Tensor
    """[K, rows, N, I], like all of them: the decays."""
    h: Tensor
    """The state after each step."""
    dh: Tensor
    product: Tensor
    a_steps: tuple[Tensor, ...]
    h_steps: tuple[Tensor, ...]
    dh_steps: tuple[Tensor, ...]


def _take_room(rooms: dict[tuple[int, int], _Scratch], A: Tensor, x: Tensor, backward: bool) -> _Scratch:
    """The buffers for a chunk of x [K, rows, I], cached by size; only the last chunk and block differ."""
    size = (x.shape[0], x.shape[1])
    if size not in rooms:
        a, h = (A.new_empty(*size, *A.shape) for _ in range(2))
        dh, product = (torch.empty_like(a) if backward else a for _ in range(2))
        rooms[size] = _Scratch(a, h, dh, product, a.unbind(), h.unbind(), dh.unbind())
    return rooms[size]


def _plan(first: Tensor) -> tuple[int, list[tuple[slice, list[Reset]]]]:
    """The steps of a chunk; and the blocks of rows, each with the resets of every step."""
    R = first.shape[1]
    if devices.synchronises(first):
        return GPU_STEPS, [(slice(0, R), list(first.unbind()))]
    blocks = []
    for low in range(0, R, ROWS):
        block = slice(low, min(low + ROWS, R))
        flags = first[:, block]
        resets = flags.nonzero()[:, 1].split(flags.sum(1).tolist())  # nonzero is in the order of time
        blocks.append((block, [reset if len(reset) else None for reset in resets]))
    return STEPS, blocks


def _carry(into: Tensor, factor: Tensor, carried: Tensor, reset: Reset) -> None:
    """into += factor * carried, each [rows, N, I], but not in the rows of ``reset``."""
    if reset is None:
        into.addcmul_(factor, carried)
        return
    if reset.dtype == torch.bool:
        torch.where(reset.view(-1, 1, 1), into, torch.addcmul(into, factor, carried), out=into)
        return
    alone = into.index_select(0, reset)
    into.addcmul_(factor, carried).index_copy_(0, reset, alone)


def _clear(x: Tensor, reset: Reset) -> None:
    """Zeros into the rows of ``reset`` of x [rows, N, I]."""
    if reset is None:
        return
    if reset.dtype == torch.bool:
        x.masked_fill_(reset.view(-1, 1, 1), 0)
    else:
        x.index_fill_(0, reset, 0)


def _states(
    dt: Tensor, written: Tensor, B: Tensor, A: Tensor, h: Tensor, resets: list[Reset], room: _Scratch
) -> None:
    """Write the decays of a chunk and the state after each of its steps into ``room``.

    dt and written = dt x [K, rows, I], B [K, rows, N], A [N, I] times log2 e, h [rows, N, I] the raw state
    before the chunk.
    """
    torch.mul(dt.unsqueeze(2), A, out=room.a).exp2_()
    torch.mul(written.unsqueeze(2), B.unsqueeze(3), out=room.h)
    for a, after, reset in zip(room.a_steps, room.h_steps, resets):
        _carry(after, a, h, reset)
        h = after


def _forward(*inputs: Tensor, keep: bool) -> tuple[tuple[Tensor, Tensor], Kept]:
    """y [T, R, I] and h [R, N, I], and with ``keep`` the inputs of the backward pass."""
    x, delta, z, B, C, A, D, h, first = inputs
    y, h_end = x.new_empty(x.shape), h.new_empty(h.shape)
    read = x.new_empty(x.shape) if keep else y  # h . C
    A_log2 = A * LOG2_E
    steps, blocks = _plan(first)
    between = h.new_empty(-(-len(x) // steps) if keep else 0, *h.shape)  # the states before the chunks
    rooms: dict[tuple[int, int], _Scratch] = {}

    for rows, resets in blocks:
        carried = h[rows]
        chunks = zip(*(t[:, rows].split(steps) for t in (x, delta, z, B, C, y, read)))
        for i, (x_, delta_, z_, B_, C_, y_, read_) in enumerate(chunks):
            if keep:
                between[i, rows] = carried
            room = _take_room(rooms, A_log2, x_, backward=False)
            dt = softplus(delta_)
            _states(dt, dt * x_, B_, A_log2, carried, resets[i * steps :], room)
            carried = room.h_steps[-1].clone()  # the next chunk overwrites it
            out = (C_.unsqueeze(2) @ room.h).squeeze(2)
            if keep:
                read_.copy_(out)
            torch.mul(out.addcmul_(x_, D), silu(z_), out=y_)
        h_end[rows] = carried
    return (y, h_end), (x, delta, z, B, C, A, D, first, read, between) if keep else ()


def _backward(grads: Grads, saved: Saved, need: Need) -> Grads:
    """The gradients of x, delta, z, B, C, A, D and h."""
    (dy, dh_end), (*sequences, A, D, first, read, between) = grads, saved
    x = sequences[0]
    grads = [t.new_empty(t.shape) for t in sequences]
    dy = torch.zeros_like(x) if dy is None else dy
    dh_start = torch.zeros_like(between[0]) if dh_end is None else dh_end.clone()
    weights = A, A * LOG2_E, D
    totals = torch.zeros_like(A), torch.zeros_like(D)
    steps, blocks = _plan(first)
    rooms: dict[tuple[int, int], _Scratch] = {}

    for rows, resets in blocks:
        given = list(zip(*(t[:, rows].split(steps) for t in (*sequences, read, dy))))
        wanted = list(zip(*(t[:, rows].split(steps) for t in grads)))
        dh = dh_start[rows]
        for i in reversed(range(len(given))):
            room = _take_room(rooms, A, given[i][0], backward=True)
            here = resets[i * steps : (i + 1) * steps]
            dh = _chunk_backward(dh, between[i, rows], given[i], wanted[i], weights, totals, here, room)
        dh_start[rows] = dh
    return *grads, *totals, dh_start


def _chunk_backward(
    dh_end: Tensor,
    before: Tensor,
    given: Sequence[Tensor],
    grads: Sequence[Tensor],
    weights: tuple[Tensor, Tensor, Tensor],
    totals: tuple[Tensor, Tensor],
    resets: list[Reset],
    room: _Scratch,
) -> Tensor:
    """Back-propagate through one chunk; returns the gradient [rows, N, I] of the raw state before it.

    Args:
        dh_end: [rows, N, I] the gradient of the state after it.
        before: [rows, N, I] the raw state before it.
        given: x, delta, z [K, rows, I], B, C [K, rows, N], the reads and dy [K, rows, I].
        grads: of x, delta, z, B and C, to be filled.
        weights: A [N, I], the same times log2 e, and D [I].
        totals: the gradients of A and D, to be added to.
        resets: of every step.
        room: buffers [K, rows, N, I].
    """
    x, delta, z, B, C, read, dy = given
    dx, ddelta, dz, dB, dC = grads
    A, A_log2, D = weights
    _, h, dh, product, a_steps, h_steps, dh_steps = room
    dt = softplus(delta)
    written = dt * x
    _states(dt, written, B, A_log2, before, resets, room)

    # y = (read + D x) silu(z)
    share = torch.sigmoid(z)
    gate = z * share
    dout = dy * gate
    slope = gate.addcmul_(share, 1 - gate)  # of the silu
    torch.mul(torch.addcmul(read, x, D).mul_(dy), slope, out=dz)
    dout_ = dout.unsqueeze(2)
    dC.copy_(torch.mul(h, dout_, out=product).sum(3))
    torch.mul(dout_, C.unsqueeze(3), out=dh)
    dh_steps[-1].add_(dh_end)
    for k in range(len(resets) - 1, 0, -1):
        _carry(dh_steps[k - 1], a_steps[k], dh_steps[k], resets[k])
    dB.copy_(torch.mul(dh, written.unsqueeze(2), out=product).sum(3))
    dwritten = (B.unsqueeze(2) @ dh).squeeze(2)

    # The gradient of each step's input state; its product with that state is the gradient of dt A.
    back = room.a.mul_(dh)
    dh_start = a_steps[0].clone()
    _clear(dh_start, resets[0])
    for k, reset in enumerate(resets):
        a_steps[k].mul_(h_steps[k - 1] if k else before)
        _clear(a_steps[k], reset)
    ddt = torch.mul(back, A, out=product).sum(2)
    totals[0].add_(back.mul_(dt.unsqueeze(2)).sum((0, 1)))
    totals[1].add_((dout * x).sum((0, 1)))

    torch.mul(ddt.addcmul_(dwritten, x), torch.sigmoid(delta), out=ddelta)
    torch.mul(dout, D, out=dx).addcmul_(dwritten, dt)
    return dh_start
