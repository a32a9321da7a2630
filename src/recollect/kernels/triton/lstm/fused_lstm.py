"""The LSTM of a whole unroll in Triton, with resets: one launch forwards, one backwards.

The equations are those of ``kernels.cpu.lstm``. Products without a recurrence run over all steps at once,
outside the kernels: x W_ih^T, and in the backward pass the gradients of x and of the weights.

Rounding by precision (``devices.products``), forwards and backwards:

==============================  =====================  ====================  ======================
                                fp32                   tf32                  bf16
==============================  =====================  ====================  ======================
factors of products outside     float32                TF32, or float16      bf16
                                                       with gains (below)
factors of h W_hh^T             float32, by three      float16, which has    bf16
                                TF32 products          the bits of TF32
factors of dgates W_hh          likewise               likewise, each row    bf16
                                                       scaled to its range
the gates that are kept         float32                float16               float16
gates before activation         float32                float32               bf16
their gradients                 float32                float32, or float16   bf16
                                                       with gains (below)
h, c, sums                      float32                float32               float32
sigmoid and tanh                to 1e-6                to 1e-6               to 5e-4
==============================  =====================  ====================  ======================

The largest float16 is 65504: larger weights, or a larger initial h, become infinite in ``tf32``.

The recurrent weights of up to 128 units (in fp32 64) stay on every processor (``resident``), those of up to
256 are split over four (``spread``; not in fp32), larger ones are read at every step (``streamed``). With
spread weights, TF32 products after the backward pass would take longer than the pass itself, so their factors
are float16: gate gradients have a gain for each row, x and W_ih one each (``halves``), h none.

Nothing is read on the host, so a CUDA graph can capture all of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recollect.base import devices
from recollect.base.devices import Products
from recollect.kernels.triton import scaled_float16
from recollect.kernels.triton.lstm import resident, spread, streamed
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

_AHEAD = ((2112, Blocks(16, 8, True, stages=1)), (ANY, Blocks(32, 8, True, stages=1)))
"""Up to 16 rows for each of an H100's 132 processors, and beyond."""
_SHARED = (
    (528, Blocks(16, 8, True, stages=1)),
    (1056, Blocks(32, 8, True, stages=1)),
    (ANY, Blocks(64, 8, True, stages=1)),
)
"""Up to 16 or 32 rows for each of the 33 groups of an H100's processors, and beyond."""
TABLE: dict[tuple[str, Products], tuple[tuple[int, Blocks], ...]] = {
    ("forward resident", "bf16"): _AHEAD,
    ("forward resident", "tf32"): _AHEAD,
    ("forward resident", "fp32"): _AHEAD,
    ("backward resident", "bf16"): _AHEAD,
    ("backward resident", "tf32"): _AHEAD,
    ("backward resident", "fp32"): ((ANY, Blocks(16, 8, stages=2)),),
    ("forward spread", "bf16"): _SHARED,
    ("forward spread", "tf32"): _SHARED,
    ("backward spread", "bf16"): _SHARED,
    ("backward spread", "tf32"): _SHARED,
    ("forward streamed", "bf16"): ((4224, Blocks(32, 4)), (ANY, Blocks(64, 8))),
    ("forward streamed", "tf32"): ((4224, Blocks(32, 4)), (ANY, Blocks(64, 8))),
    ("forward streamed", "fp32"): ((ANY, Blocks(32, 4, depth=32)),),
    ("backward streamed", "bf16"): ((4224, Blocks(32, 4, stages=4)), (ANY, Blocks(64, 8, stages=4))),
    ("backward streamed", "tf32"): ((4224, Blocks(32, 4, stages=4)), (ANY, Blocks(64, 8, stages=4))),
    ("backward streamed", "fp32"): ((ANY, Blocks(32, 4, depth=32)),),
}
"""See ``tiling.Table``."""
CHOSEN: dict[str, Blocks] = {}
"""Blocks for ``forward`` and ``backward`` that a benchmark tries in place of the table."""

_FACTOR = {"fp32": torch.float32, "tf32": torch.float16, "bf16": torch.bfloat16}
_OUTSIDE = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
_GATES = {"fp32": torch.float32, "tf32": torch.float16, "bf16": torch.float16}

_SAMPLE = 256
"""About as many rows are sampled to guess the size of the gradients."""


def lstm_blocks(B: int, H: int, products: Products, way: str, has_room: bool) -> tuple[Kind, Blocks]:
    """See ``tiling.choose``; ``CHOSEN`` overrides the table."""
    kind, blocks = choose(TABLE, B, H, products, way, has_room)
    return kind, CHOSEN.get(way, blocks)


def lstm(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    first: Tensor,
    initial: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer over a batch of sequences with resets, in the rounding of ``devices.products``.

    Args:
        x: [T, B, D], in float32 like everything else.
        h: [B, H] the raw state before step 0.
        c: [B, H] likewise.
        w_ih: [4H, D].
        w_hh: [4H, H].
        b_ih: [4H].
        b_hh: [4H].
        first: [T, B]: where the initial state replaces the state.
        initial: (h, c), each [1, H]; None: zeros.

    Returns:
        y [T, B, H], and h and c after the last step, [B, H].
    """
    h0, c0 = initial or (None, None)
    tensors = (x, h, c, w_ih, w_hh, b_ih, b_hh, h0, c0)
    products = devices.products()
    with torch.autocast(x.device.type, enabled=False):
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
            return _LSTM.apply(products, first, *tensors)  # pyright: ignore[reportReturnType]
        y, h_end, c_end, _ = _forward(products, first, tensors, keep=False)
        return y, h_end, c_end


class _Kept(NamedTuple):
    """Inputs of the backward pass; ``parts`` is x and the input h of each step, side by side.

    With spread weights in ``tf32``, ``parts`` is float16, and x in it has a gain (``halves``).
    """

    parts: Tensor  # [T, B, WIDTH]
    gain: Tensor | None  # [1] of x
    gates: Tensor  # [T, B, 4H]
    cells: Tensor  # [T + 1, B, H]


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, products: Products, first: Tensor, *tensors: Any) -> tuple[Tensor, ...]:
        y, h_end, c_end, kept = _forward(products, first, tensors, keep=True)
        assert kept is not None
        _, _, _, w_ih, w_hh, _, _, _, c0 = tensors
        ctx.save_for_backward(first, w_ih, w_hh, c0, *kept)
        ctx.products = products
        ctx.set_materialize_grads(False)
        return y, h_end, c_end

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        first, w_ih, w_hh, c0, *kept = ctx.saved_tensors
        with devices.rounded(ctx.products), torch.autocast(w_hh.device.type, enabled=False):
            needs = ctx.needs_input_grad[2:]
            return None, None, *_backward(ctx.products, first, w_ih, w_hh, c0, _Kept(*kept), gradients, needs)


def _forward(
    products: Products, first: Tensor, tensors: tuple[Any, ...], keep: bool
) -> tuple[Tensor, Tensor, Tensor, _Kept | None]:
    """y, h, c, and with ``keep`` the inputs of the backward pass."""
    x, h, c, w_ih, w_hh, b_ih, b_hh, h0, c0 = tensors
    (T, B, D), H = x.shape, w_hh.shape[1]
    outside, single = _OUTSIDE[products], {"dtype": torch.float32, "device": x.device}
    kind, blocks = lstm_blocks(B, H, products, "forward", has_room(x))
    kept, at = None, _aligned(D)
    if keep:
        flat, parts, gain = _side_by_side(x, H, products, _by_halves(kind, products))
        gates = torch.empty(T, B, 4 * H, dtype=_GATES[products], device=x.device)
        kept = _Kept(parts, gain, gates, torch.empty(T + 1, B, H, **single))
    else:
        flat = x.to(outside).reshape(T * B, D)
    with devices.rounded(products):
        xg = torch.addmm((b_ih + b_hh).to(outside), flat, w_ih.to(outside).t())
    h, c, w = h.contiguous(), c.contiguous(), w_hh.to(_FACTOR[products]).contiguous()
    y, h_end, c_end = torch.empty(T, B, H, **single), torch.empty(B, H, **single), torch.empty(B, H, **single)
    begun, gates, cells = (kept.parts[..., at:], kept.gates, kept.cells) if kept else (y, y, c_end)
    flags = {
        "H": H,
        "WIDTH": kept.parts.shape[2] if kept else 0,
        "LEARNED": h0 is not None,
        "KEEP": keep,
        "T": T,
        **rounding(x, products),
    }
    start = (_or(h0, y), _or(c0, y))
    given = (xg, h, c, w, _bytes(first), *start, y)
    if kind == "resident":
        sizes = {"HP": padded(H), "AHEAD": blocks.prefetch, "STAGES": blocks.stages}
        given = (*given, h_end, c_end, begun, gates, cells)
        launch_rows(resident.forward, B, blocks, *given, **flags, **sizes)
    elif kind == "spread":
        given = (*given, h_end, c_end, begun, gates, cells)
        sizes = {"exchange": (blocks.rows, padded(H)), "dtype": w.dtype, "HP": padded(H), "B": B}
        team = groups(x, T, B, H, blocks.rows)
        launch_spread(spread.forward, team, blocks, *given, **flags, **sizes)
    else:
        given = (*given, torch.empty(2, B, H, dtype=w.dtype, device=x.device), begun, gates, cells)
        launch_rows(streamed.forward, B, blocks, *given, **flags, **streamed_sizes(blocks, H))
        h_end = y[T - 1].clone()
        c_end = cells[T].clone() if keep else cells
    return y, h_end, c_end, kept


def _side_by_side(
    x: Tensor, H: int, products: Products, by_halves: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """x as a factor [T * B, D], ``_Kept.parts`` with x filled in, and the gain of x there."""
    (T, B, D), outside = x.shape, _OUTSIDE[products]
    dtype = torch.float16 if by_halves else outside
    parts = torch.empty(T, B, _aligned(D) + _aligned(H), dtype=dtype, device=x.device)
    whole = parts.view(T * B, -1)
    if by_halves:
        flat = x.reshape(T * B, D).contiguous()
        return flat, parts, scaled_float16.narrow(flat, whole)
    parts[..., :D] = x
    return whole[:, :D], parts, None


def _backward(
    products: Products,
    first: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    c0: Tensor | None,
    kept: _Kept,
    gradients: tuple[Tensor | None, ...],
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """The gradients of x, h, c, w_ih, w_hh, b_ih, b_hh, h0, c0; products only where ``needs`` is true."""
    (T, B, _), H, D = kept.gates.shape, w_hh.shape[1], w_ih.shape[1]
    outside, single = _OUTSIDE[products], {"dtype": torch.float32, "device": w_hh.device}
    dy, dh, dc = gradients
    dy = torch.zeros(T, B, H, **single) if dy is None else dy.contiguous()
    # The streaming kernel overwrites these two.
    dh = torch.zeros(B, H, **single) if dh is None else dh.clone(memory_format=torch.contiguous_format)
    dc = torch.zeros(B, H, **single) if dc is None else dc.clone(memory_format=torch.contiguous_format)
    kind, blocks = lstm_blocks(B, H, products, "backward", has_room(dy))
    by_halves = _by_halves(kind, products)
    d = torch.empty(T, B, 4 * H, dtype=torch.float16 if by_halves else outside, device=w_hh.device)
    flags = {"H": H, "LEARNED": c0 is not None, "T": T, **rounding(dy, products)}
    team = groups(dy, T, B, H, blocks.rows) if kind == "spread" else None
    shape = (team.number if team else B, H)
    dh0, dc0 = (dh, dc) if c0 is None else (torch.zeros(shape, **single), torch.zeros(shape, **single))
    saved = (_bytes(first), _or(c0, dy), kept.gates, kept.cells, d)
    bias = gains = None
    if kind == "resident":
        w, bias = w_hh.to(_FACTOR[products]).contiguous(), torch.empty(-(-B // blocks.rows), 4 * H, **single)
        sizes = {"HP": padded(H), "SCALED": products == "tf32"}
        sizes |= {"STAGES": blocks.stages, "AHEAD": blocks.prefetch}
        given = (dy, dh, dc, w, *saved, dh, dc, dh0, dc0, bias)
        launch_rows(resident.backward, B, blocks, *given, **flags, **sizes)
    elif team:
        w, bias = w_hh.to(_FACTOR[products]).contiguous(), torch.empty(team.number, 4 * H, **single)
        ends = (dh, dc)
        dh, dc = torch.empty_like(dh), torch.empty_like(dc)
        given = (dy, *ends, w, *saved, dh, dc, dh0, dc0, bias)
        sizes = {"HP": padded(H), "SCALED": by_halves, "B": B}
        sizes |= {"exchange": (team.members, blocks.rows * padded(H)), "dtype": torch.float32}

        def launch(*scales: Tensor) -> None:
            launch_spread(spread.backward, team, blocks, *given, *scales, **flags, **sizes)

        if by_halves:
            samples = (dy[:, :: -(-B // _SAMPLE)], *(end for end in gradients[1:] if end is not None))
            gains = scaled_float16.tried(launch, scaled_float16.guess(*samples, n=B))
        else:
            launch(dy, dy, dy)  # unused pointers
    else:
        w = nearest(w_hh.to(outside).t().contiguous(), products)
        given = (dy, w, *saved, dh, dc, dh0, dc0)
        launch_rows(streamed.backward, B, blocks, *given, **flags, **streamed_sizes(blocks, H))

    flat = d.view(T * B, 4 * H)
    dx = dw_ih = dw_hh = None
    if needs[0]:
        dx = scaled_float16.multiply(flat, w_ih, gains) if gains else product(flat, w_ih.to(outside))
        dx = dx.view(T, B, D)
    if needs[3] or needs[4]:
        least = scaled_float16.level(flat, gains) if gains else None
        weights = product(flat.t(), kept.parts.view(T * B, -1))  # [4H, WIDTH]: one product for both
        dw_ih, dw_hh = weights[:, :D], weights[:, _aligned(D) :][:, :H]
        if least is not None and kept.gain is not None:
            dw_ih, dw_hh = dw_ih / kept.gain / least, dw_hh / least
    if needs[5] or needs[6]:
        bias = flat.sum(0, dtype=torch.float32) if bias is None else bias.sum(0)
    else:
        bias = None
    start = (None, None) if c0 is None else (dh0.sum(0, keepdim=True), dc0.sum(0, keepdim=True))
    return dx, dh, dc, dw_ih, dw_hh, bias, bias, *start


def _by_halves(kind: Kind, products: Products) -> bool:
    """Whether products of gate gradients have float16 factors (``halves``)."""
    return kind == "spread" and products == "tf32"


def _aligned(size: int) -> int:
    """``size`` rounded up to 8: fast products need rows aligned to 16 bytes."""
    return -(-size // 8) * 8


def _bytes(first: Tensor) -> Tensor:
    return first.contiguous().view(torch.uint8)


def _or(given: Tensor | None, other: Tensor) -> Tensor:
    """``given``, or ``other`` as an unused pointer."""
    return other if given is None else given.contiguous()
