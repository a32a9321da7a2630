"""The LSTM with resets on oneDNN's fused layer, which has no resets: the fastest way for small batches.

Before every reset a step is inserted whose input, forget and output gates are exactly zero: it sets h = c = 0
and blocks gradients. Rows with fewer resets are padded at their end with steps that hold c (forget gate
exactly one, input gate exactly zero). Two additional input features mark these steps, with weights so large
that the sigmoids saturate.

    row 0: a b | c d e        a b R c d e
    row 1: f g   h i j        f g h i j H        R: reset, H: hold

The initial state must be zero, and all numbers finite: a gate of zero does not stop a NaN. ``suits`` and
``finite`` tell whether a batch can run here and is faster than with ``kernels.cpu.lstm``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.base import row_threads
from recollect.kernels.autograd_node import Grads, Kept, Need, Saved, node

SATURATING = 1e6
"""Added to the input of a gate, this makes its sigmoid exactly 0 or 1 in float32."""

FEW_ROWS, MOST_ROWS = 96, 128
MOST_STRETCH, MANY_STRETCH = 1.5, 1.25
"""Without resets this layer takes about half of the time of ``kernels.cpu.lstm`` up to ``FEW_ROWS`` rows, and
0.7 of it up to ``MOST_ROWS``; beyond, it gains less and keeps more memory. So with resets there may be that
many times T steps after the insertion."""

MANY_ROWS = 64
"""Rows of an acting step from which this layer is faster than ``torch.lstm_cell``."""


def suits_step(x: Tensor) -> bool:
    """Whether a step of x [B, D] without a gradient is faster here."""
    if len(x) < MANY_ROWS or x.device.type != "cpu" or x.dtype != torch.float32:
        return False
    return torch.backends.mkldnn.is_available() and not torch.is_grad_enabled()


def step(x: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One step: x [B, D], h and c [B, H], weights as in nn.LSTM -> y, h, c [B, H]."""
    state = h.unsqueeze(0), c.unsqueeze(0)
    y, h, c = torch.lstm(x.unsqueeze(0), state, weights, True, 1, 0.0, False, False, False)
    return y[0], h[0], c[0]


def suits(x: Tensor, first: Tensor) -> bool:
    """Whether x [T, B, D] with first [T, B] is faster here; does not check the values of x."""
    T, B, _ = x.shape
    if x.device.type != "cpu" or x.dtype != torch.float32 or B > MOST_ROWS:
        return False
    if not torch.backends.mkldnn.is_available():
        return False
    inserted = int(first[1:].sum(0).max()) if T > 1 else 0
    return T + inserted <= (MOST_STRETCH if B <= FEW_ROWS else MANY_STRETCH) * T


def finite(*tensors: Tensor) -> bool:
    """Whether the sums of all tensors are finite; an overflow of a sum only costs speed."""
    return all(bool(t.detach().sum().isfinite()) for t in tensors)


def lstm(
    x: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, first: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer: x [T, B, D], h and c [B, H] with ``first[0]`` applied, weights as in nn.LSTM,
    first [T, B] -> y [T, B, H], and h, c [B, H] after the last step."""
    T, B, _ = x.shape
    H = h.shape[1]
    inserted = first.long()
    inserted[0] = 0
    time = torch.arange(T).unsqueeze(1) + inserted.cumsum(0)  # [T, B] where each step goes
    length = int(time[-1].max()) + 1
    if length == T:
        steps, place = x, None
    else:
        place = (time * B + torch.arange(B)).view(-1)
        hold = torch.arange(length).unsqueeze(1) > time[-1]  # [length, B]
        reset = place.view(T, B)[1:][first[1:]] - B  # the places right before the resets
        (steps,) = node(_spread, _spread_backward, x, place, reset, hold)
        columns = w_ih.new_full((4, H, 2), -SATURATING)  # [gate, unit, (reset, hold)]: i and o shut
        columns[1, :, 1] = SATURATING  # f open to hold
        columns[2] = 0  # g does not matter behind a shut i
        w_ih = torch.cat((w_ih, columns.view(4 * H, 2)), 1)
    weights = (w_ih, w_hh, b_ih, b_hh)

    def fused(steps: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state, is_training = (h.unsqueeze(0), c.unsqueeze(0)), torch.is_grad_enabled()
        y, h, c = torch.lstm(steps, state, weights, True, 1, 0.0, is_training, False, False)
        return y, h[0], c[0]

    y, h_end, c_end = row_threads.side_by_side(fused, (steps,), (h, c), lambda: weights)
    if place is None:
        return y, h_end, c_end
    (y,) = node(_collect, _collect_backward, y, place, length=length)
    return y, y[-1], c_end


def _spread(x: Tensor, place: Tensor, reset: Tensor, hold: Tensor, keep: bool) -> tuple[tuple[Tensor], Kept]:
    """x [T, B, D] -> [length, B, D + 2]: every step at its new position, with flags for the inserted ones."""
    D = x.shape[2]
    out = x.new_zeros(*hold.shape, D + 2)
    out[..., D + 1] = hold
    flat = out.view(-1, D + 2)
    flat[:, D].index_fill_(0, reset, 1)
    flat[:, :D].index_copy_(0, place, x.reshape(-1, D))
    return (out,), (place,)


def _spread_backward(grads: Grads, saved: Saved, need: Need) -> Grads:
    (grad,), (place,) = grads, saved
    assert grad is not None
    _, B, width = grad.shape
    dx = grad.reshape(-1, width)[:, : width - 2].index_select(0, place)
    return (dx.view(-1, B, width - 2),)


def _collect(y: Tensor, place: Tensor, length: int, keep: bool) -> tuple[tuple[Tensor], Kept]:
    """y [length, B, H] -> [T, B, H]: without the inserted steps."""
    return (y.flatten(0, 1).index_select(0, place).view(-1, *y.shape[1:]),), (place,)


def _collect_backward(grads: Grads, saved: Saved, need: Need, length: int) -> Grads:
    (grad,), (place,) = grads, saved
    assert grad is not None
    _, B, H = grad.shape
    out = grad.new_zeros(length * B, H).index_copy_(0, place, grad.reshape(-1, H))
    return (out.view(length, B, H),)
