"""The GRU over packed segments, as one node of the autograd graph.

    r, z = sigmoid(W_ih x + b_ih + W_hh h + b_hh)       (PyTorch's order r, z, n in the weights)
    n    = tanh(W_in x + b_in + r (W_hn h + b_hn))
    h'   = n + z (h - n)

The gradient of a step is linear in dh, with factors that are known before the backward loop. They are in the
order (m, r, z, n), where m is the recurrent part of n: m, r, z propagate through W_hh and r, z, n through
W_ih, each as one block.

    dn = dh (1-z)(1-n^2),  dm = dn r,  dr = dn (W_hn h + b_hn) r(1-r),  dz = dh (h-n) z(1-z)
    dh(before) = dh z + W_hh^T d(r, z, m)

tanh is computed by the sigmoid, as in ``kernels.cpu.lstm``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.kernels.autograd_node import Grads, Kept, Need, Saved, node
from recollect.kernels.segments import Segments, scratch_rows


def gru(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, segments: Segments
) -> tuple[Tensor, Tensor]:
    """One layer over a batch of sequences with resets.

    Args:
        x: [T, B, D].
        h: [S, H] the start state of each segment.
        w_ih: [3H, D].
        w_hh: [3H, H].
        b_ih: [3H].
        b_hh: [3H].
        segments: the packed layout.

    Returns:
        y [T, B, H], and h [B, H] after the last step.
    """
    return node(_forward, _backward, x, h, w_ih, w_hh, b_ih, b_hh, segments=segments)


def _forward(*inputs: Tensor, segments: Segments, keep: bool) -> tuple[tuple[Tensor, Tensor], Kept]:
    """y [T, B, H] and h [B, H], and with ``keep`` the inputs of the backward pass."""
    x, h, w_ih, w_hh, b_ih, b_hh = inputs
    sizes, (S, H) = segments.sizes, h.shape
    x = segments.pack(x)  # [N, D]
    N = x.shape[0]
    wx, wh = w_ih.t(), w_hh.t()
    minus_one = x.new_full((), -1.0)

    # [:S] holds the start states and [S:] the state after each packed step.
    hidden = x.new_empty(S + N, H)
    gates = x.new_empty(N, 3 * H)
    product = x.new_empty(S, 3 * H)  # W_hh h + b_hh
    memory = x.new_empty(N if keep else 0, H)  # its part for n, which the backward pass needs
    hidden[:S] = h

    h_before, h_after = segments.carried(hidden), hidden[S:].split(sizes)
    all_part = segments.prefixes(product)
    rz_part, n_part = (segments.prefixes(part) for part in product.split((2 * H, H), 1))
    rz = gates[:, : 2 * H].split(sizes)
    r, z, new = (part.split(sizes) for part in gates.split(H, 1))
    kept = memory.split(sizes) if keep else ()

    for steps, rows in segments.blocks():
        torch.addmm(b_ih, x[rows], wx, out=gates[rows])
        for k in steps:
            torch.addmm(b_hh, h_before[k], wh, out=all_part[k])
            rz[k].add_(rz_part[k]).sigmoid_()
            if keep:
                kept[k].copy_(n_part[k])
            new[k].addcmul_(r[k], n_part[k])
            torch.add(new[k], new[k], out=new[k]).sigmoid_()  # tanh(v) = 2 sigmoid(2v) - 1
            torch.add(minus_one, new[k], alpha=2, out=new[k])
            torch.lerp(new[k], h_before[k], z[k], out=h_after[k])

    y = hidden[S:]
    outputs = segments.unpack(y), y.index_select(0, segments.end)
    return outputs, (x, hidden, gates, memory, w_ih, w_hh) if keep else ()


def _backward(grads: Grads, saved: Saved, need: Need, segments: Segments) -> Grads:
    """The gradients of x, h, w_ih, w_hh, b_ih and b_hh."""
    (dy, dh_end), (x, hidden, gates, memory, w_ih, w_hh) = grads, saved
    sizes, H = segments.sizes, w_hh.shape[1]
    S = sizes[0]
    weight = w_hh.roll(H, 0)  # n, r, z: the order of m, r, z

    # dh [N, H] accumulates gradients from later steps.
    dh = segments.pack_gradients(dy, dh_end, hidden[S:])
    dh_start = dh.new_zeros(S, H) if need[1] else None
    dx = torch.empty_like(x) if need[0] else None
    dw_ih, dw_mrz, db = torch.empty_like(w_ih), torch.empty_like(w_hh), w_hh.new_empty(4 * H)

    plan = segments.blocks()
    scratch = scratch_rows(gates, plan, 4 * H)
    h_block = scratch_rows(gates, plan, H)
    ones = gates.new_ones(scratch.shape[0])
    h_before = segments.carried(hidden)
    dh_after, dh_before = dh.split(sizes), (dh_start, *segments.survivors(dh))
    z = gates[:, H : 2 * H].split(sizes)
    beta = 0  # the first block writes the gradients of the weights, the others add to them

    for steps, rows in reversed(plan):
        n, here = rows.stop - rows.start, slice(steps.start, steps.stop)
        h_was = segments.before(hidden, h_before, (steps, rows), h_block)
        dgates = scratch[:n]
        dmrz, drzn = dgates[:, : 3 * H], dgates[:, H:]
        _factors(gates[rows], memory[rows], h_was, dgates)
        dgate = dgates.unflatten(1, (4, H)).split(sizes[here])
        dmrz_k = dmrz.split(sizes[here])
        for k in reversed(steps):
            j = k - steps.start
            dgate[j].mul_(dh_after[k].unsqueeze(1))
            earlier = dh_before[k]
            if earlier is not None:
                earlier.addcmul_(dh_after[k], z[k]).addmm_(dmrz_k[j], weight)
        if dx is not None:
            torch.mm(drzn, w_ih, out=dx[rows])
        dw_ih.addmm_(drzn.t(), x[rows], beta=beta)
        dw_mrz.addmm_(dmrz.t(), h_was, beta=beta)
        db.addmv_(dgates.t(), ones[:n], beta=beta)
        beta = 1

    dx = None if dx is None else segments.unpack(dx)
    return dx, dh_start, dw_ih, dw_mrz.roll(-H, 0), db[H:].clone(), db[: 3 * H].roll(-H)


def _factors(gates: Tensor, memory: Tensor, h_was: Tensor, factors: Tensor) -> None:
    """Write the factors of dh in the gradients of m, r, z, n: [rows, 4H]."""
    H = h_was.shape[1]
    r, z, n = gates.split(H, 1)
    dm, dr, dz, dn = factors.split(H, 1)
    rz = gates[:, : 2 * H]
    torch.addcmul(rz, rz, rz, value=-1, out=factors[:, H : 3 * H])
    torch.sub(h_was, n, out=dm)  # dm as scratch: it is written below
    dz.mul_(dm)
    torch.mul(n, n, out=dn).neg_().add_(1)
    torch.addcmul(dn, dn, z, value=-1, out=dn)
    torch.mul(dn, r, out=dm)
    dr.mul_(dn).mul_(memory)
