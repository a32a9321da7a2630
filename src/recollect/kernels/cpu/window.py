"""Attention over the last W steps, as one node of the autograd graph.

For each head with query q_t, and keys and values k_s, z_s of the W steps s = t - W + 1 .. t:

    score[t, s] = (q_t + u) . k_s + (q_t + v) . r[t - s]         0 <= t - s <= min(W - 1, age_t)
    out_t       = sum_s softmax_s(score[t]) z_s

``age_t`` is the number of earlier steps in the episode of step t, so attention never crosses a reset.

Queries are processed in blocks of C. Query i of a block attends to the keys i .. i + W - 1 of the block's
C + W - 1: a band of the matrix [C, C + W - 1]. The band is a strided view whose rows are one element further
apart, and each of its columns is one age. Products run on the matrix; softmax, positions and mask on the band
[C, W], oldest step first, without moving data:

    x x x . .        x x x
    . x x x .   ->   x x x          C = 3, W = 3
    . . x x x        x x x

Gradients, with P the softmax and dO those of out: dP = dO Z^T on the band, dS = P (dP - sum(P dP)), and
the products of dS with keys, queries and positions; dZ = P^T dO.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from recollect.kernels.autograd_node import Grads, Kept, Need, Saved, node

QUERIES = 32
"""Queries of a row in a block: more waste products outside the band, fewer make products too small."""
SCORES = 2**17
"""Approximate numbers in the matrices of a block, so that they stay in the cache."""
SCORES_ON_GPU = 2**24
"""The same on a GPU, where few large operations are fastest."""


def attend(q: Tensor, u: Tensor, v: Tensor, memory: Tensor, positions: Tensor, age: Tensor) -> Tensor:
    """The outputs of all queries.

    Args:
        q: [T, B, heads * d], scaled.
        u: [heads, d] added to queries in the product with keys.
        v: [heads, d] added to queries in the product with positions.
        memory: [B, heads, W - 1 + T, 2d] keys and values, finite; the first W - 1 precede the first query.
        positions: [heads, W, d] the r of every age, age W - 1 first.
        age: [B, T] earlier steps in the episode of each query.

    Returns:
        [T, B, heads * d].
    """
    return node(_forward, _backward, q, u, v, memory, positions, age)[0]


def _blocks(q: Tensor, heads: int, window: int) -> Iterator[tuple[slice, slice, slice]]:
    """The rows, the queries and the keys of every block of q [T, B, ...]."""
    steps, rows = q.shape[:2]
    count = min(QUERIES, steps)
    scores = SCORES if q.device.type == "cpu" else SCORES_ON_GPU
    group = max(1, scores // (heads * count * (count + window - 1)))
    for row in range(0, rows, group):
        for step in range(0, steps, count):
            end = min(step + count, steps)
            yield slice(row, min(row + group, rows)), slice(step, end), slice(step, end + window - 1)


def _by_head(x: Tensor, rows: slice, steps: slice, heads: int) -> Tensor:
    """x [T, B, heads * d] -> the view [rows, heads, C, d] of a block."""
    return x[steps, rows].unflatten(2, (heads, -1)).permute(1, 2, 0, 3)


class _Scratch:
    """The matrices of a block, reallocated only when its shape changes: at the last rows and steps."""

    def __init__(self, like: Tensor, W: int):
        self.like, self.W, self.shape = like, W, (0, 0)

    def of(self, n: int, C: int) -> list[tuple[Tensor, Tensor]]:
        """Two matrices [n, C, C + W - 1], each with its band [n, C, W]; zero outside unless written to."""
        if self.shape != (n, C):
            self.shape, K = (n, C), C + self.W - 1
            made = [self.like.new_zeros(n, C, K) for _ in range(2)]
            self.made = [(full, full.as_strided((n, C, self.W), (C * K, K + 1, 1))) for full in made]
        return self.made


def _forward(*inputs: Tensor, keep: bool) -> tuple[tuple[Tensor], Kept]:
    """out [T, B, heads * d]; with ``keep`` the inputs, and the softmax of every block."""
    q, u, v, memory, positions, age = inputs
    weights: list[Tensor] = []
    heads, W, _ = positions.shape
    u_, v_ = u.unsqueeze(1), v.unsqueeze(1)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    ages = torch.arange(W - 1, -1, -1, device=q.device)
    scratch = _Scratch(q, W)
    for rows, steps, seen in _blocks(q, heads, W):
        query = _by_head(q, rows, steps, heads)
        keys, values = memory[rows, :, seen].flatten(0, 1).chunk(2, 2)  # [n, C + W - 1, d]
        R, _, C, d = query.shape
        n = R * heads
        (scores, score_band), (weight, weight_band) = scratch.of(n, C)
        torch.bmm((query + u_).view(n, C, d), keys.mT, out=scores)
        band = torch.matmul(query + v_, positions.mT).view(n, C, W).add_(score_band)
        too_old = ages > age[rows, steps].unsqueeze(2)  # [R, C, W]
        band.view(R, heads, C, W).masked_fill_(too_old.unsqueeze(1), float("-inf"))
        softmax = torch.softmax(band, 2)
        weight_band.copy_(softmax)
        product = torch.bmm(weight, values)
        _by_head(out, rows, steps, heads).copy_(product.view(R, heads, C, d))
        if keep:
            weights.append(softmax)
    return (out,), (q, u, v, memory, positions, *weights) if keep else ()


def _backward(grads: Grads, saved: Saved, need: Need) -> Grads:
    """The gradients of q, u, v, memory and positions."""
    (dout,), (q, u, v, memory, positions, *weights) = grads, saved
    assert dout is not None
    heads, W, _ = positions.shape
    u, v = u.unsqueeze(1), v.unsqueeze(1)
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    dmemory = torch.zeros_like(memory)
    du, dv, dpositions = torch.zeros_like(u), torch.zeros_like(v), torch.zeros_like(positions)
    scratch = _Scratch(q, W)
    for (rows, steps, seen), softmax in zip(_blocks(q, heads, W), weights, strict=True):
        query = _by_head(q, rows, steps, heads)
        keys, values = memory[rows, :, seen].flatten(0, 1).chunk(2, 2)  # [n, C + W - 1, d]
        R, _, C, d = query.shape
        n = R * heads
        (scores, score_band), (weight, weight_band) = scratch.of(n, C)
        dkeys, dvalues = dmemory[rows, :, seen].flatten(0, 1).chunk(2, 2)
        do = _by_head(dout, rows, steps, heads).reshape(n, C, d)
        to_keys = (query + u).view(n, C, d)
        to_positions = query + v  # [R, heads, C, d]

        weight_band.copy_(softmax)
        dvalues.baddbmm_(weight.mT, do)
        torch.bmm(do, values.mT, out=scores)
        ds = score_band * softmax
        ds.addcmul_(softmax, ds.sum(2, keepdim=True), value=-1)
        weight_band.copy_(ds)  # reused: its softmax is no longer needed
        dkeys.baddbmm_(weight.mT, to_keys)
        from_keys = torch.bmm(weight, keys).view(R, heads, C, d)
        by_head = ds.view(R, heads, C, W)
        from_positions = torch.matmul(by_head, positions)
        du += from_keys.sum((0, 2)).unsqueeze(1)
        dv += from_positions.sum((0, 2)).unsqueeze(1)
        dpositions += torch.matmul(by_head.mT, to_positions).sum(0)
        _by_head(dq, rows, steps, heads).copy_(from_keys.add_(from_positions))
    return dq, du.squeeze(1), dv.squeeze(1), dmemory, dpositions
