"""A short causal convolution: every feature as a weighted sum of its last few values.

    v_t = w_0 x_t + w_1 x_{t-1} + ... + w_{K-1} x_{t-K+1}         elementwise; zeros before an episode

Memories whose gates see the input alone take their sense of order from it: what is new can depend on what
was there right before.

Over many steps it is one node of the autograd graph. A step that is k steps into its episode sees lags up to
k, so that the steps that do not see a lag see none of the longer ones either. The sum begins with the longest
lag, and before the next is added, it is written over with zeros where it must not be seen: no mask for
every lag, and no product with what a reset has thrown away.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Convolution(nn.Module):
    """Its state is the last K - 1 inputs [B, K - 1, D], the latest one first."""

    def __init__(self, input_size: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, input_size))
        # The variance of v is that of x, if x is noise.
        nn.init.uniform_(self.weight, -math.sqrt(3 / width), math.sqrt(3 / width))

    def step(self, x: Tensor, recent: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, D], recent [B, K - 1, D] -> v [B, D], recent."""
        window = torch.cat((x.unsqueeze(1), recent), 1)
        return (window * self.weight).sum(1), window[:, :-1]

    def unroll(self, x: Tensor, recent: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, B, D], recent [B, K - 1, D] at step 0, first [T, B] -> v [T, B, D], recent."""
        K, T = self.weight.shape[0], x.shape[0]
        padded = torch.cat((recent.transpose(0, 1).flip(0), x))  # [K - 1 + T, B, D]
        steps = torch.arange(T, device=x.device).unsqueeze(1)
        begun = torch.where(first, steps, -K).cummax(0).values  # [T, B] the step that opened the episode
        age = steps - begun
        last = padded[T:].flip(0).transpose(0, 1)  # [B, K - 1, D]
        lags = torch.arange(K - 1, device=x.device)
        last = last.masked_fill((age[-1].unsqueeze(1) < lags).unsqueeze(-1), 0)
        v: Any = _Convolve.apply(padded, self.weight, age)
        return v, last


class _Convolve(torch.autograd.Function):
    """padded [K - 1 + T, B, D], weight [K, D], age [T, B] -> v [T, B, D]."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        padded, weight, age = inputs
        K, T = weight.shape[0], age.shape[0]
        v = padded[:T] * weight[-1]
        for lag in range(K - 2, -1, -1):
            _clear(v, age <= lag)  # of the lags above this one
            v.addcmul_(padded[K - 1 - lag :][:T], weight[lag])
        ctx.save_for_backward(*inputs)
        return v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        padded, weight, age = ctx.saved_tensors
        need_padded, need_weight, _ = ctx.needs_input_grad
        K, T = weight.shape[0], age.shape[0]
        dv = grads[0].clone(memory_format=torch.contiguous_format)
        dpadded = torch.zeros_like(padded) if need_padded else None
        dweight = torch.empty_like(weight) if need_weight else None
        for lag in range(K):
            hidden = age < lag
            _clear(dv, hidden)
            seen = slice(K - 1 - lag, K - 1 - lag + T)
            if dpadded is not None:
                dpadded[seen].addcmul_(dv, weight[lag])
            if dweight is not None:
                products = dv * padded[seen]
                _clear(products, hidden)  # zero times what a reset has thrown away
                torch.sum(products, (0, 1), out=dweight[lag])
        return dpadded, dweight, None


def _clear(x: Tensor, mask: Tensor) -> None:
    """Zeros into x [T, B, D] where mask [T, B]."""
    if x.is_cuda:
        x.masked_fill_(mask.unsqueeze(-1), 0)
    else:  # few rows of many; finding them waits for nothing here
        x.flatten(0, 1).index_fill_(0, mask.flatten().nonzero().squeeze(1), 0)
