"""The GRU over packed segments, as one node of the autograd graph.

    r, z = sigmoid(W_ih x + b_ih + W_hh h + b_hh)       (PyTorch's order r, z, n in the weights)
    n    = tanh(W_in x + b_in + r (W_hn h + b_hn))
    h'   = n + z (h - n)

The gradient of a step is linear in dh, with factors that are known before the backward loop begins.
They stand in the order (m, r, z, n), m being the recurrent part of n: m, r, z go back through W_hh
and r, z, n through W_ih, each as one block.

    dn = dh (1-z)(1-n^2),  dm = dn r,  dr = dn (W_hn h + b_hn) r(1-r),  dz = dh (h-n) z(1-z)
    dh(before) = dh z + W_hh^T d(r, z, m)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recollect.cores.kernels.segments import Segments, carried


def gru(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, segments: Segments
) -> tuple[Tensor, Tensor]:
    """One layer over all segments.

    Args:
        x: [N, D] packed inputs.
        h: [S, H] the state that each segment begins with.
        w_ih: [3H, D].
        w_hh: [3H, H].
        b_ih: [3H].
        b_hh: [3H].
        segments: the layout.

    Returns:
        y [N, H] packed, and h [B, H] after the last step of each row.
    """
    inputs = (x, h, w_ih, w_hh, b_ih, b_hh)
    if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        return _GRU.apply(*inputs, segments)  # pyright: ignore[reportReturnType]
    y, h, _ = _forward(*inputs, segments, keep=False)
    return y, h


def _forward(
    x: Tensor,
    h: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    segments: Segments,
    keep: bool,
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """y [N, H], h [B, H], and with ``keep`` what the backward pass needs."""
    sizes, N, (S, H) = segments.sizes, x.shape[0], h.shape
    gates = torch.addmm(b_ih, x, w_ih.t())  # [N, 3H]
    weight = w_hh.t()  # [H, 3H]

    # recurrent holds W_hh h + b_hh; its last third is needed again by the backward pass.
    hidden = torch.cat((h, x.new_empty(N, H)))
    recurrent = x.new_empty(N if keep else S, 3 * H)
    h_after = (hidden[:S], *hidden[S:].split(sizes))
    if keep:
        product = recurrent.split(sizes)
    else:
        product = tuple(recurrent[:n] for n in sizes)
    rz = gates[:, : 2 * H].split(sizes)
    r = gates[:, :H].split(sizes)
    z = gates[:, H : 2 * H].split(sizes)
    new = gates[:, 2 * H :].split(sizes)

    for k, n in enumerate(sizes):
        h_before = h_after[k][:n]
        torch.addmm(b_hh, h_before, weight, out=product[k])
        rz[k].add_(product[k][:, : 2 * H]).sigmoid_()
        new[k].addcmul_(r[k], product[k][:, 2 * H :]).tanh_()
        torch.lerp(new[k], h_before, z[k], out=h_after[k + 1])

    y = hidden[S:]
    return y, y.index_select(0, segments.end), (x, hidden, gates, recurrent) if keep else ()


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor,
        b_hh: Tensor,
        segments: Segments,
    ) -> tuple[Tensor, Tensor]:
        y, h, kept = _forward(x, h, w_ih, w_hh, b_ih, b_hh, segments, keep=True)
        ctx.save_for_backward(*kept, w_ih, w_hh)
        ctx.segments = segments
        ctx.set_materialize_grads(False)
        return y, h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dh_end: Tensor | None):  # pyright: ignore
        x, hidden, gates, recurrent, w_ih, w_hh = ctx.saved_tensors
        segments: Segments = ctx.segments
        sizes, N, H = segments.sizes, x.shape[0], w_hh.shape[1]
        S = sizes[0]

        dh = hidden.new_zeros(N, H) if dy is None else dy.clone(memory_format=torch.contiguous_format)
        if dh_end is not None:
            dh.index_add_(0, segments.end, dh_end)
        before = torch.cat(carried(hidden, segments))

        dgates = _factors(gates, recurrent, before)  # [N, 4H] in the order m, r, z, n
        weight = w_hh.roll(H, 0)  # the same order: n's recurrent part, r, z
        dh_start = dh.new_zeros(S, H)
        _through_time(dgates, dh, dh_start, gates, weight, sizes)

        need = ctx.needs_input_grad
        dmrz, drzn = dgates[:, : 3 * H], dgates[:, H:]
        return (
            drzn @ w_ih if need[0] else None,
            dh_start if need[1] else None,
            drzn.t() @ x if need[2] else None,
            (dmrz.t() @ before).roll(-H, 0) if need[3] else None,
            drzn.sum(0) if need[4] else None,
            dmrz.sum(0).roll(-H) if need[5] else None,
            None,
        )


def _factors(gates: Tensor, recurrent: Tensor, before: Tensor) -> Tensor:
    """What dh multiplies in the gradients of m, r, z, n: [N, 4, H] flattened to [N, 4H]."""
    N, H = before.shape
    r, z, n = gates.split(H, 1)
    factors = gates.new_empty(N, 4 * H)
    dm, dr, dz, dn = factors.split(H, 1)
    torch.addcmul(
        gates[:, : 2 * H], gates[:, : 2 * H], gates[:, : 2 * H], value=-1, out=factors[:, H : 3 * H]
    )
    dz.mul_(before - n)
    torch.mul(n, n, out=dn)
    dn.neg_().add_(1)
    torch.addcmul(dn, dn, z, value=-1, out=dn)
    torch.mul(dn, r, out=dm)
    dr.mul_(dn).mul_(recurrent[:, 2 * H :])
    return factors


def _through_time(
    dgates: Tensor, dh: Tensor, dh_start: Tensor, gates: Tensor, weight: Tensor, sizes: tuple[int, ...]
) -> None:
    """Turn the factors ``dgates`` [N, 4H] into the gradient, and fill dh_start [S, H]."""
    H = dh.shape[1]
    dgate = dgates.unflatten(1, (4, H)).split(sizes)
    dmrz = dgates[:, : 3 * H].split(sizes)
    z = gates[:, H : 2 * H].split(sizes)
    dh_k = (dh_start, *dh.split(sizes))
    for k in range(len(sizes) - 1, -1, -1):
        dgate[k].mul_(dh_k[k + 1].unsqueeze(1))
        before = dh_k[k][: sizes[k]]
        before.addcmul_(dh_k[k + 1], z[k]).addmm_(dmrz[k], weight)
