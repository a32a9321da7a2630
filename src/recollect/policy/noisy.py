"""A linear layer with noise on its weights, for exploration.

    y = (W + S * f(e_out) f(e_in)^T) x + b + s * f(e_out),    f(e) = sign(e) sqrt(abs(e)),    e ~ N(0, 1)

with learned W, S, b and s: Fortunato et al., "Noisy networks for exploration" (2018), factorised noise.

The noise lies in buffers and is drawn by ``draw_noise`` alone, so acting and learning see the same noise, and
it travels with the weights. Before the first draw it is zero. The layer uses the means W and b in eval mode,
as in evaluations, and inside ``means()``, as in sessions, which may share a policy with a training run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from recollect.kernels import exact_linear

_uses_means: ContextVar[bool] = ContextVar("uses_means", default=False)


@contextmanager
def means() -> Iterator[None]:
    """Noisy layers use their mean weights here, in this thread alone."""
    token = _uses_means.set(True)
    try:
        yield
    finally:
        _uses_means.reset(token)


class NoisyLinear(nn.Linear):
    """See the module's docstring. Float32 at any precision setting (``kernels.exact_linear``)."""

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, inputs: int, outputs: int, noise_scale: float = 0.5):
        """``noise_scale``: the initial S and s, times the square root of ``inputs``."""
        super().__init__(inputs, outputs)
        std = noise_scale / math.sqrt(inputs)
        self.weight_std = nn.Parameter(torch.full((outputs, inputs), std))
        self.bias_std = nn.Parameter(torch.full((outputs,), std))
        self.register_buffer("noise_in", torch.zeros(inputs))
        self.register_buffer("noise_out", torch.zeros(outputs))

    @torch.no_grad()
    def draw_noise(self, generator: torch.Generator | None = None) -> None:
        """Draw f(e_in) and f(e_out), in this order, on the generator's device."""
        device = self.noise_in.device if generator is None else generator.device
        for noise in (self.noise_in, self.noise_out):
            e = torch.randn(noise.shape, generator=generator, device=device)
            noise.copy_(e.sign() * e.abs().sqrt())

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Input [..., inputs] -> [..., outputs]."""
        weight, bias = self.weight, self.bias
        if self.training and not _uses_means.get():
            weight = torch.addcmul(weight, self.weight_std, torch.outer(self.noise_out, self.noise_in))
            bias = torch.addcmul(bias, self.bias_std, self.noise_out)
        return exact_linear.linear(input, weight, bias)
