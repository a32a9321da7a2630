"""Packed segments on cuDNN, whose packed sequences have the same layout.

cuDNN runs a batch with resets as a batch of shorter sequences, all layers in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from recollect.kernels.segments import Segments


def suits(x: Tensor) -> bool:
    """Whether x [T, B, D] is on a GPU with cuDNN."""
    return x.is_cuda and torch.backends.cudnn.is_acceptable(x)


def run_packed(
    function: Callable[..., Sequence[Tensor]],
    x: Tensor,
    state: tuple[Tensor, ...],
    weights: Sequence[Tensor],
    segments: Segments,
) -> tuple[Tensor, ...]:
    """``torch.lstm`` or ``torch.gru`` over x [T, B, D].

    Args:
        function: one of the two.
        x: [T, B, D].
        state: the start states of the segments: (h, c) or (h,), each [S, layers, H].
        weights: of all layers, as in ``nn.LSTM._flat_weights``.
        segments: the layout.

    Returns:
        y [T, B, H], then the leaves of the state after the last step, each [B, layers, H].
    """
    layers = state[0].shape[1]
    begin = tuple(leaf.transpose(0, 1).contiguous() for leaf in state)  # [layers, S, H]
    # The forward pass has the precision of an acting step, a plain product. The backward pass runs later,
    # under the caller's settings: TF32 unless torch.backends.cudnn.allow_tf32 is off.
    now = torch.backends.cudnn
    precise = now.flags(
        enabled=True,
        benchmark=now.benchmark,
        deterministic=now.deterministic,
        allow_tf32=bool(torch.backends.cuda.matmul.allow_tf32),
    )
    hx = begin[0] if len(begin) == 1 else begin
    # cuDNN needs its training mode for a backward pass, in any mode of the module.
    settings = (list(weights), True, layers, 0.0, torch.is_grad_enabled(), False)
    with precise:
        if segments.order is None:  # equal lengths have faster algorithms
            y, *end = function(x, hx, *settings, False)
        else:
            y, *end = function(segments.pack(x), torch.tensor(segments.sizes), hx, *settings)
            y = segments.unpack(y)
    rows = [leaf.index_select(1, segments.last).transpose(0, 1) for leaf in end]
    return y, *rows
