"""Linear recurrences over time: h_t = a_t h_{t-1} + b_t, elementwise, with a wall at every reset.

Everything that mixes features stands outside of the recurrence, so that it is one large product over
all steps. What is left is this: one node of the autograd graph, for real and complex numbers. Its
gradient is the same recurrence backwards in time,

    g_t = dh_t + conj(a_{t+1}) g_{t+1},   db_t = g_t,   da_t = g_t conj(h_{t-1}),   dh0 = conj(a_0) g_0,

and the walls stand in the same places. There are two ways through it, which agree:

``steps``   one operation for every step. Its work is that of one pass over memory, and what it costs
            beyond that is the call: 3 us a step on a CPU.
``blocks``  stretches of about sqrt(T) steps side by side, then what each hands on to the next, then both
            put together: three times the work or more, in about 4 sqrt(T) operations instead of T. For
            very small steps, and for a GPU, where a small operation costs as much as a large one and
            where it must not be asked in which steps there are walls.

In single precision on a GPU both give way to ``kernels.fused_scan``: one pass over memory, in one operation.

A wall selects, it never multiplies: a row that starts anew gets its value written over whatever the
recurrence made of it, NaN included. Nothing is divided and no logarithm is taken, so that the result has
the precision of the plain loop however far the products of a underflow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recollect.base import devices
from recollect.kernels.triton import available

Wall = tuple[Tensor, Tensor] | None
"""The rows in which a step begins with nothing, and what they are then; None if there are none."""
FEW, MANY = 512, 256
"""On a CPU, blocks win up to so many numbers in a step (of all rows) and from so many steps on: with 128
numbers and 1024 steps by a factor of 2.5. With 1024 numbers it is a draw, and with 128 rows of 128 their
work tells: they take 3 to 9 times as long."""


def scan(a: Tensor, b: Tensor, h0: Tensor, first: Tensor, initial: Tensor | None = None) -> Tensor:
    """All h of h_t = a_t h_{t-1} + b_t; the last one is the state to carry on.

    Args:
        a: [T, B, ...] the factors, or [...] if they are the same for all steps and rows.
        b: [T, B, ...] what each step adds; real or complex, of the same type as all others.
        h0: [B, ...] what step 0 begins with, unless first[0].
        first: [T, B] where h_{t-1} is ``initial`` instead.
        initial: [1, ...]; None for zero.

    Returns:
        h [T, B, ...].
    """
    if available.suits(torch.view_as_real(b) if b.is_complex() else b):
        from recollect.kernels.triton.scan import fused_scan

        return fused_scan.scan(a, b, h0, first, initial)
    tensors = (a, b, h0, initial)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return _Scan.apply(a, b, h0, first, initial)  # pyright: ignore[reportReturnType]
    return _forward(a, b, h0, first, initial)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        a, b, h0, first, initial = inputs
        h = _forward(a, b, h0, first, initial)
        ctx.save_for_backward(a, h, h0, first, initial)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        a, h, h0, first, initial = ctx.saved_tensors
        need_a, need_b, need_h0, _, need_initial = ctx.needs_input_grad
        back = a.conj().resolve_conj()
        varies = a.dim() == h.dim()
        g = _backward(back, grads[0], first)
        dh0 = dinitial = None
        if need_h0 or need_initial:
            before = back * g if need_initial else (back[:1] if varies else back) * g[:1]
            mask = _over(first, before)
            if need_h0:
                dh0 = before[0].masked_fill(mask[0], 0)
            if need_initial:
                dinitial = before.masked_fill_(~mask, 0).sum((0, 1)).unsqueeze(0)
        da = _factors(g, h, h0, first, initial, varies) if need_a else None
        return da, g if need_b else None, dh0, None, dinitial


def _forward(a: Tensor, b: Tensor, h0: Tensor, first: Tensor, initial: Tensor | None) -> Tensor:
    """h [T, B, ...]; the arguments are those of ``scan``."""
    if initial is not None:  # what a step begins with belongs to what it adds
        b = torch.where(_over(first, b), b + a * initial, b)
    if suits_blocks(b):
        return blocks(a, b, h0, first)
    h = torch.empty_like(b, memory_format=torch.contiguous_format)
    steps(_each(a, b), b.unbind(), h.unbind(), h0, _walls(b, first, behind=0))
    return h


def _backward(a: Tensor, dh: Tensor, first: Tensor) -> Tensor:
    """g [T, B, ...] of g_t = dh_t + a_{t+1} g_{t+1}, where nothing comes back through a wall."""
    nothing = torch.zeros_like(dh[0])
    if suits_blocks(dh):
        varies = a.dim() == dh.dim()
        a = torch.cat((nothing[None], a[1:].flip(0))) if varies else a
        walls = torch.cat((torch.zeros_like(first[:1]), first[1:].flip(0)))
        return blocks(a, dh.flip(0), nothing, walls).flip(0)
    g = torch.empty_like(dh, memory_format=torch.contiguous_format)
    walls = _walls(dh, first, behind=1)
    factors = (*_each(a, dh)[1:], nothing)  # not a[0], which a reset at step 0 may have to hide
    steps(factors[::-1], dh.unbind()[::-1], g.unbind()[::-1], nothing, walls[::-1])
    return g


def steps(
    a: Sequence[Tensor],
    b: Sequence[Tensor],
    h: Sequence[Tensor],
    before: Tensor,
    walls: Sequence[Wall],
) -> None:
    """Write h step by step.

    Args:
        a: the factors of every step, [B, ...] or [...].
        b: what every step adds, [B, ...].
        h: where to write, [B, ...] each.
        before: [B, ...] what the first of the steps begins with.
        walls: what stands at every step.
    """
    for factor, term, out, wall in zip(a, b, h, walls, strict=True):
        before = torch.addcmul(term, factor, before, out=out)
        if wall is not None:
            before.index_copy_(0, *wall)


def blocks(a: Tensor, b: Tensor, h0: Tensor, first: Tensor) -> Tensor:
    """h [T, B, ...] by stretches side by side; the arguments are those of ``scan``."""
    T, B = first.shape
    length = math.isqrt(T - 1) + 1
    count = -(-T // length)
    varies = a.dim() == b.dim()

    def cut(t: Tensor) -> Tensor:  # [T, ...] -> [count, length, ...], the missing end filled with zeros
        padded = t.new_zeros(count * length, *t.shape[1:])
        padded[:T] = t
        return padded.view(count, length, *t.shape[1:])

    h, walls = cut(b), cut(first)
    gain = cut(a) if varies else a.expand(1, length, 1, *a.shape)  # [count or 1, length, B or 1, ...]
    for k in range(1, length):
        moved = torch.addcmul(h[:, k], gain[:, k], h[:, k - 1])
        torch.where(_over(walls[:, k], moved), h[:, k], moved, out=h[:, k])

    # Behind the first wall of a stretch nothing of what came before it is left, whatever it was.
    product = gain.cumprod(1)
    shut = _over(walls.cumsum(1) > 0, h)  # [count, length, B, 1...]
    carried = torch.empty_like(h[:, 0])
    carried[0] = h0
    for k in range(1, count):
        last = product[k - 1 if varies else 0, -1]
        moved = torch.addcmul(h[k - 1, -1], last, carried[k - 1])
        torch.where(shut[k - 1, -1], h[k - 1, -1], moved, out=carried[k])
    h += (product * carried.unsqueeze(1)).masked_fill_(shut, 0)
    return h.view(count * length, B, *b.shape[2:])[:T]


def suits_blocks(b: Tensor) -> bool:
    """Whether stretches side by side are faster than one step after another for b [T, B, ...]."""
    return devices.synchronises(b) or (b.shape[0] >= MANY and b[0].numel() <= FEW)


def _walls(b: Tensor, first: Tensor, behind: int) -> list[Wall]:
    """The wall of every step of b [T, B, ...]: where first, ``behind`` steps later."""
    T, B = first.shape
    walls: list[Wall] = [None] * T
    places = first[behind:].flatten().nonzero().squeeze(1)
    if len(places) > 0:
        hit, counts = torch.unique_consecutive(places // B, return_counts=True)
        rows = (places % B).split(counts.tolist())
        values = b.flatten(0, 1).index_select(0, places).split(counts.tolist())
        for t, *wall in zip(hit.tolist(), rows, values, strict=True):
            walls[t] = (wall[0], wall[1])
    return walls


def _each(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """The factors of every step of b."""
    return a.unbind() if a.dim() == b.dim() else (a,) * b.shape[0]


def _factors(g: Tensor, h: Tensor, h0: Tensor, first: Tensor, initial: Tensor | None, varies: bool) -> Tensor:
    """The gradient of a: g_t conj(h_{t-1}), summed over steps and rows unless a ``varies``."""
    da = torch.empty_like(g)
    torch.mul(g[0], h0.conj(), out=da[0])
    torch.mul(g[1:], h[:-1].conj(), out=da[1:])
    if devices.synchronises(first):
        mask = _over(first, da)
        da = da.masked_fill_(mask, 0) if initial is None else torch.where(mask, g * initial.conj(), da)
        return da if varies else da.sum((0, 1))
    places = first.flatten().nonzero().squeeze(1)
    flat = da.flatten(0, 1)
    if initial is None:
        flat.index_fill_(0, places, 0)
    else:
        flat.index_copy_(0, places, g.flatten(0, 1).index_select(0, places) * initial.conj())
    return da if varies else da.sum((0, 1))


def _over(mask: Tensor, like: Tensor) -> Tensor:
    """``mask`` with as many dimensions as ``like``, to go over its last ones."""
    return mask.view(mask.shape + (1,) * (like.dim() - mask.dim()))
