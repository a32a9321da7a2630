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
are float16: gate gradients have a gain for each row, x and W_ih one each (``scaled_float16``), h none.

Nothing is read on the host, so a CUDA graph can capture all of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recollect.base import devices
from recollect.base.devices import Products
from recollect.kernels.autograd_node import Grads, Kept, Need, Saved, node
from recollect.kernels.triton import scaled_float16
from recollect.kernels.triton.lstm import resident, spread, streamed
from recollect.kernels.triton.tiling import ANY, FACTOR, OUTSIDE, Blocks, Plan, nearest, product
from recollect.kernels.triton.tiling import suits as suits

_AHEAD = ((2112, Blocks(16, 8, True, stages=1)), (ANY, Blocks(32, 8, True, stages=1)))
"""Up to 16 rows for each of an H100's 132 processors, and beyond."""
_SHARED = ((528, Blocks(16, 8)), (1056, Blocks(32, 8)), (ANY, Blocks(64, 8)))
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

_KERNELS = {"resident": resident, "spread": spread, "streamed": streamed}
_GATES = {"fp32": torch.float32, "tf32": torch.float16, "bf16": torch.float16}

_SAMPLE = 256
"""About as many rows are sampled to guess the size of the gradients."""


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

    The arguments are those of ``kernels.cpu.lstm`` in float32, except for: h and c [B, H], the raw state
    before step 0; first [T, B], where ``initial`` replaces it; initial (h, c), each [1, H], None: zeros.

    Returns y [T, B, H], and h and c [B, H] after the last step.
    """
    tensors = (x, h, c, w_ih, w_hh, b_ih, b_hh, *(initial or (None, None)), first)
    with torch.autocast(x.device.type, enabled=False):
        return node(_forward, _backward, *tensors, products=devices.products())


def _forward(*inputs: Any, products: Products, keep: bool) -> tuple[tuple[Tensor, ...], Kept]:
    """y, h, c, and with ``keep`` the inputs of the backward pass."""
    x, h, c, w_ih, w_hh, b_ih, b_hh, h0, c0, first = inputs
    (T, B, D), H, outside = x.shape, w_hh.shape[1], OUTSIDE[products]
    plan = Plan(TABLE, x, (T, B, H), products, "forward")
    y, h_end, c_end = x.new_empty(T, B, H), x.new_empty(B, H), x.new_empty(B, H)
    if keep:
        flat, parts, gain = _side_by_side(x, H, products, _by_halves(plan, products))
        h_in, width = parts[..., _aligned(D) :], parts.shape[2]
        gates, cells = x.new_empty(T, B, 4 * H, dtype=_GATES[products]), x.new_empty(T + 1, B, H)
    else:
        flat, parts, gain = x.to(outside).reshape(T * B, D), None, None
        h_in, width, gates, cells = y, 0, y, c_end
    with devices.rounded(products):
        xg = torch.addmm((b_ih + b_hh).to(outside), flat, w_ih.to(outside).t())
    w, first = w_hh.to(FACTOR[products]).contiguous(), first.contiguous().view(torch.uint8)
    given = (xg, h.contiguous(), c.contiguous(), w, first, _or(h0, y), _or(c0, y), y)
    ends = (w.new_empty(2, B, H),) if plan.kind == "streamed" else (h_end, c_end)
    flags = {"WIDTH": width, "LEARNED": h0 is not None, "KEEP": keep}
    plan.launch(_KERNELS[plan.kind].forward, *given, *ends, h_in, gates, cells, **flags)
    if plan.kind == "streamed":
        h_end, c_end = y[T - 1].clone(), cells[T].clone() if keep else cells
    return (y, h_end, c_end), (first, w_ih, w_hh, c0, parts, gain, gates, cells)


def _side_by_side(
    x: Tensor, H: int, products: Products, by_halves: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """x as a factor [T * B, D]; x beside room for the input h of each step, [T, B, WIDTH]; and the gain of x.

    With spread weights in ``tf32``, the second is float16, and x in it has a gain [1] (``scaled_float16``).
    """
    (T, B, D), outside = x.shape, OUTSIDE[products]
    dtype = torch.float16 if by_halves else outside
    parts = torch.empty(T, B, _aligned(D) + _aligned(H), dtype=dtype, device=x.device)
    whole = parts.view(T * B, -1)
    if by_halves:
        flat = x.reshape(T * B, D).contiguous()
        return flat, parts, scaled_float16.narrow(flat, whole)
    parts[..., :D] = x
    return whole[:, :D], parts, None


def _backward(grads: Grads, saved: Saved, need: Need, products: Products) -> Grads:
    """The gradients of x, h, c, w_ih, w_hh, b_ih, b_hh, h0, c0; products only where ``need`` is true."""
    dy, *ends = grads
    first, w_ih, w_hh, c0, parts, gain, gates, cells = saved
    (T, B, _), H, D = gates.shape, w_hh.shape[1], w_ih.shape[1]
    plan = Plan(TABLE, w_hh, (T, B, H), products, "backward")
    by_halves, outside, is_learned = _by_halves(plan, products), OUTSIDE[products], c0 is not None
    dy = w_hh.new_zeros(T, B, H) if dy is None else dy.contiguous()
    dh, dc = (  # resident and streamed kernels overwrite them
        w_hh.new_zeros(B, H) if end is None else end.clone(memory_format=torch.contiguous_format)
        for end in ends
    )
    d = w_hh.new_empty(T, B, 4 * H, dtype=torch.float16 if by_halves else outside)
    shape = (plan.sums if plan.kind == "spread" else B, H)
    dh0, dc0 = (w_hh.new_zeros(shape), w_hh.new_zeros(shape)) if is_learned else (dh, dc)
    given = (first, _or(c0, dy), gates, cells, d)
    bias = gains = None
    if plan.kind == "streamed":
        w = nearest(w_hh.to(outside).t().contiguous(), products)
        plan.launch(streamed.backward, dy, w, *given, dh, dc, dh0, dc0, LEARNED=is_learned)
    else:
        w, bias = w_hh.to(FACTOR[products]).contiguous(), w_hh.new_empty(plan.sums, 4 * H)
        given = (dy, dh, dc, w, *given)
        if plan.kind == "spread":  # may run twice, so it must not overwrite its inputs
            dh, dc = torch.empty_like(dh), torch.empty_like(dc)

        def launch(*scales: Tensor) -> None:
            flags = {"LEARNED": is_learned, "SCALED": products == "tf32"}
            plan.launch(_KERNELS[plan.kind].backward, *given, dh, dc, dh0, dc0, bias, *scales, **flags)

        if by_halves:
            samples = (dy[:, :: -(-B // _SAMPLE)], *(end for end in ends if end is not None))
            gains = scaled_float16.tried(launch, scaled_float16.guess(*samples, n=B))
        else:
            launch(*((dy, dy, dy) if plan.kind == "spread" else ()))  # unused pointers

    flat = d.view(T * B, 4 * H)
    dx = dw_ih = dw_hh = db = None
    with devices.rounded(products), torch.autocast(d.device.type, enabled=False):
        if need[0]:
            dx = scaled_float16.multiply(flat, w_ih, gains) if gains else product(flat, w_ih.to(outside))
            dx = dx.view(T, B, D)
        if need[3] or need[4]:
            least = scaled_float16.level(flat, gains) if gains else None
            weights = product(flat.t(), parts.view(T * B, -1))  # [4H, WIDTH]: one product for both
            dw_ih, dw_hh = weights[:, :D], weights[:, _aligned(D) :][:, :H]
            if least is not None:
                dw_ih, dw_hh = dw_ih / gain / least, dw_hh / least
        if need[5] or need[6]:
            db = flat.sum(0, dtype=torch.float32) if bias is None else bias.sum(0)
    start = (dh0.sum(0, keepdim=True), dc0.sum(0, keepdim=True)) if is_learned else ()
    return dx, dh, dc, dw_ih, dw_hh, db, db, *start


def _by_halves(plan: Plan, products: Products) -> bool:
    """Whether products of gate gradients have float16 factors (``scaled_float16``)."""
    return plan.kind == "spread" and products == "tf32"


def _aligned(size: int) -> int:
    """``size`` rounded up to 8: fast products need rows aligned to 16 bytes."""
    return -(-size // 8) * 8


def _or(given: Tensor | None, other: Tensor) -> Tensor:
    """``given``, or ``other`` as an unused pointer."""
    return other if given is None else given.contiguous()
