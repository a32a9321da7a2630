"""A causal convolution over time, each channel by itself, and a silu, over sequences with resets.

    y[t] = silu(bias + sum_j weight[K-1-j] x[t-j])        j = 0 .. K-1, as far as the episode reaches back

Before an episode's first step there are zeros; before the sequence's first step stands the window that
was carried. One node of the autograd graph, in blocks of rows that stay in the cache of a CPU core.
Every tap is added to all steps at once; at the few steps where a reset lies in between it is taken
back, by selection: a factor of zero would let a NaN through.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import silu

ROWS = 4
"""Rows of a block on a CPU; on a GPU a block is all rows."""


def causal_conv(
    x: Tensor, window: Tensor, weight: Tensor, bias: Tensor, first: Tensor
) -> tuple[Tensor, Tensor]:
    """All steps.

    Args:
        x: [T, B, I].
        window: [B, K-1, I] the inputs before the first step, the oldest first, raw.
        weight: [K, I], the oldest step's first.
        bias: [I].
        first: [T, B].

    Returns:
        y [T, B, I], and the window [B, K-1, I] after the last step.
    """
    inputs = (x, window, weight, bias)
    if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        return _Conv.apply(*inputs, first)  # pyright: ignore[reportReturnType]
    y, window, _ = _forward(*inputs, first, keep=False)
    return y, window


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        y, window, sums = _forward(*inputs, keep=True)
        x, before, weight, _, first = inputs
        ctx.save_for_backward(x, before, weight, first, sums)
        ctx.set_materialize_grads(False)
        return y, window

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        return *_backward(*grads, *ctx.saved_tensors), None


def _age(first: Tensor, reach: int) -> Tensor:
    """[T, B] the steps since the episode began; ``reach`` or more where that was before the sequence."""
    time = torch.arange(first.shape[0], device=first.device).unsqueeze(1)
    return time - torch.where(first, time, -reach).cummax(0).values


def _blocks(first: Tensor, reach: int) -> Iterator[tuple[slice, Tensor, list[Tensor]]]:
    """Every block of rows, the age [rows] of its last step, and of each tap j = 1..reach where it is cut.

    A cut is a place in the block's [T * rows] whose episode began fewer than j steps before.
    """
    ages = _age(first, reach)
    rows = ROWS if first.device.type == "cpu" else first.shape[1]
    for low in range(0, first.shape[1], rows):
        block = slice(low, min(low + rows, first.shape[1]))
        age = ages[:, block].flatten()
        young = (age < reach).nonzero().squeeze(1)
        age = age.index_select(0, young)
        yield block, ages[-1, block], [young[age < j] for j in range(1, reach + 1)]


def _sources(x: Tensor, window: Tensor, j: int) -> list[tuple[slice, Tensor]]:
    """Where the inputs of j steps ago are: which steps find theirs in ``window``, and which in ``x``.

    x [T, rows, I], window [reach, rows, I]; works for gradients in their places as well.
    """
    T, reach = x.shape[0], window.shape[0]
    old = min(j, T)
    found = [(slice(0, old), window[reach - j : reach - j + old])]
    return [*found, (slice(old, T), x[: T - old])] if old < T else found


def _forward(
    x: Tensor, window: Tensor, weight: Tensor, bias: Tensor, first: Tensor, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y [T, B, I], the window after the last step, and with ``keep`` the sums before the silu."""
    T, reach = x.shape[0], window.shape[1]
    y, window_end = x.new_empty(x.shape), window.new_empty(window.shape)
    sums = x.new_empty(x.shape if keep else 0)
    scratch = x.new_empty(T * ROWS if x.device.type == "cpu" else T * x.shape[1], x.shape[2])
    for rows, age, cuts in _blocks(first, reach):
        x_rows, before = x[:, rows], window[rows].transpose(0, 1)  # [reach, rows, I]
        flat = scratch[: T * len(age)]
        total = flat.unflatten(0, (T, len(age)))
        torch.addcmul(bias, x_rows, weight[reach], out=total)
        for j, cut in enumerate(cuts, 1):
            alone = flat.index_select(0, cut)
            for steps, source in _sources(x_rows, before, j):
                total[steps].addcmul_(source, weight[reach - j])
            flat.index_copy_(0, cut, alone)
        if keep:
            sums[:, rows] = total
        y[:, rows] = silu(total, inplace=True)
        for j in range(reach):
            seen = x_rows[T - 1 - j] if j < T else before[reach + T - 1 - j]
            window_end[rows, reach - 1 - j] = seen.where((age >= j).unsqueeze(1), 0)
    return y, window_end, sums


def _backward(
    dy: Tensor | None,
    dwindow_end: Tensor | None,
    x: Tensor,
    window: Tensor,
    weight: Tensor,
    first: Tensor,
    sums: Tensor,
) -> tuple[Tensor, ...]:
    """The gradients of x, window, weight and bias."""
    T, reach = x.shape[0], window.shape[1]
    dx, dwindow = x.new_empty(x.shape), window.new_zeros(window.shape)
    dweight, dbias = torch.zeros_like(weight), torch.zeros_like(weight[0])
    places = T * ROWS if x.device.type == "cpu" else T * x.shape[1]
    scratch = [x.new_empty(places, x.shape[2]) for _ in range(2)]
    for rows, age, cuts in _blocks(first, reach):
        before = window[rows].transpose(0, 1)
        dx_rows, dbefore = dx[:, rows], dwindow[rows].transpose(0, 1)
        if dy is None:
            dx_rows.zero_()
        else:
            dsum, product = (buffer[: T * len(age)].unflatten(0, (T, len(age))) for buffer in scratch)
            _silu_backward(dy[:, rows], sums[:, rows], dsum, product)
            dbias += dsum.sum((0, 1))
            _taps_backward(dsum, product, x[:, rows], before, weight, cuts, dx_rows, dbefore, dweight)
        if dwindow_end is not None:
            for j in range(reach):
                dseen = dx_rows[T - 1 - j] if j < T else dbefore[reach + T - 1 - j]
                dseen += dwindow_end[rows, reach - 1 - j].where((age >= j).unsqueeze(1), 0)
    return dx, dwindow, dweight, dbias


def _silu_backward(dy: Tensor, sums: Tensor, dsum: Tensor, scratch: Tensor) -> None:
    """dsum = dy (s + v s (1 - s)) with v = sums and s its sigmoid."""
    share = torch.sigmoid(sums, out=scratch)
    torch.mul(sums, share, out=dsum)
    dsum.addcmul_(share, 1 - dsum)
    dsum.mul_(dy)


def _taps_backward(
    dsum: Tensor,
    product: Tensor,
    x: Tensor,
    before: Tensor,
    weight: Tensor,
    cuts: list[Tensor],
    dx: Tensor,
    dbefore: Tensor,
    dweight: Tensor,
) -> None:
    """Back through the taps of a block: fills dx, adds to dbefore and dweight; dsum is used up.

    dsum, product (scratch), x, dx [T, rows, I]; before, dbefore [reach, rows, I].
    """
    reach = len(cuts)
    torch.mul(dsum, weight[reach], out=dx)
    dweight[reach] += torch.mul(dsum, x, out=product).sum((0, 1))
    for j, cut in enumerate(cuts, 1):
        dsum.flatten(0, 1).index_fill_(0, cut, 0)  # nor do older taps reach there
        for (steps, source), (_, dsource) in zip(_sources(x, before, j), _sources(dx, dbefore, j)):
            dsource.addcmul_(dsum[steps], weight[reach - j])
            torch.mul(dsum[steps], source, out=product[steps])
        product.flatten(0, 1).index_fill_(0, cut, 0)
        dweight[reach - j] += product.sum((0, 1))
