"""Threads that unroll groups of rows in parallel.

torch splits every operation over its threads, which spin while they wait for each other. An unroll is a
chain of hundreds of small operations: two such threads are 1.3 to 1.6 times as fast on two idle cores, and a
hundred times slower when another program uses one of them. Rows are independent, so a batch is split into
groups of rows, each with one thread for its whole unroll and for its whole gradient. Long operations release
the interpreter lock.

The updates of several groups of agents are independent, too, and run side by side (``at_once``).

Launching an operation holds the lock. With k groups an operation takes 1/k of the time, but k launches, so
that the best k grows with the square root of the rows (``ROWS_OF_FOUR``). On 16 cores, 128 rows in 16 groups
take 7 times as long as in two groups, and in one group 1.5 times.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from math import isqrt
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recollect.base.gradients import gradients

T = TypeVar("T")
Tensors = tuple[Tensor, ...]

MIN_ROWS = 4
"""Minimum rows of a group."""
MIN_STEPS = 128
"""Minimum steps of a group, over all its rows: below, the overhead of threads exceeds the gain."""

ROWS_OF_FOUR = 512
"""Rows for which four groups are best; eight for four times as many. Two groups are best for fewer rows, if
the two limits above allow them."""

LARGEST_SHARE = 2 / 3
"""Share of the rows of all calls up to which the largest call may run beside the others. Above, its own
groups of rows use the threads better."""

MANY_ROWS = 256
"""Rows from which several threads shorten an acting step on idle cores (bench/serving.py)."""

_pool: ContextVar[tuple[ThreadPoolExecutor, int] | None] = ContextVar("pool", default=None)
"""The thread pool and the number of threads, including the calling one. Unset inside those threads."""


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """Use ``count`` torch threads within the context: one for acting, whose operations are tiny.

    The number belongs to the calling thread, so that others compute as before. But torch also takes the last
    number set anywhere for threads that are new to it. A thread that starts inside the context of another one
    would, at its own end, make that number the default of the process: so equal numbers are not set again.
    """
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def acting_threads(rows: int) -> AbstractContextManager[None]:
    """One torch thread for a served batch of fewer than ``MANY_ROWS``; else as many as the caller has."""
    return intra_op_threads(1) if rows < MANY_ROWS else nullcontext()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Unroll in ``count`` threads, including the calling one, within the context."""
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
    """``fn(*sequences, *states)``, in groups of rows if that is faster.

    Args:
        fn: returns a sequence [T, B, ...] and states [B, ...]; rows are independent.
        sequences: [T, B, ...] each.
        states: [B, ...] each.
        weights: returns all other tensors of ``fn`` that need a gradient.
    """
    parts = _groups(sequences[0])
    if parts == 1:
        return fn(*sequences, *states)
    tensors = (*sequences, *states, *weights())
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _SideBySide.apply(fn, parts, len(sequences), len(states), *tensors)  # pyright: ignore
    return _join(_map(fn, _split(sequences, states, parts)))


def at_once(calls: Sequence[Callable[[], T]], rows: Sequence[int]) -> list[T]:
    """The results of independent calls, side by side if that is faster. ``rows``: the rows of each.

    Every call has an equal share of the threads, and one intra-op thread. If calls raise, the first of their
    errors is raised once all have ended.
    """
    in_use = _pool.get()
    if in_use is None or not _are_even(rows):
        return [call() for call in calls]
    pool, count = in_use
    own = share(count, rows)

    def run(call: Callable[[], T]) -> T:
        _pool.set((pool, own) if own > 1 else None)
        return call()

    # Each in a context of its own, a copy of this one. Calls never wait for calls, only for groups of rows.
    futures = [pool.submit(copy_context().run, run, call) for call in calls[1:]]
    try:
        first = copy_context().run(run, calls[0])
    finally:
        wait(futures)
    return [first, *(future.result() for future in futures)]


def share(count: int, rows: Sequence[int]) -> int:
    """The number of threads among ``count`` that each call of ``at_once`` has."""
    return max(1, count // len(rows)) if _are_even(rows) else count


def _are_even(rows: Sequence[int]) -> bool:
    """Whether there are several calls, none of which is much the largest."""
    return len(rows) > 1 and max(rows) <= LARGEST_SHARE * sum(rows)


def group_count(steps: int, rows: int, *, threads: int) -> int:
    """The best number of groups for an unroll of this size on the CPU."""
    most = max(2, isqrt(16 * rows // ROWS_OF_FOUR))
    return max(1, min(threads, most, rows // MIN_ROWS, steps * rows // MIN_STEPS))


def _groups(x: Tensor) -> int:
    """The best number of groups for the rows of x [T, B, ...]."""
    in_use = _pool.get()
    if in_use is None or x.device.type != "cpu":
        return 1
    return group_count(*x.shape[:2], threads=in_use[1])


class _SideBySide(torch.autograd.Function):
    """Each group has its own autograd graph, so that its gradient runs in its own thread.

    Backward runs once only: ``retain_graph`` is not supported.
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
            return gradients(ys, ctx.wanted, dys)

        found = iter(zip(*_map(one, list(zip(ctx.results, zip(*split))))))
        ctx.results = ctx.wanted = None  # the inner graphs are freed
        return (None,) * 4 + tuple(_sum(next(found)) if needed else None for needed in ctx.need)


def _split(sequences: Sequence[Tensor], states: Sequence[Tensor], parts: int) -> list[Tensors]:
    """The arguments of every group of rows."""
    columns = [t.tensor_split(parts, 1) for t in sequences] + [t.tensor_split(parts) for t in states]
    return list(zip(*columns))


def _map(fn: Callable[..., Any], calls: list[tuple]) -> list[Any]:
    """``fn(*arguments)`` for every call, in order; the first runs in the calling thread."""
    in_use = _pool.get()
    if in_use is None:
        return [fn(*arguments) for arguments in calls]
    is_enabled = torch.is_grad_enabled()  # a setting of each thread

    def elsewhere(*arguments: Any) -> Any:
        with torch.set_grad_enabled(is_enabled):
            return fn(*arguments)

    futures = [in_use[0].submit(elsewhere, *arguments) for arguments in calls[1:]]
    token = _pool.set(None)  # a core inside a core is not split again
    try:
        first = fn(*calls[0])
    finally:
        _pool.reset(token)
        wait(futures)  # also if the first call fails: no thread keeps running
    return [first, *(future.result() for future in futures)]


def _join(results: Sequence[Sequence[Tensor]]) -> Tensors:
    """Concatenate the groups: rows are dimension 1 of y and dimension 0 of the states."""
    return tuple(torch.cat(parts, 1 if i == 0 else 0) for i, parts in enumerate(zip(*results)))


def _sum(parts: Sequence[Tensor | None]) -> Tensor | None:
    used = [part for part in parts if part is not None]
    return functools.reduce(torch.add, used) if used else None
