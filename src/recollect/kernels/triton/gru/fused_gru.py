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

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recollect.base import devices
from recollect.base.devices import Products
from recollect.kernels.triton.gru import resident, spread, streamed
from recollect.kernels.triton.tiling import (
    ANY,
    Blocks,
    Kind,
    choose,
    groups,
    has_room,
    launch_rows,
    launch_spread,
    nearest,
    padded,
    product,
    rounding,
    streamed_sizes,
)
from recollect.kernels.triton.tiling import suits as suits

TABLE: dict[tuple[str, Products], tuple[tuple[int, Blocks], ...]] = {
    ("forward resident", "bf16"): ((2112, Blocks(16, 8)), (ANY, Blocks(16, 8, True, stages=1, together=2))),
    ("forward resident", "tf32"): ((2112, Blocks(16, 8)), (ANY, Blocks(32, 16))),
    ("forward resident", "fp32"): ((2112, Blocks(16, 8, stages=1)), (ANY, Blocks(32, 8, stages=1))),
    ("backward resident", "bf16"): ((2112, Blocks(16, 8)), (ANY, Blocks(32, 8))),
    ("backward resident", "tf32"): ((ANY, Blocks(16, 8)),),
    ("backward resident", "fp32"): ((2112, Blocks(16, 8, stages=1)), (ANY, Blocks(32, 8, stages=1))),
    ("forward spread", "bf16"): ((1056, Blocks(32, 8, True)), (ANY, Blocks(64, 8, True))),
    ("forward spread", "tf32"): ((1056, Blocks(32, 8, True)), (ANY, Blocks(64, 8, True))),
    ("backward spread", "bf16"): ((1056, Blocks(32, 8, True)), (ANY, Blocks(64, 8, True))),
    ("backward spread", "tf32"): ((1056, Blocks(32, 8, True)), (ANY, Blocks(64, 8, True))),
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
CHOSEN: dict[str, Blocks] = {}
"""Blocks for ``forward`` and ``backward`` that a benchmark tries in place of the table."""

_KEPT = {"fp32": torch.float32, "tf32": torch.float16, "bf16": torch.bfloat16}


def gru_blocks(B: int, H: int, products: Products, way: str, has_room: bool) -> tuple[Kind, Blocks]:
    """See ``tiling.choose``; ``CHOSEN`` overrides the table."""
    kind, blocks = choose(TABLE, B, H, products, way, has_room)
    return kind, CHOSEN.get(way, blocks)


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

    Args:
        x: [T, B, D] float32.
        h: [B, H] the raw state before step 0; ``first[0]`` resets it here.
        w_ih: [3H, D].
        w_hh: [3H, H].
        b_ih: [3H].
        b_hh: [3H].
        first: [T, B] bool.
        initial: [1, H] the state after a reset; None: zeros.

    Returns:
        y [T, B, H], and h [B, H] after the last step.
    """
    inputs = (x, h, w_ih, w_hh, b_ih, b_hh, first, initial)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        return _GRU.apply(*inputs, devices.products())  # pyright: ignore[reportReturnType]
    y, h, _ = _forward(*inputs, devices.products(), keep=False)
    return y, h


class _Kept(NamedTuple):
    """Inputs of the backward pass."""

    x: Tensor  # [T * B, D]
    first: Tensor  # [T, B] bytes
    parts: Tensor  # [T, B, 4H] m, r, z, n
    before: Tensor  # [T, B, H] the input states of the steps


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        y, h, kept = _forward(*inputs, keep=True)
        assert kept is not None
        ctx.save_for_backward(*inputs[2:4], *kept)
        ctx.products = inputs[-1]
        ctx.set_materialize_grads(False)
        return y, h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        w_ih, w_hh, *kept = ctx.saved_tensors
        dy, dh = grads
        return _backward(dy, dh, w_ih, w_hh, _Kept(*kept), ctx.products, ctx.needs_input_grad)


def _forward(
    x: Tensor,
    h: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    first: Tensor,
    initial: Tensor | None,
    products: Products,
    keep: bool,
) -> tuple[Tensor, Tensor, _Kept | None]:
    """y [T, B, H], h [B, H], and with ``keep`` the inputs of the backward pass."""
    (T, B, _), H = x.shape, w_hh.shape[1]
    dtype = _stored(products)
    flat = x.flatten(0, 1).to(dtype)  # [T * B, D]
    with devices.rounded(products), torch.autocast(x.device.type, enabled=False):
        xg = flat @ w_ih.to(dtype).t()
    flags = first.contiguous().view(torch.uint8)
    kind, blocks = gru_blocks(B, H, products, "forward", has_room(x))
    y, h_end = x.new_empty(T, B, H), x.new_empty(B, H)
    kept = x.new_empty(T if keep else 0, B, 4 * H, dtype=_KEPT[products])
    before = x.new_empty(T if keep else 2, B, H, dtype=dtype)
    given = (
        xg,
        h.contiguous(),
        _factor(w_hh, products) if kind == "streamed" else w_hh.contiguous(),
        b_ih.contiguous(),
        b_hh.contiguous(),
        flags,
        y if initial is None else initial.contiguous(),
        y,
        h_end,
        kept,
        before,
    )
    settings = {"LEARNED": initial is not None, "KEEP": keep, **_settings(T, H, blocks, kind, products, x)}
    if kind == "spread":
        settings |= {"exchange": (blocks.rows, padded(H)), "dtype": _KEPT[products], "B": B}
        launch_spread(spread.forward, groups(x, T, B, H, blocks.rows), blocks, *given, **settings)
    else:
        kernel = resident.forward if kind == "resident" else streamed.forward
        launch_rows(kernel, B, blocks, *given, **settings)
    return y, h_end, _Kept(flat, flags, kept, before) if keep else None


def _backward(
    dy: Tensor | None,
    dh_end: Tensor | None,
    w_ih: Tensor,
    w_hh: Tensor,
    kept: _Kept,
    products: Products,
    need: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """The gradients of all arguments of ``gru``; None where ``need`` is false."""
    (T, B, H), dtype = kept.before.shape, _stored(products)
    kind, blocks = gru_blocks(B, H, products, "backward", has_room(w_hh))
    team = groups(w_hh, T, B, H, blocks.rows) if kind == "spread" else None
    sums = team.number if team else -(-B // blocks.rows)
    d, dh = w_hh.new_empty(T, B, 4 * H, dtype=dtype), w_hh.new_empty(B, H)
    d_bias = w_hh.new_empty(0 if kind == "streamed" else sums, 4 * H)
    has_initial = need[7]
    d_initial = w_hh.new_zeros((B if kind == "streamed" else sums) if has_initial else 0, H)
    ends = (dh if dy is None else dy.contiguous(), dh if dh_end is None else dh_end.contiguous())
    given = (kept.first, kept.parts, kept.before, d, dh, d_initial)
    settings: dict[str, Any] = {
        "LEARNED": has_initial,
        "HAS_DY": dy is not None,
        "HAS_DH": dh_end is not None,
    }
    settings |= _settings(T, H, blocks, kind, products, dh)
    if kind == "resident":
        w = w_hh.unflatten(0, (3, H)).transpose(1, 2).contiguous()
        launch_rows(resident.backward, B, blocks, *ends, w, *given, d_bias, **settings)
    elif team:
        w, parts = w_hh.contiguous(), (team.members, team.members, blocks.rows, padded(H) // team.members)
        settings |= {"exchange": parts, "dtype": torch.float32, "B": B}
        launch_spread(spread.backward, team, blocks, *ends, w, *given, d_bias, **settings)
    else:
        w = _factor(w_hh.roll(H, 0).t(), products)  # n, r, z: the order of m, r, z
        launch_rows(streamed.backward, B, blocks, *ends, w, *given, **settings)

    d = d.flatten(0, 1)  # [T * B, 4H]
    dmrz, drzn = d[:, : 3 * H], d[:, H:]
    with devices.rounded(products), torch.autocast(dh.device.type, enabled=False):
        dx = product(drzn, w_ih.to(dtype)).unflatten(0, (T, B)) if need[0] else None
        dw_ih = product(drzn.t(), kept.x) if need[2] else None
        dw_hh = product(dmrz.t(), kept.before.flatten(0, 1)).roll(-H, 0) if need[3] else None
    db_ih = db_hh = None
    if need[4] or need[5]:
        db = d.sum(0, dtype=torch.float32) if kind == "streamed" else d_bias.sum(0)
        db_ih, db_hh = db[H:], db[: 3 * H].roll(-H)
    start = d_initial.sum(0, keepdim=True) if has_initial else None
    return dx, dh if need[1] else None, dw_ih, dw_hh, db_ih, db_hh, None, start, None


def _settings(T: int, H: int, blocks: Blocks, kind: Kind, products: Products, x: Tensor) -> dict[str, Any]:
    """Sizes and constants of a kernel."""
    if kind == "streamed":
        sizes = streamed_sizes(blocks, H)
    else:
        sizes = {"HP": padded(H), "AHEAD": blocks.prefetch, "HALF": products == "tf32"}
        if kind == "resident":
            sizes["STAGES"] = blocks.stages
    return {**sizes, "T": T, "H": H, **rounding(x, products)}


def _stored(products: Products) -> torch.dtype:
    """The dtype of tensors between kernels and products."""
    return torch.bfloat16 if products == "bf16" else torch.float32


def _factor(w: Tensor, products: Products) -> Tensor:
    """w as a factor, contiguous."""
    return nearest(w.to(_stored(products)).contiguous(), products)
