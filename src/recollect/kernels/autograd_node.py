"""A kernel with its own backward pass as one node of the autograd graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Kept = Sequence[Tensor | None]
"""The tensors that a forward pass keeps for the backward pass."""
Saved = Sequence[Tensor]
"""The same tensors in the backward pass, where a None stays None."""
Grads = Sequence[Tensor | None]
"""The gradients of all outputs, or of all inputs; None: no gradient."""
Need = Sequence[bool]
"""Which inputs need a gradient; an unneeded gradient may be returned, and is dropped."""


def node(
    forward: Callable[..., tuple[Any, Kept]],
    backward: Callable[..., Grads],
    *inputs: Tensor | None,
    **options: Any,
) -> Any:
    """The outputs of a kernel, a tuple.

    Args:
        forward: ``forward(*inputs, keep=, **options)`` returns the outputs, and if ``keep`` the tensors for
            the backward pass.
        backward: ``backward(grads, saved, need, **options)`` returns the gradients of the inputs, up to the
            last one that can have a gradient. The gradient of a single output is never None.
        inputs: of the kernel.
        options: arguments that are not tensors.
    """
    forward = partial(forward, **options)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        return _Node.apply(forward, partial(backward, **options), *inputs)
    return forward(*inputs, keep=False)[0]


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, forward: Any, backward: Any, *inputs: Any) -> Any:
        outputs, saved = forward(*inputs, keep=True)
        ctx.save_for_backward(*saved)
        ctx.of_inputs = backward
        ctx.set_materialize_grads(len(outputs) == 1)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        _, _, *need = ctx.needs_input_grad
        found = ctx.of_inputs(grads, ctx.saved_tensors, need)
        return None, None, *found, *(None for _ in need[len(found) :])
