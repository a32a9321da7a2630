"""Activation recomputation: actions are evaluated a second time in the backward pass.

A batch of L steps is unrolled in about sqrt(L) segments of time. The forward pass keeps only the inputs of
each segment, views of the observations and the state at its start. The backward pass runs encoder, core and
heads of a segment again. So the activations of one segment are in memory at a time, at the price of a
second forward pass. By the law of cores, segments give the same numbers as the whole.

``torch.utils.checkpoint`` without reentry intercepts what autograd saves in the calling thread only. Rows
that ``row_threads`` unrolls in other threads would keep their graphs. Here the first pass builds no graph
in any thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recollect.base import tree
from recollect.base.gradients import gradients
from recollect.base.types import State, Tree
from recollect.experience.chunks import Chunks
from recollect.policy.head_contract import Outputs
from recollect.policy.policy import Policy

Tensors = tuple[Tensor, ...]


def segments(steps: int) -> int:
    """The number of segments of an unroll of ``steps``."""
    return max(1, round(math.sqrt(steps)))


def evaluate(
    policy: Policy, batch: Chunks, again: bool, features: list[Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """log_prob, entropy, value [L, N] of a batch by ``policy.evaluate_actions``.

    ``again``: with activation recomputation. The inputs of the heads, [L, N, D], are appended to ``features``
    if it is given.
    """
    if not again:
        return policy.evaluate_actions(batch.obs, batch.action, batch.state, batch.first, features)

    def read(outputs: Outputs, action: Tree) -> Tensors:
        dist, value = outputs
        return dist.log_prob(action), dist.entropy(), value

    log_prob, entropy, value = _in_segments(policy, batch, read, features)
    return log_prob, entropy, value


def record(policy: Policy, batch: Chunks, again: bool) -> dict[str, Tensor]:
    """The head's record [L, N, ...] of the actions of a batch; ``again``: with activation recomputation."""
    head = policy.head
    if not again:
        *outputs, _ = policy.unroll(batch.obs, batch.state, batch.first)
        return head.record(outputs, batch.action)
    names = list(head.record_spec)

    def read(outputs: Outputs, action: Tree) -> Tensors:
        made = head.record(outputs, action)
        return tuple(made[name] for name in names)

    return dict(zip(names, _in_segments(policy, batch, read)))


Read = Callable[[Outputs, Tree], Tensors]
"""Tensors [K, N, ...] that are read from the head's outputs and the actions of K steps."""


def _in_segments(policy: Policy, batch: Chunks, read: Read, features: list[Tensor] | None = None) -> Tensors:
    """``read`` of the outputs of a batch [L, N, ...], which is unrolled in segments."""
    obs, action, state, first = batch.obs, batch.action, batch.state, batch.first
    steps, found = len(first), []
    count = segments(steps)
    for span in (slice(steps * k // count, steps * (k + 1) // count) for k in range(count)):
        part = _segment(policy, tree.index(obs, span), tree.index(action, span), state, first[span], read)
        carried = len(part) - len(tree.leaves(state))
        found.append(part[:carried])
        state = tree.from_leaves(state, part[carried:])
    *outputs, y = zip(*found)
    if features is not None:
        features.append(torch.cat(y))
    return tuple(torch.cat(parts) for parts in outputs)


def _segment(policy: Policy, obs: Tree, action: Tree, state: State, first: Tensor, read: Read) -> Tensors:
    """``read`` [K, N, ...] and features [K, N, D] of a segment, and the leaves of its last state."""
    seen, carried = tree.leaves(obs), tree.leaves(state)

    def fn(*leaves: Tensor) -> Tensors:
        start = tree.from_leaves(state, leaves[len(seen) :])
        kept: list[Tensor] = []
        *outputs, after = policy.unroll(tree.from_leaves(obs, leaves[: len(seen)]), start, first, kept)
        after = tree.map(lambda _, leaf: leaf, state, after)  # a core's dict may have another order
        return *read(outputs, action), *kept, *tree.leaves(after)

    weights = [p for p in policy.parameters() if p.requires_grad]
    inputs = len(seen) + len(carried)
    return _Recomputed.apply(fn, inputs, *seen, *carried, *weights)  # pyright: ignore[reportReturnType]


class _Recomputed(torch.autograd.Function):
    """``fn(*inputs)``, which keeps its inputs only. The weights of ``fn`` follow the inputs."""

    @staticmethod
    def forward(ctx: Any, fn: Callable[..., Tensors], inputs: int, *tensors: Tensor) -> Tensors:
        ctx.fn, ctx.weights = fn, tensors[inputs:]
        ctx.save_for_backward(*tensors[:inputs])
        ctx.set_materialize_grads(False)
        return fn(*tensors[:inputs])  # no graph: autograd is off in here

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None):  # pyright: ignore[reportIncompatibleMethodOverride]
        need = ctx.needs_input_grad[2:]
        own = [t.detach().requires_grad_(needed) for t, needed in zip(ctx.saved_tensors, need)]
        with torch.enable_grad():
            again = ctx.fn(*own)
        pairs = [(y, dy) for y, dy in zip(again, grads) if dy is not None and y.requires_grad]
        if not pairs:
            return (None,) * (2 + len(need))
        ys, dys = zip(*pairs)
        wanted = [t for t, needed in zip((*own, *ctx.weights), need) if needed]
        found = iter(gradients(ys, wanted, dys))
        return None, None, *(next(found) if needed else None for needed in need)
