"""The LSTM of a whole unroll in Triton, with resets: one launch forwards, one backwards.

The equations are those of ``kernels.lstm``. What does not wait for the step before is one large product
over all steps, outside the kernels: x W_ih^T, and in the backward pass all that follows from the gradients of
the gates.

What is rounded to what (``devices.products``), forwards and backwards:

==============================  =====================  ====================  ======================
                                fp32                   tf32                  bf16
==============================  =====================  ====================  ======================
factors of products outside     float32                TF32, or float16      bf16
                                                       with gains (below)
factors of h W_hh^T             float32, by three      float16, which has    bf16
                                TF32 products          the bits of TF32
factors of dgates W_hh          likewise               likewise, each row    bf16
                                                       scaled to its range
the gates that are kept         float32                float16: all within   float16
                                                       1
what goes into gates            float32                float32               bf16
its gradients                   float32                float32, or float16   bf16
                                                       with gains (below)
h, c, sums                      float32                float32               float32
sigmoid and tanh                to 1e-6                to 1e-6               to 5e-4
==============================  =====================  ====================  ======================

Float16 ends at 65504: weights of that size would be infinite in ``tf32``, and so would an initial h.

The recurrent weights of up to 128 units (in fp32 64) stay on every processor (``fused_lstm_resident``), those
of up to 256 are spread over four (``fused_lstm_spread``; not in fp32), and more are read at every step
(``fused_lstm_stream``). Where they are spread, the products after the backward pass would take longer in TF32
than the pass itself: there their factors are float16. The gradients of what goes into gates have a gain for
each row, x and W_ih have one each (``fused_halves``), and h has none.

Nothing is read on the host, so that a CUDA graph can hold all of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recollect.base import devices
from recollect.base.devices import Products
from recollect.kernels.triton import available
from recollect.kernels.triton import halves as halves
from recollect.kernels.triton.lstm import resident as resident
from recollect.kernels.triton.lstm import spread as spread
from recollect.kernels.triton.lstm import streamed as stream
from recollect.kernels.triton.tiling import (
    ANY,
    MAX_HIDDEN,
    Blocks,
    Kind,
    choose,
    groups,
    has_room,
    launch_spread,
    nearest,
    padded,
    product,
    rounding,
)

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
"""By kernel and rounding: up to so many rows, so they are cut up."""
CHOSEN: dict[str, Blocks] = {}
"""Blocks for ``forward`` and ``backward`` that a benchmark tries in place of the table."""

_FACTOR = {"fp32": torch.float32, "tf32": torch.float16, "bf16": torch.bfloat16}
_OUTSIDE = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
_GATES = {"fp32": torch.float32, "tf32": torch.float16, "bf16": torch.float16}

_SAMPLE = 256
"""Rows of which the gradients are looked at, about, to guess how large they are."""


def suits(x: Tensor, H: int) -> bool:
    """Whether ``lstm`` takes x [..., D] and H units."""
    return available.suits(x) and H <= MAX_HIDDEN and x.numel() > 0


def lstm_blocks(B: int, H: int, products: Products, way: str, has_room: bool) -> tuple[Kind, Blocks]:
    """See ``fused_blocks.choose``; what is in ``CHOSEN`` goes before the table."""
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
        h: [B, H] the state before step 0.
        c: [B, H] likewise.
        w_ih: [4H, D].
        w_hh: [4H, H].
        b_ih: [4H].
        b_hh: [4H].
        first: [T, B]: where the state is replaced by the initial one, whatever it holds.
        initial: (h, c), each [1, H], or zeros.

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
    """What the backward pass needs; ``parts`` is x and the h of each step, side by side.

    Of weights that are spread ``parts`` is float16 in ``tf32``, x with a gain (``fused_halves``).
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
    """y, h, c, and with ``keep`` what the backward pass needs."""
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
        **rounding(x, products),
    }
    start = (_or(h0, y), _or(c0, y))
    given = (xg, h, c, w, _bytes(first), *start, y)
    if kind == "resident":
        sizes = {"HP": padded(H), "AHEAD": blocks.prefetch, "STAGES": blocks.stages}
        given = (*given, h_end, c_end, begun, gates, cells, T, B)
        _launch(resident.forward, B, blocks, *given, **flags, **sizes)
    elif kind == "spread":
        given = (*given, h_end, c_end, begun, gates, cells)
        sizes = {"exchange": (blocks.rows, padded(H)), "dtype": w.dtype, "HP": padded(H)}
        sizes |= {"T": T, "B": B, "BB": blocks.rows}
        team = groups(x, T, B, H, blocks.rows)
        launch_spread(spread.forward, team, blocks, *given, **flags, **sizes)
    else:
        given = (*given, torch.empty(2, B, H, dtype=w.dtype, device=x.device), begun, gates, cells, T, B)
        _launch(stream.forward, B, blocks, *given, **flags, **_streamed(blocks, H))
        h_end = y[T - 1].clone()
        c_end = cells[T].clone() if keep else cells
    return y, h_end, c_end, kept


def _side_by_side(
    x: Tensor, H: int, products: Products, by_halves: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """x as a factor [T * B, D], ``_Kept.parts`` with x in it, and its gain there."""
    (T, B, D), outside = x.shape, _OUTSIDE[products]
    dtype = torch.float16 if by_halves else outside
    parts = torch.empty(T, B, _aligned(D) + _aligned(H), dtype=dtype, device=x.device)
    whole = parts.view(T * B, -1)
    if by_halves:
        flat = x.reshape(T * B, D).contiguous()
        return flat, parts, halves.narrow(flat, whole)
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
    """The gradients of x, h, c, w_ih, w_hh, b_ih, b_hh, h0, c0, of which ``needs`` says which are wanted."""
    (T, B, _), H, D = kept.gates.shape, w_hh.shape[1], w_ih.shape[1]
    outside, single = _OUTSIDE[products], {"dtype": torch.float32, "device": w_hh.device}
    dy, dh, dc = gradients
    dy = torch.zeros(T, B, H, **single) if dy is None else dy.contiguous()
    # The kernel that streams overwrites these two.
    dh = torch.zeros(B, H, **single) if dh is None else dh.clone(memory_format=torch.contiguous_format)
    dc = torch.zeros(B, H, **single) if dc is None else dc.clone(memory_format=torch.contiguous_format)
    kind, blocks = lstm_blocks(B, H, products, "backward", has_room(dy))
    by_halves = _by_halves(kind, products)
    d = torch.empty(T, B, 4 * H, dtype=torch.float16 if by_halves else outside, device=w_hh.device)
    flags = {
        "H": H,
        "LEARNED": c0 is not None,
        **rounding(dy, products),
    }
    team = groups(dy, T, B, H, blocks.rows) if kind == "spread" else None
    shape = (team.number if team else B, H)
    dh0, dc0 = (dh, dc) if c0 is None else (torch.zeros(shape, **single), torch.zeros(shape, **single))
    saved = (_bytes(first), _or(c0, dy), kept.gates, kept.cells, d)
    bias = gains = None
    if kind == "resident":
        w, bias = w_hh.to(_FACTOR[products]).contiguous(), torch.empty(-(-B // blocks.rows), 4 * H, **single)
        sizes = {"HP": padded(H), "SCALED": products == "tf32"}
        sizes |= {"STAGES": blocks.stages, "AHEAD": blocks.prefetch}
        given = (dy, dh, dc, w, *saved, dh, dc, dh0, dc0, bias, T, B)
        _launch(resident.backward, B, blocks, *given, **flags, **sizes)
    elif team:
        w, bias = w_hh.to(_FACTOR[products]).contiguous(), torch.empty(team.number, 4 * H, **single)
        ends = (dh, dc)
        dh, dc = torch.empty_like(dh), torch.empty_like(dc)
        given = (dy, *ends, w, *saved, dh, dc, dh0, dc0, bias)
        sizes = {"HP": padded(H), "SCALED": by_halves, "T": T, "B": B, "BB": blocks.rows}
        sizes |= {"exchange": (team.members, blocks.rows * padded(H)), "dtype": torch.float32}

        def launch(*scales: Tensor) -> None:
            launch_spread(spread.backward, team, blocks, *given, *scales, **flags, **sizes)

        if by_halves:
            samples = (dy[:, :: -(-B // _SAMPLE)], *(end for end in gradients[1:] if end is not None))
            gains = halves.tried(launch, halves.guess(*samples, n=B))
        else:
            launch(dy, dy, dy)  # pointers that it does not use
    else:
        given = (*saved, dh, dc, dh0, dc0)
        w = nearest(w_hh.to(outside).t().contiguous(), products)
        _launch(stream.backward, B, blocks, dy, w, *given, T, B, **flags, **_streamed(blocks, H))

    flat = d.view(T * B, 4 * H)
    dx = dw_ih = dw_hh = None
    if needs[0]:
        dx = halves.multiply(flat, w_ih, gains) if gains else product(flat, w_ih.to(outside))
        dx = dx.view(T, B, D)
    if needs[3] or needs[4]:
        least = halves.level(flat, gains) if gains else None
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
    """Whether the products of the gradients of what goes into gates are those of ``fused_halves``."""
    return kind == "spread" and products == "tf32"


def _launch(kernel: Any, B: int, blocks: Blocks, *given: Any, **flags: Any) -> None:
    with torch.cuda.device_of(given[0]):
        kernel[-(-B // blocks.rows),](*given, BB=blocks.rows, **blocks.options, **flags)


def _streamed(blocks: Blocks, H: int) -> dict[str, int]:
    most = padded(H)
    return {
        "BN": min(blocks.units, most),
        "BK": min(blocks.depth, most),
        "STAGES": blocks.stages,
    }


def _aligned(size: int) -> int:
    """Where the next part may begin: fast products want rows in steps of 16 bytes."""
    return -(-size // 8) * 8


def _bytes(first: Tensor) -> Tensor:
    return first.contiguous().view(torch.uint8)


def _or(given: Tensor | None, other: Tensor) -> Tensor:
    """What a kernel is given as a pointer that it does not use, where there is none."""
    return other if given is None else given.contiguous()
