"""The LSTM over packed segments, as one node of the autograd graph.

    i, f, g, o = W_ih x + W_hh h + b        (PyTorch's order of gates)
    c' = sigmoid(f) c + sigmoid(i) tanh(g)
    h' = sigmoid(o) tanh(c')

Gradients, with dh and dc those of the outputs of a step:

    dc += dh o (1 - tanh(c')^2)
    d(i, f, g, o) = dc g i(1-i),  dc c f(1-f),  dc i (1-g^2),  dh tanh(c') o(1-o)
    dh(before) = W_hh^T d(i, f, g, o),   dc(before) = dc f

All factors except dh and dc are known before the backward loop, and are computed for many steps at once; the
loop itself is four small operations and a product.

For speed, tanh(v) is computed as 2 sigmoid(2v) - 1: one sigmoid serves all gates and is several times faster
on a CPU than torch's tanh, with an error of the order of the rounding of c. The weight rows of g are doubled
for it, and the cell is stored as 2c; both are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.kernels.autograd_node import Grads, Kept, Need, Saved, node
from recollect.kernels.segments import Segments, scratch_rows


def lstm(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    segments: Segments,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer over a batch of sequences with resets.

    Args:
        x: [T, B, D].
        h: [S, H] the start state of each segment.
        c: [S, H] likewise.
        w_ih: [4H, D].
        w_hh: [4H, H].
        b_ih: [4H].
        b_hh: [4H].
        segments: the packed layout.

    Returns:
        y [T, B, H], and h, c [B, H] after the last step.
    """
    return node(_forward, _backward, x, h, c, w_ih, w_hh, b_ih, b_hh, segments=segments)


def _forward(*inputs: Tensor, segments: Segments, keep: bool) -> tuple[tuple[Tensor, ...], Kept]:
    """y [T, B, H], h and c [B, H], and with ``keep`` the inputs of the backward pass."""
    x, h, c, w_ih, w_hh, b_ih, b_hh = inputs
    sizes, (S, H) = segments.sizes, h.shape
    x = segments.pack(x)  # [N, D]
    N = x.shape[0]
    wx, wh, bias = _double_g(w_ih).t(), _double_g(w_hh).t(), _double_g(b_ih + b_hh)
    minus_one = x.new_full((), -1.0)

    # [:S] holds the start states and [S:] the state after each packed step; the cell is 2c.
    hidden = x.new_empty(S + N, H)
    cell = x.new_empty(S + N if keep else S, H)
    squashed = x.new_empty(N if keep else S, H)  # tanh(c')
    gates = x.new_empty(N, 4 * H)
    hidden[:S] = h
    torch.add(c, c, out=cell[:S])

    h_before, h_after = segments.carried(hidden), hidden[S:].split(sizes)
    if keep:
        c_before, c_after, squash = segments.carried(cell), cell[S:].split(sizes), squashed.split(sizes)
    else:
        c_before = c_after = segments.prefixes(cell)
        squash = segments.prefixes(squashed)
    gate = gates.split(sizes)
    i, f, g, o = (part.split(sizes) for part in gates.split(H, 1))

    for steps, rows in segments.blocks():
        torch.addmm(bias, x[rows], wx, out=gates[rows])
        for k in steps:
            gate[k].addmm_(h_before[k], wh).sigmoid_()
            torch.add(minus_one, g[k], alpha=2, out=g[k])
            new = torch.mul(f[k], c_before[k], out=c_after[k]).addcmul_(i[k], g[k], value=2)
            torch.sigmoid(new, out=squash[k])
            torch.add(minus_one, squash[k], alpha=2, out=squash[k])
            torch.mul(o[k], squash[k], out=h_after[k])

    y = hidden[S:]
    h = y.index_select(0, segments.end)
    c = cell[S:].index_select(0, segments.end) if keep else cell.index_select(0, segments.last)
    saved = (x, hidden, cell, gates, squashed, w_ih, w_hh) if keep else ()
    return (segments.unpack(y), h, c.mul_(0.5)), saved


def _double_g(weight: Tensor) -> Tensor:
    """A copy of weight [4H, ...] with the rows of g doubled."""
    weight = weight.clone(memory_format=torch.contiguous_format)
    H = weight.shape[0] // 4
    weight[2 * H : 3 * H].mul_(2)
    return weight


def _backward(grads: Grads, saved: Saved, need: Need, segments: Segments) -> Grads:
    """The gradients of x, h, c, w_ih, w_hh, b_ih and b_hh."""
    (dy, dh_end, dc_end), (x, hidden, cell, gates, squashed, w_ih, w_hh) = grads, saved
    sizes, H = segments.sizes, w_hh.shape[1]
    S = sizes[0]
    y = hidden[S:]

    # dh [N, H] accumulates gradients from later steps; dc [S, H] runs back along the segments.
    dh, dc = segments.pack_gradients(dy, dh_end, y), y.new_zeros(S, H)
    if dc_end is not None:
        dc.index_copy_(0, segments.last, dc_end)
    dx = torch.empty_like(x) if need[0] else None
    dw_ih, dw_hh, db = torch.empty_like(w_ih), torch.empty_like(w_hh), w_hh.new_empty(4 * H)

    plan = segments.blocks()
    scratch = scratch_rows(gates, plan, 4 * H)
    into_dc, h_block, c_block = (scratch_rows(gates, plan, H) for _ in range(3))
    ones = gates.new_ones(scratch.shape[0])
    h_before, c_before = segments.carried(hidden), segments.carried(cell)
    dh_after, dh_before = dh.split(sizes), (dh, *segments.survivors(dh))
    dc_alive, dc_wide = segments.prefixes(dc), segments.prefixes(dc.unsqueeze(1))
    f = gates[:, H : 2 * H].split(sizes)
    beta = 0  # the first block writes the gradients of the weights, the others add to them

    for steps, rows in reversed(plan):
        n, here = rows.stop - rows.start, slice(steps.start, steps.stop)
        h_was = segments.before(hidden, h_before, (steps, rows), h_block)
        c_was = segments.before(cell, c_before, (steps, rows), c_block)
        dgates = scratch[:n]
        _factors(gates[rows], y[rows], squashed[rows], c_was, dgates, into_dc[:n])
        dgate = dgates.split(sizes[here])
        do = dgates[:, 3 * H :].split(sizes[here])
        difg = dgates[:, : 3 * H].unflatten(1, (3, H)).split(sizes[here])
        dh_to_dc = into_dc[:n].split(sizes[here])
        for k in reversed(steps):
            j = k - steps.start
            dc_alive[k].addcmul_(dh_after[k], dh_to_dc[j])
            do[j].mul_(dh_after[k])
            difg[j].mul_(dc_wide[k])
            dc_alive[k].mul_(f[k])
            if k:
                dh_before[k].addmm_(dgate[j], w_hh)
        if dx is not None:
            torch.mm(dgates, w_ih, out=dx[rows])
        dw_ih.addmm_(dgates.t(), x[rows], beta=beta)
        dw_hh.addmm_(dgates.t(), h_was, beta=beta)
        db.addmv_(dgates.t(), ones[:n], beta=beta)
        beta = 1

    dx = None if dx is None else segments.unpack(dx)
    dh_start = scratch[:S] @ w_hh if need[1] else None  # the block of step 0 came last
    return dx, dh_start, dc, dw_ih, dw_hh, db, db.clone()


def _factors(
    gates: Tensor, y: Tensor, squashed: Tensor, c_before: Tensor, factors: Tensor, into_dc: Tensor
) -> None:
    """Write the factors of a step's gradients: [n, 4H] for the gates, [n, H] from dh to dc."""
    H = y.shape[1]
    i, _, g, o = gates.split(H, 1)
    di, df, dg, do = factors.split(H, 1)
    torch.addcmul(gates, gates, gates, value=-1, out=factors)  # s(1-s); g's part is overwritten
    di.mul_(g)
    df.mul_(c_before).mul_(0.5)  # c_before is 2c
    torch.mul(i, g, out=dg)
    torch.addcmul(i, dg, g, value=-1, out=dg)
    do.mul_(squashed)
    torch.addcmul(o, y, squashed, value=-1, out=into_dc)
