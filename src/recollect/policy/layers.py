"""Layers with activation and matching initial weights, and stacks of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.kernels import exact_linear
from recollect.kernels.cpu import linear_tanh

ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    # With the gain that preserves the scale of activations; that of silu is 1 / rms(silu(z)).
    "tanh": (torch.tanh, 5.0 / 3.0),
    "relu": (torch.relu, math.sqrt(2.0)),
    "silu": (F.silu, 1.68),
}

NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, kernel and stride of the layers of Mnih et al., 2015."""


class Dense(nn.Linear):
    """Linear, optional layer norm, activation: one module call instead of three.

    With ``exact`` the linear part is float32 at any precision (``kernels.exact_linear``).
    """

    def __init__(
        self, inputs: int, outputs: int, activation: str, layer_norm: bool = False, exact: bool = False
    ):
        super().__init__(inputs, outputs)
        self.exact = exact
        self.activation, gain = ACTIVATIONS[activation]
        self.norm = nn.LayerNorm(outputs) if layer_norm else None
        orthogonal(self, gain)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Input [..., inputs] -> [..., outputs]."""
        if self.norm is None and self.activation is torch.tanh:
            if linear_tanh.suits(input, self.weight):
                return linear_tanh.linear_tanh(input, self.weight, self.bias)
            if self.exact:
                return exact_linear.linear(input, self.weight, self.bias, "tanh")
        x = (exact_linear.linear if self.exact else F.linear)(input, self.weight, self.bias)
        return self.activation(x if self.norm is None else self.norm(x))


class Conv(nn.Conv2d):
    """Convolution and activation."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int | tuple[int, int],
        padding: int,
        activation: str,
    ):
        super().__init__(inputs, outputs, kernel, stride, padding)
        self.activation, gain = ACTIVATIONS[activation]
        orthogonal(self, gain)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Input [N, inputs, H, W] -> [N, outputs, H', W']."""
        return self.activation(super().forward(input))


def mlp(
    inputs: int, widths: tuple[int, ...], activation: str, layer_norm: bool = False, exact_first: bool = False
) -> nn.Module:
    """Dense layers of these widths, the first one exact with ``exact_first``; the identity without widths."""
    sizes = enumerate(pairwise((inputs, *widths)))
    layers = [Dense(n, m, activation, layer_norm, exact_first and i == 0) for i, (n, m) in sizes]
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers)


def small_conv(shape: tuple[int, int, int], activation: str, side: int = 8) -> tuple[nn.Module, int]:
    """At least two 3 x 3 layers that halve each side until it is at most ``side``; and their output size."""
    channels, height, width = shape
    layers: list[nn.Module] = []
    while len(layers) < 2 or max(height, width) > side:
        stride = (1 + (height > side), 1 + (width > side))
        outputs = 32 if layers else 16
        layers.append(Conv(channels, outputs, 3, stride, 1, activation))
        channels, height, width = outputs, math.ceil(height / stride[0]), math.ceil(width / stride[1])
    return nn.Sequential(*layers), channels * height * width


def nature_conv(shape: tuple[int, int, int], activation: str) -> tuple[nn.Module, int]:
    """The layers of ``NATURE``, and their output size."""
    channels, height, width = shape
    layers: list[nn.Module] = []
    for outputs, kernel, stride in NATURE:
        layers.append(Conv(channels, outputs, kernel, stride, 0, activation))
        channels, height, width = outputs, *((side - kernel) // stride + 1 for side in (height, width))
    return nn.Sequential(*layers), channels * height * width


def orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    """Initialise with orthogonal weights of this gain and zero biases."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
