"""A short causal depthwise convolution over time, over sequences with resets.

    v[t] = sum_j weight[K-1-j] x[t-j]        j = 0 .. K-1, within the episode

and silu(v + bias) if there is a bias. Inputs before an episode are zeros; those before the sequence are the
window of the state.

One node of the autograd graph. Step k of an episode has lags up to k. The sum starts with the longest lag;
before the next lag is added, the sum is set to zero where that lag exceeds the episode. So there is no mask
for every lag, and no product with values that a reset discarded.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from recollect.base import devices
from recollect.kernels.autograd_node import Grads, Kept, Need, Saved, node


def causal_conv(
    x: Tensor, window: Tensor, weight: Tensor, first: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """All steps.

    Args:
        x: [T, B, D].
        window: [B, K-1, D] the raw inputs before the first step, oldest first.
        weight: [K, D], oldest step first.
        first: [T, B].
        bias: [D]; with one, the result goes through a silu.

    Returns:
        [T, B, D], and the window [B, K-1, D] after the last step.
    """
    K, T = weight.shape[0], x.shape[0]
    padded = torch.cat((window.transpose(0, 1), x))  # [K - 1 + T, B, D]
    steps = torch.arange(T, device=x.device).unsqueeze(1)
    opened = torch.where(first, steps, -K).cummax(0).values  # [T, B] the step that opened the episode
    age = steps - opened
    lags = torch.arange(K - 2, -1, -1, device=x.device)  # of the steps in the window, from the last step
    is_empty = age[-1].unsqueeze(1) < lags
    window = padded[T:].transpose(0, 1).masked_fill(is_empty.unsqueeze(2), 0)  # [B, K - 1, D]
    (y,) = node(_forward, _backward, padded, weight, bias, age)
    return y, window


def _forward(
    padded: Tensor, weight: Tensor, bias: Tensor | None, age: Tensor, keep: bool
) -> tuple[tuple[Tensor], Kept]:
    """padded [K - 1 + T, B, D], age [T, B] -> [T, B, D], and the inputs of the backward pass."""
    K, T = weight.shape[0], age.shape[0]
    v = padded[:T] * weight[0]
    for tap in range(1, K):
        _clear(v, age < K - tap)  # of the taps before this one
        v.addcmul_(padded[tap : tap + T], weight[tap])
    if bias is None:
        return (v,), (padded, weight, age, None)
    v += bias
    return (silu(v),), (padded, weight, age, v)


def _backward(grads: Grads, saved: Saved, need: Need) -> Grads:
    """The gradients of ``padded``, the weight and the bias."""
    (dy,), (padded, weight, age, v) = grads, saved
    assert dy is not None
    needs_padded, needs_weight, needs_bias, _ = need
    K, T = weight.shape[0], age.shape[0]
    if v is None:
        dv = dy.clone(memory_format=torch.contiguous_format)
    else:
        dv = torch.ops.aten.silu_backward(dy, v).contiguous()
    dbias = dv.sum((0, 1)) if needs_bias else None
    dpadded = torch.zeros_like(padded) if needs_padded else None
    dweight = torch.empty_like(weight) if needs_weight else None
    for tap in range(K - 1, -1, -1):
        hidden = age < K - 1 - tap
        _clear(dv, hidden)
        seen = slice(tap, tap + T)
        if dpadded is not None:
            dpadded[seen].addcmul_(dv, weight[tap])
        if dweight is not None:
            products = dv * padded[seen]
            _clear(products, hidden)  # zero times NaN is NaN
            torch.sum(products, (0, 1), out=dweight[tap])
    return dpadded, dweight, dbias


def _clear(x: Tensor, mask: Tensor) -> None:
    """Zeros into x [T, B, D] where mask [T, B]."""
    if devices.synchronises(x):
        x.masked_fill_(mask.unsqueeze(-1), 0)
    else:  # few rows are set, and a host read does not synchronise here
        x.flatten(0, 1).index_fill_(0, mask.flatten().nonzero().squeeze(1), 0)
