"""The LSTM over packed segments, as one node of the autograd graph.

    i, f, g, o = W_ih x + W_hh h + b        (PyTorch's order of gates in the weights)
    c' = sigmoid(f) c + sigmoid(i) tanh(g)
    h' = sigmoid(o) tanh(c')

Inside, the gates stand in the order o, i, f, g (the rows of the weights rolled by H): o, i, f are one
block for the sigmoid, and i, f, g one block for the gradient, all of whose factors but the cell's
gradient are known before the backward loop begins.

Gradients, with dh and dc those of the outputs of a step:

    dc += dh o (1 - tanh(c')^2)
    d(o, i, f, g) = dh tanh(c') o(1-o),  dc g i(1-i),  dc c f(1-f),  dc i (1-g^2)
    dh(before) = W_hh^T d(o, i, f, g),   dc(before) = dc f
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recollect.cores.kernels.segments import Segments, blocks, carried, survivors


def lstm(
    x: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor, segments: Segments
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer over all segments.

    Args:
        x: [N, D] packed inputs.
        h: [S, H] the state that each segment begins with.
        c: [S, H] likewise.
        w_ih: [4H, D].
        w_hh: [4H, H].
        bias: [4H].
        segments: the layout.

    Returns:
        y [N, H] packed, and h, c [B, H] after the last step of each row.
    """
    inputs = (x, h, c, w_ih, w_hh, bias)
    if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        return _LSTM.apply(*inputs, segments)  # pyright: ignore[reportReturnType]
    y, h, c, _ = _forward(*inputs, segments, keep=False)
    return y, h, c


def _forward(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    bias: Tensor,
    segments: Segments,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    """y [N, H], h and c [B, H], and with ``keep`` what the backward pass needs."""
    sizes, N, (S, H) = segments.sizes, x.shape[0], h.shape
    wx, wh, b = (_roll_and_double(w, H) for w in (w_ih, w_hh, bias))
    wx, wh = wx.t(), wh.t()
    minus_one = x.new_full((), -1.0)

    # [:S] is the start and [S:] what each packed step leaves behind.
    hidden = x.new_empty(S + N, H)
    cell = x.new_empty(S + N if keep else S, H)
    gates = x.new_empty(N, 4 * H)
    squashed = x.new_empty(N if keep else S, H)  # tanh(c')
    hidden[:S] = h
    cell[:S] = c

    h_after = hidden[S:].split(sizes)
    h_before = carried(hidden, segments)
    if keep:
        c_after, c_before, squash = (
            cell[S:].split(sizes),
            carried(cell, segments),
            squashed.split(sizes),
        )
    else:
        c_after = c_before = tuple(cell[:n] for n in sizes)
        squash = tuple(squashed[:n] for n in sizes)
    gate = gates.split(sizes)
    o, i, f, g = (block.split(sizes) for block in gates.split(H, 1))

    for steps, rows in blocks(sizes):
        torch.addmm(b, x[rows], wx, out=gates[rows])
        for k in steps:
            gate[k].addmm_(h_before[k], wh).sigmoid_()
            torch.add(minus_one, g[k], alpha=2, out=g[k])
            torch.mul(f[k], c_before[k], out=c_after[k]).addcmul_(i[k], g[k])
            torch.add(c_after[k], c_after[k], out=squash[k]).sigmoid_()
            torch.add(minus_one, squash[k], alpha=2, out=squash[k])
            torch.mul(o[k], squash[k], out=h_after[k])

    y = hidden[S:]
    h = y.index_select(0, segments.end)
    c = cell.index_select(0, segments.end + S if keep else segments.last)
    return y, h, c, (x, hidden, cell, gates, squashed) if keep else ()


def _roll_and_double(weight: Tensor, H: int) -> Tensor:
    """[4H, ...] from the order i, f, g, o to o, i, f, 2g.

    tanh(g) is then 2 sigmoid(2g) - 1: one sigmoid over all gates, and several times faster on a CPU
    than torch's tanh, with an error of the same order as the rounding of c.
    """
    weight = weight.roll(H, 0)
    weight[3 * H :] *= 2
    return weight


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h: Tensor,
        c: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        bias: Tensor,
        segments: Segments,
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, h, c, kept = _forward(x, h, c, w_ih, w_hh, bias, segments, keep=True)
        ctx.save_for_backward(*kept, w_ih, w_hh)
        ctx.segments = segments
        ctx.set_materialize_grads(False)
        return y, h, c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dh_end: Tensor | None, dc_end: Tensor | None):  # pyright: ignore
        x, hidden, cell, gates, squashed, w_ih, w_hh = ctx.saved_tensors
        segments: Segments = ctx.segments
        sizes, H = segments.sizes, w_hh.shape[1]
        S = sizes[0]
        y = hidden[S:]
        need = ctx.needs_input_grad

        dh = torch.zeros_like(y) if dy is None else dy.clone(memory_format=torch.contiguous_format)
        if dh_end is not None:
            dh.index_add_(0, segments.end, dh_end)
        dc = y.new_zeros(S, H)
        if dc_end is not None:
            dc.index_copy_(0, segments.last, dc_end)
        wx, wh = w_ih.roll(H, 0), w_hh.roll(H, 0)
        dx = torch.empty_like(x) if need[0] else None
        dh_start = torch.empty_like(dc)
        dwx, dwh, db = torch.zeros_like(wx), torch.zeros_like(wh), wx.new_zeros(4 * H)

        plan = blocks(sizes)
        widest = max(rows.stop - rows.start for _, rows in plan)
        scratch = gates.new_empty(widest, 4 * H)
        spare = gates.new_empty(3, widest, H)
        h_before, c_before = carried(hidden, segments), carried(cell, segments)
        dh_after = dh.split(sizes)
        dh_before = (dh_start, *survivors(dh, segments))
        dc_alive = (*(dc[:n] for n in sizes),)
        f = gates[:, 2 * H : 3 * H].split(sizes)

        for steps, rows in reversed(plan):
            inner = sizes[steps.start : steps.stop]
            dgates = scratch[: rows.stop - rows.start]
            dcell = scratch_dcell[: rows.stop - rows.start]
            before = previous(hidden, segments, rows)
            _factors(gates[rows], y[rows], squashed[rows], previous(cell, segments, rows), dgates, dcell)
            dgate, do = dgates.split(inner), dgates[:, :H].split(inner)
            difg = dgates[:, H:].unflatten(1, (3, H)).split(inner)
            into_dc = dcell.split(inner)
            for k in reversed(steps):
                j = k - steps.start
                dc_alive[k].addcmul_(dh_after[k], into_dc[j])
                do[j].mul_(dh_after[k])
                difg[j].mul_(dc_alive[k].unsqueeze(1))
                dc_alive[k].mul_(f[k])
                if k:
                    dh_before[k].addmm_(dgate[j], wh)
            if dx is not None:
                torch.mm(dgates, wx, out=dx[rows])
            dwx.addmm_(dgates.t(), x[rows])
            dwh.addmm_(dgates.t(), before)
            db += dgates.sum(0)

        return (
            dx,
            scratch[:S] @ wh if need[1] else None,
            dc if need[2] else None,
            dwx.roll(-H, 0) if need[3] else None,
            dwh.roll(-H, 0) if need[4] else None,
            db.roll(-H) if need[5] else None,
            None,
        )


def _factors(
    gates: Tensor, y: Tensor, squashed: Tensor, c_before: Tensor, factors: Tensor, into_dc: Tensor
) -> None:
    """What the gradients of a step multiply: [N, 4H] for the gates, [N, H] for dh into dc."""
    H = y.shape[1]
    o, i, _, g = gates.split(H, 1)
    do, di, df, dg = factors.split(H, 1)
    sigmoids = gates[:, : 3 * H]
    torch.addcmul(sigmoids, sigmoids, sigmoids, value=-1, out=factors[:, : 3 * H])
    do.mul_(squashed)
    di.mul_(g)
    df.mul_(c_before)
    torch.mul(i, g, out=dg)
    torch.addcmul(i, dg, g, value=-1, out=dg)
    torch.addcmul(o, y, squashed, value=-1, out=into_dc)
