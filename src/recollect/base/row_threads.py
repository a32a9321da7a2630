"""Threads that unroll the rows of a batch side by side.

torch's own parallelism splits every operation, and its threads spin while they wait for each other. An
unroll is a chain of hundreds of small operations: two spinning threads make it 1.3 to 1.6 times as
fast on two idle cores, and a hundred times slower when another program wants one of them. But rows
are independent. So a batch is cut into groups of rows, each with a thread of its own for the whole
unroll and again for its whole gradient; the long operations in there do not hold the interpreter lock.

The short ones do. While a thread gives its orders, all others wait: in k groups an operation takes the k-th
part of its time, in which k orders have to be given. So the best k grows with the root of the rows
(``ROWS_OF_FOUR``). On 16 cores 128 rows in 16 groups take 7 times as long as in two, and in one 1.5 times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from math import isqrt
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Tensors = tuple[Tensor, ...]

MIN_ROWS = 4
"""Rows that a group has at least."""
MIN_STEPS = 128
"""Steps (of all its rows) that a group has at least: below, the hand-over costs more than it saves."""

ROWS_OF_FOUR = 512
"""Rows that are best cut into four groups; four times as many into eight. Two groups pay where the two limits
above allow them."""

_pool: ContextVar[tuple[ThreadPoolExecutor, int] | None] = ContextVar("pool", default=None)
"""The threads in use and their number, the calling one among them. Unset inside those threads."""


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """Split torch's operations over ``count`` threads for a while. One for acting: they are tiny."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Unroll in ``count`` threads, the calling one among them, for the time of the context."""
    if count == 1:
        yield
        return
    # One intra-op thread each: the groups of rows are the parallelism.
    with ThreadPoolExecutor(count - 1, "recollect", torch.set_num_threads, (1,)) as pool:
        token = _pool.set((pool, count))
        try:
            yield
        finally:
            _pool.reset(token)


def side_by_side(
    fn: Callable[..., Tensors],
    sequences: Tensors,
    states: Tensors,
    weights: Callable[[], Iterable[Tensor]],
) -> Any:
    """``fn(*sequences, *states)``, in groups of rows where that pays.

    Args:
        fn: returns a sequence [T, B, ...] and then states [B, ...]; its rows are independent.
        sequences: [T, B, ...] each.
        states: [B, ...] each.
        weights: gives every tensor beside these that ``fn`` uses and that needs a gradient.
    """
    parts = _groups(sequences[0])
    if parts == 1:
        return fn(*sequences, *states)
    tensors = (*sequences, *states, *weights())
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _SideBySide.apply(fn, parts, len(sequences), len(states), *tensors)  # pyright: ignore
    return _join(_map(fn, _split(sequences, states, parts)))


def _groups(x: Tensor) -> int:
    """Into how many groups the rows of x [T, B, ...] are best cut."""
    in_use = _pool.get()
    if in_use is None or x.device.type != "cpu":
        return 1
    T, B = x.shape[:2]
    most = max(2, isqrt(16 * B // ROWS_OF_FOUR))
    return max(1, min(in_use[1], most, B // MIN_ROWS, T * B // MIN_STEPS))


class _SideBySide(torch.autograd.Function):
    """Every group keeps a graph of its own, so that its gradient too runs in a thread of its own.

    Its backward runs once: there is no ``retain_graph`` here.
    """

    @staticmethod
    def forward(ctx: Any, fn: Callable, parts: int, n: int, m: int, *tensors: Tensor) -> Tensors:
        need = ctx.needs_input_grad[4:]
        with torch.enable_grad():
            own = [t.detach().requires_grad_(needed) for t, needed in zip(tensors[: n + m], need)]
            results = _map(fn, _split(own[:n], own[n:], parts))
        ctx.results, ctx.need = results, need
        ctx.wanted = [t for t, needed in zip((*own, *tensors[n + m :]), need) if needed]
        ctx.set_materialize_grads(False)
        return _join([[t.detach() for t in result] for result in results])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None):  # pyright: ignore[reportIncompatibleMethodOverride]
        parts = len(ctx.results)
        split = [
            [None] * parts if grad is None else grad.tensor_split(parts, 1 if i == 0 else 0)
            for i, grad in enumerate(grads)
        ]

        def one(outputs: Tensors, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            pairs = [(y, dy) for y, dy in zip(outputs, grads) if dy is not None and y.requires_grad]
            if not pairs:
                return (None,) * len(ctx.wanted)
            ys, dys = zip(*pairs)
            return torch.autograd.grad(ys, ctx.wanted, dys, allow_unused=True)

        found = iter(zip(*_map(one, list(zip(ctx.results, zip(*split))))))
        ctx.results = ctx.wanted = None  # the inner graphs are spent
        return (None,) * 4 + tuple(_sum(next(found)) if needed else None for needed in ctx.need)


def _split(sequences: Sequence[Tensor], states: Sequence[Tensor], parts: int) -> list[Tensors]:
    """The arguments of every group of rows."""
    columns = [t.tensor_split(parts, 1) for t in sequences] + [t.tensor_split(parts) for t in states]
    return list(zip(*columns))


def _map(fn: Callable[..., Any], calls: list[tuple]) -> list[Any]:
    """``fn(*arguments)`` of every call, in order; the calling thread does the first one."""
    in_use = _pool.get()
    if in_use is None:
        return [fn(*arguments) for arguments in calls]
    is_enabled = torch.is_grad_enabled()  # every thread has its own

    def elsewhere(*arguments: Any) -> Any:
        with torch.set_grad_enabled(is_enabled):
            return fn(*arguments)

    futures = [in_use[0].submit(elsewhere, *arguments) for arguments in calls[1:]]
    token = _pool.set(None)  # a core inside a core is not cut again
    try:
        first = fn(*calls[0])
    finally:
        _pool.reset(token)
        wait(futures)  # also if the first call fails: nothing goes on behind the caller's back
    return [first, *(future.result() for future in futures)]


def _join(results: Sequence[Sequence[Tensor]]) -> Tensors:
    """Rows are dimension 1 of y and 0 of every leaf of the state."""
    return tuple(torch.cat(parts, 1 if i == 0 else 0) for i, parts in enumerate(zip(*results)))


def _sum(parts: Sequence[Tensor | None]) -> Tensor | None:
    used = [part for part in parts if part is not None]
    if len(used) < 2:
        return used[0] if used else None
    total = used[0] + used[1]
    for part in used[2:]:
        total += part
    return total
