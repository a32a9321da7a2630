"""The GRU of ``kernels.cpu.gru`` in Triton: a whole unroll with resets, in one launch each way.

Products without a recurrence run over all steps at once, outside the kernels: x W_ih^T before the forward
kernel, the gradients of x and of the weights after the backward one. Small recurrent weights stay on the
chip, on every processor (``resident``) or split over a few (``spread``); large ones are read from memory at
every step (``streamed``).

Products are rounded as set by ``devices.products`` in the forward pass, also in the backward pass. With bf16,
tensors between kernels and products are bf16 too; states and sums are always float32. With tf32, the factors
of weights on the chip are float16, which has the mantissa bits of TF32: h in the forward pass, gradients,
each row scaled to its range, in the backward pass. The gates that are kept are float16 too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recollect.base import devices
from recollect.base.devices import Products
from recollect.kernels.autograd_node import Grads, Kept, Need, Saved, node
from recollect.kernels.triton.gru import resident, spread, streamed
from recollect.kernels.triton.tiling import ANY, FACTOR, OUTSIDE, Blocks, Plan, nearest, product
from recollect.kernels.triton.tiling import suits as suits

TABLE: dict[tuple[str, Products], tuple[tuple[int, Blocks], ...]] = {
    ("forward resident", "bf16"): ((2112, Blocks(16, 8)), (ANY, Blocks(16, 8, True, stages=1, together=2))),
    ("forward resident", "tf32"): ((2112, Blocks(16, 8)), (ANY, Blocks(32, 16))),
    ("forward resident", "fp32"): ((2112, Blocks(16, 8, stages=1)), (ANY, Blocks(32, 8, stages=1))),
    ("backward resident", "bf16"): ((2112, Blocks(16, 8)), (ANY, Blocks(32, 8))),
    ("backward resident", "tf32"): ((ANY, Blocks(16, 8)),),
    ("backward resident", "fp32"): ((2112, Blocks(16, 8, stages=1)), (ANY, Blocks(32, 8, stages=1))),
    ("forward spread", "bf16"): ((1056, Blocks(32, 8)), (ANY, Blocks(64, 8))),
    ("forward spread", "tf32"): ((1056, Blocks(32, 8)), (ANY, Blocks(64, 8))),
    ("backward spread", "bf16"): ((1056, Blocks(32, 8)), (ANY, Blocks(64, 8))),
    ("backward spread", "tf32"): ((1056, Blocks(32, 8)), (ANY, Blocks(64, 8))),
    ("forward streamed", "bf16"): ((2112, Blocks(16, 8)), (ANY, Blocks(32, 8))),
    ("forward streamed", "tf32"): ((2112, Blocks(16, 8, depth=32)), (ANY, Blocks(32, 8, depth=32))),
    ("forward streamed", "fp32"): (
        (2112, Blocks(16, 8, units=32, depth=32)),
        (ANY, Blocks(32, 8, units=32, depth=32)),
    ),
    ("backward streamed", "bf16"): ((2112, Blocks(16, 8, stages=4)), (ANY, Blocks(32, 8, stages=4))),
    ("backward streamed", "tf32"): ((2112, Blocks(16, 8)), (ANY, Blocks(32, 8))),
    ("backward streamed", "fp32"): ((2112, Blocks(16, 8, depth=32)), (ANY, Blocks(32, 8, depth=32))),
}
"""Measured on an H100; see ``tiling.Table``."""

_KERNELS = {"resident": resident, "spread": spread, "streamed": streamed}


def gru(
    x: Tensor,
    h: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    first: Tensor,
    initial: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One layer over a batch of sequences with resets.

    The arguments are those of ``kernels.cpu.gru`` in float32, except for: h [B, H], the raw state before step
    0; first [T, B], where ``initial`` replaces it; initial [1, H], None: zeros.

    Returns y [T, B, H], and h [B, H] after the last step.
    """
    inputs = (x, h, w_ih, w_hh, b_ih, b_hh, first, initial)
    with torch.autocast(x.device.type, enabled=False):
        return node(_forward, _backward, *inputs, products=devices.products())


def _forward(*inputs: Any, products: Products, keep: bool) -> tuple[tuple[Tensor, Tensor], Kept]:
    """y [T, B, H] and h [B, H], and with ``keep`` the inputs of the backward pass."""
    x, h, w_ih, w_hh, b_ih, b_hh, first, initial = inputs
    (T, B, _), H, outside = x.shape, w_hh.shape[1], OUTSIDE[products]
    flat = x.flatten(0, 1).to(outside)  # [T * B, D]
    with devices.rounded(products):
        xg = flat @ w_ih.to(outside).t()
    plan = Plan(TABLE, x, (T, B, H), products, "forward")
    y, h_end, first = x.new_empty(T, B, H), x.new_empty(B, H), first.contiguous().view(torch.uint8)
    parts = x.new_empty(T if keep else 0, B, 4 * H, dtype=FACTOR[products])  # m, r, z, n
    before = x.new_empty(T if keep else 2, B, H, dtype=outside)  # the input states of the steps
    w = _streamed(w_hh, products) if plan.kind == "streamed" else w_hh.contiguous()
    start = y if initial is None else initial.contiguous()
    given = (xg, h.contiguous(), w, b_ih.contiguous(), b_hh.contiguous(), first, start)
    flags = {"LEARNED": initial is not None, "KEEP": keep, **_half(plan, products)}
    plan.launch(_KERNELS[plan.kind].forward, *given, y, h_end, parts, before, **flags)
    return (y, h_end), (w_ih, w_hh, flat, first, parts, before)


def _backward(grads: Grads, saved: Saved, need: Need, products: Products) -> Grads:
    """The gradients of all arguments of ``gru``; products only where ``need`` is true."""
    (dy, dh_end), (w_ih, w_hh, x, first, parts, before) = grads, saved
    (T, B, H), outside, is_learned = before.shape, OUTSIDE[products], need[7]
    plan = Plan(TABLE, w_hh, (T, B, H), products, "backward")
    is_streamed = plan.kind == "streamed"
    d, dh = w_hh.new_empty(T, B, 4 * H, dtype=outside), w_hh.new_empty(B, H)
    d_bias = None if is_streamed else w_hh.new_empty(plan.sums, 4 * H)
    d_initial = w_hh.new_zeros((B if is_streamed else plan.sums) if is_learned else 0, H)
    ends = (dh if grad is None else grad.contiguous() for grad in grads)
    if is_streamed:
        w = _streamed(w_hh.roll(H, 0).t(), products)  # n, r, z: the order of m, r, z
    else:
        w = w_hh.contiguous() if plan.kind == "spread" else w_hh.unflatten(0, (3, H)).mT.contiguous()
    given = (*ends, w, first, parts, before, d, dh, d_initial, *(() if d_bias is None else (d_bias,)))
    flags = {"LEARNED": is_learned, "HAS_DY": dy is not None, "HAS_DH": dh_end is not None}
    plan.launch(_KERNELS[plan.kind].backward, *given, **flags, **_half(plan, products))

    d = d.flatten(0, 1)  # [T * B, 4H]
    dmrz, drzn = d[:, : 3 * H], d[:, H:]
    dx = dw_ih = dw_hh = db_ih = db_hh = None
    with devices.rounded(products), torch.autocast(dh.device.type, enabled=False):
        if need[0]:
            dx = product(drzn, w_ih.to(outside)).unflatten(0, (T, B))
        if need[2]:
            dw_ih = product(drzn.t(), x)
        if need[3]:
            dw_hh = product(dmrz.t(), before.flatten(0, 1)).roll(-H, 0)
    if need[4] or need[5]:
        db = d.sum(0, dtype=torch.float32) if d_bias is None else d_bias.sum(0)
        db_ih, db_hh = db[H:], db[: 3 * H].roll(-H)
    start = d_initial.sum(0, keepdim=True) if is_learned else None
    return dx, dh, dw_ih, dw_hh, db_ih, db_hh, None, start


def _half(plan: Plan, products: Products) -> dict[str, bool]:
    """Whether factors of weights on the chip are float16."""
    return {} if plan.kind == "streamed" else {"HALF": products == "tf32"}


def _streamed(w: Tensor, products: Products) -> Tensor:
    """w as a factor that is streamed, contiguous."""
    return nearest(w.to(OUTSIDE[products]).contiguous(), products)
