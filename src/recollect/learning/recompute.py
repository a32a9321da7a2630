"""Evaluating actions without keeping the activations: they are computed again in the backward pass.

A batch of L steps is unrolled in about sqrt(L) pieces of time. Of each piece only what goes in is
kept, that is, views of the observations and the state at its start; its encoder, core and heads run a
second time when its gradient is due. So at any time the activations of one piece are alive, at the
price of a second forward pass. By the law of cores, pieces give what the whole gives.

``torch.utils.checkpoint`` without reentry swaps out what autograd saves in the calling thread. The groups of
rows that ``workers`` unrolls in other threads would keep their graphs. Here the first pass runs without
any graph, whoever computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recollect.base import tree
from recollect.base.types import State, Tree
from recollect.experience.chunks import Chunks
from recollect.policy.policy import Policy

Tensors = tuple[Tensor, ...]


def pieces(steps: int) -> int:
    """Into how many pieces of time an unroll of ``steps`` is cut."""
    return max(1, round(math.sqrt(steps)))


def evaluate(
    policy: Policy, batch: Chunks, again: bool, features: list[Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """log_prob, entropy, value [L, N] of a batch; ``again``: its activations are computed a second time."""
    given = (batch.obs, batch.action, batch.state, batch.first, features)
    return evaluate_actions(policy, *given) if again else policy.evaluate_actions(*given)


def evaluate_actions(
    policy: Policy,
    obs: Tree,
    action: Tree,
    state: State,
    first: Tensor,
    features: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``policy.evaluate_actions``: obs, action [L, N, ...], state [N, ...], first [L, N] -> [L, N] each.

    What the heads see, [L, N, D], is added to ``features`` if that is given.
    """
    steps = first.shape[0]
    count = pieces(steps)
    cuts = [steps * k // count for k in range(count + 1)]
    found = []
    for begin, end in pairwise(cuts):
        span = slice(begin, end)
        part = _piece(policy, tree.index(obs, span), tree.index(action, span), state, first[span])
        found.append(part[:4])
        state = tree.from_leaves(state, part[4:])
    *outputs, y = zip(*found)
    if features is not None:
        features.append(torch.cat(y))
    log_prob, entropy, value = (torch.cat(parts) for parts in outputs)
    return log_prob, entropy, value


def _piece(policy: Policy, obs: Tree, action: Tree, state: State, first: Tensor) -> Tensors:
    """log_prob, entropy, value [K, N] and features [K, N, D] of a piece, and the leaves of its last state."""
    seen, carried = tree.leaves(obs), tree.leaves(state)

    def fn(*leaves: Tensor) -> Tensors:
        start = tree.from_leaves(state, leaves[len(seen) :])
        kept: list[Tensor] = []
        dist, value, after = policy.unroll(tree.from_leaves(obs, leaves[: len(seen)]), start, first, kept)
        after = tree.map(lambda _, leaf: leaf, state, after)  # a core's dict may have another order
        return dist.log_prob(action), dist.entropy(), value, *kept, *tree.leaves(after)

    weights = [p for p in policy.parameters() if p.requires_grad]
    inputs = len(seen) + len(carried)
    return _Recomputed.apply(fn, inputs, *seen, *carried, *weights)  # pyright: ignore[reportReturnType]


class _Recomputed(torch.autograd.Function):
    """``fn(*inputs)``, of which nothing but the inputs is kept. The weights that ``fn`` uses follow them."""

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
        found = iter(torch.autograd.grad(ys, wanted, dys, allow_unused=True))
        return None, None, *(next(found) if needed else None for needed in need)
