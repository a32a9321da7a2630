"""Linear recurrences over time with resets: h_t = a_t h_{t-1} + b_t, elementwise.

One node of the autograd graph, for real and complex numbers. Its gradient is the same recurrence backwards in
time, with the resets in the same places:

    g_t = dh_t + conj(a_{t+1}) g_{t+1},   db_t = g_t,   da_t = g_t conj(h_{t-1}),   dh0 = conj(a_0) g_0

Two algorithms compute it:

``steps``   one operation for every step: one pass over memory, and an overhead of 3 us a step on a CPU.
``blocks``  segments of about sqrt(T) steps side by side, then the states between segments, then their sum:
            three times the work or more, in about 4 sqrt(T) operations. For very small steps, and for a GPU,
            where small operations cost as much as large ones and resets must not be read on the host.

In float32 on a GPU, ``kernels.triton.scan.fused_scan`` replaces both: one pass over memory in one launch.

A reset selects and never multiplies, so that no NaN passes it. There is no division and no logarithm: the
result has the precision of the plain loop even where products of a underflow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from recollect.base import devices, triton_support
from recollect.kernels.autograd_node import Grads, Kept, Need, Saved, node

Reset = tuple[Tensor, Tensor] | None
"""The rows that reset at a step, and their values after it; None if there are none."""
FEW, MANY = 512, 256
"""On a CPU, ``blocks`` is faster up to FEW numbers in a step (of all rows) and from MANY steps on: with 128
numbers and 1024 steps by a factor of 2.5. With 1024 numbers both are equal; with 128 rows of 128 numbers,
``blocks`` takes 3 to 9 times as long."""


def scan(a: Tensor, b: Tensor, h0: Tensor, first: Tensor, initial: Tensor | None = None) -> Tensor:
    """All h of h_t = a_t h_{t-1} + b_t.

    Args:
        a: [T, B, ...] the factors, or [...] if they are equal for all steps and rows.
        b: [T, B, ...] the summands, real or complex; all tensors have the same dtype.
        h0: [B, ...] the raw state before step 0.
        first: [T, B] where h_{t-1} is ``initial`` instead.
        initial: [1, ...]; None for zero.

    Returns:
        h [T, B, ...].
    """
    forward, backward = _forward, _backward
    if triton_support.suits(torch.view_as_real(b) if b.is_complex() else b):
        from recollect.kernels.triton.scan import fused_scan

        forward, backward = fused_scan.forward, fused_scan.backward
    return node(forward, backward, a, b, h0, first, initial)[0]


def _forward(
    a: Tensor, b: Tensor, h0: Tensor, first: Tensor, initial: Tensor | None, keep: bool
) -> tuple[tuple[Tensor], Kept]:
    """h [T, B, ...], and the inputs of the backward pass; the arguments are those of ``scan``."""
    if initial is not None:  # fold the initial state into the summands
        b = torch.where(_over(first, b), b + a * initial, b)
    if suits_blocks(b):
        h = blocks(a, b, h0, first)
    else:
        h = torch.empty_like(b, memory_format=torch.contiguous_format)
        steps(_each(a, b), b.unbind(), h.unbind(), h0, _resets(b, first, behind=0))
    return (h,), (a, h, h0, first, initial)


def _backward(grads: Grads, saved: Saved, need: Need) -> Grads:
    """The gradients of a, b, h0, first and initial."""
    a, h, h0, first, initial = saved
    needs_a, _, needs_h0, _, needs_initial = need
    back, varies = a.conj().resolve_conj(), a.dim() == h.dim()
    assert grads[0] is not None
    g = _reversed(back, grads[0], first)
    dh0 = dinitial = None
    if needs_h0 or needs_initial:
        before = back * g if needs_initial else (back[:1] if varies else back) * g[:1]
        mask = _over(first, before)
        dh0 = before[0].masked_fill(mask[0], 0)
        if needs_initial:
            dinitial = before.masked_fill_(~mask, 0).sum((0, 1)).unsqueeze(0)
    da = _factors(g, h, h0, first, initial, varies) if needs_a else None
    return da, g, dh0, None, dinitial


def _reversed(a: Tensor, dh: Tensor, first: Tensor) -> Tensor:
    """g [T, B, ...] of g_t = dh_t + a_{t+1} g_{t+1}, without the second term at resets."""
    nothing = torch.zeros_like(dh[0])
    if suits_blocks(dh):
        varies = a.dim() == dh.dim()
        a = torch.cat((nothing[None], a[1:].flip(0))) if varies else a
        resets = torch.cat((torch.zeros_like(first[:1]), first[1:].flip(0)))
        return blocks(a, dh.flip(0), nothing, resets).flip(0)
    g = torch.empty_like(dh, memory_format=torch.contiguous_format)
    resets = _resets(dh, first, behind=1)
    factors = (*_each(a, dh)[1:], nothing)  # not a[0], which may be NaN before a reset at step 0
    steps(factors[::-1], dh.unbind()[::-1], g.unbind()[::-1], nothing, resets[::-1])
    return g


def steps(
    a: Sequence[Tensor], b: Sequence[Tensor], h: Sequence[Tensor], before: Tensor, resets: Sequence[Reset]
) -> None:
    """Write h [B, ...] of every step, from a [B, ...] or [...] and b; ``before`` is the state before them."""
    for factor, term, out, reset in zip(a, b, h, resets, strict=True):
        before = torch.addcmul(term, factor, before, out=out)
        if reset is not None:
            before.index_copy_(0, *reset)


def blocks(a: Tensor, b: Tensor, h0: Tensor, first: Tensor) -> Tensor:
    """h [T, B, ...] by segments side by side; the arguments are those of ``scan``."""
    T, B = first.shape
    length = math.isqrt(T - 1) + 1
    count = -(-T // length)
    varies = a.dim() == b.dim()

    def split(t: Tensor) -> Tensor:  # [T, ...] -> [count, length, ...], padded with zeros
        padded = t.new_zeros(count * length, *t.shape[1:])
        padded[:T] = t
        return padded.view(count, length, *t.shape[1:])

    h, resets = split(b), split(first)
    gain = split(a) if varies else a.expand(1, length, 1, *a.shape)  # [count or 1, length, B or 1, ...]
    for k in range(1, length):
        moved = torch.addcmul(h[:, k], gain[:, k], h[:, k - 1])
        torch.where(_over(resets[:, k], moved), h[:, k], moved, out=h[:, k])

    # After the first reset of a segment its start state has no effect, even if it is NaN.
    product = gain.cumprod(1)
    shut = _over(resets.cumsum(1) > 0, h)  # [count, length, B, 1...]
    carried = torch.empty_like(h[:, 0])
    carried[0] = h0
    for k in range(1, count):
        last = product[k - 1 if varies else 0, -1]
        moved = torch.addcmul(h[k - 1, -1], last, carried[k - 1])
        torch.where(shut[k - 1, -1], h[k - 1, -1], moved, out=carried[k])
    h += (product * carried.unsqueeze(1)).masked_fill_(shut, 0)
    return h.view(count * length, B, *b.shape[2:])[:T]


def suits_blocks(b: Tensor) -> bool:
    """Whether ``blocks`` is faster than ``steps`` for b [T, B, ...]."""
    return devices.synchronises(b) or (b.shape[0] >= MANY and b[0].numel() <= FEW)


def _resets(b: Tensor, first: Tensor, behind: int) -> list[Reset]:
    """The resets of every step of b [T, B, ...]: where ``first`` is set ``behind`` steps later."""
    T, B = first.shape
    resets: list[Reset] = [None] * T
    places = first[behind:].flatten().nonzero().squeeze(1)
    if len(places) > 0:
        hit, counts = torch.unique_consecutive(places // B, return_counts=True)
        rows = (places % B).split(counts.tolist())
        values = b.flatten(0, 1).index_select(0, places).split(counts.tolist())
        for t, *reset in zip(hit.tolist(), rows, values, strict=True):
            resets[t] = (reset[0], reset[1])
    return resets


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
    """``mask`` with trailing dimensions added, to broadcast against ``like``."""
    return mask.view(mask.shape + (1,) * (like.dim() - mask.dim()))
