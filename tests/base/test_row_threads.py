"""Rows unrolled side by side give what they give in one piece."""

from __future__ import annotations

import functools
import threading
import time

import pytest
import torch

from recollect.base import row_threads, tree
from recollect.cores import GRUConfig, LSTMConfig

CORES = {
    "lstm": LSTMConfig(hidden=16),
    "lstm-2-learned": LSTMConfig(hidden=16, layers=2, learned_initial_state=True),
    "gru": GRUConfig(hidden=16),
    "gru-learned": GRUConfig(hidden=16, learned_initial_state=True),
}


def unrolled(core, x, state, first, threads):
    """Outputs and all gradients of one unroll."""
    inputs = [t.clone().requires_grad_() for t in (x, *tree.leaves(state))]
    with row_threads.threads(threads):
        y, after = core.unroll(inputs[0], tuple(inputs[1:]) if isinstance(state, tuple) else inputs[1], first)
        loss = sum((t.cos() * (i + 1)).sum() for i, t in enumerate((y, *tree.leaves(after))))
        grads = torch.autograd.grad(loss, [*inputs, *core.parameters()], allow_unused=True)
        with torch.no_grad():
            quiet, _ = core.unroll(x, state, first)
    torch.testing.assert_close(quiet, y.detach())
    return [y, *tree.leaves(after)], grads


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("resets", [0.0, 0.05, 0.5])
@pytest.mark.parametrize(("T", "B"), [(33, 13), (40, 41)])
def test_side_by_side_is_the_same(name, resets, T, B, monkeypatch):
    """S002-23: values, final states and every gradient, with an uneven number of rows."""
    monkeypatch.setattr(row_threads, "ROWS_OF_FOUR", 16)  # in three groups, too
    torch.manual_seed(0)
    core = CORES[name].build(8)
    x, first = torch.randn(T, B, 8), torch.rand(T, B) < resets
    state = tree.map(torch.randn_like, tree.clone(core.initial_state(B)))
    whole, whole_grads = unrolled(core, x, state, first, threads=1)
    for threads in (2, 3):
        parts, part_grads = unrolled(core, x, state, first, threads)
        for a, b in zip(whole, parts):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
        for a, b in zip(whole_grads, part_grads):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("rows", "groups"), [(4, 1), (16, 2), (128, 2), (287, 2), (288, 3), (512, 4), (2048, 8), (100_000, 16)]
)
def test_groups_on_many_cores(rows, groups):
    """Threads wait for each other's orders: few rows are cut into few groups, on however many cores."""
    seen = []

    def fn(x, h):
        seen.append(x.shape[1])
        return x, h

    with row_threads.threads(16):
        row_threads.side_by_side(fn, (torch.zeros(64, rows, 1),), (torch.zeros(rows, 1),), list)
    assert len(seen) == groups
    assert sum(seen) == rows


def test_it_really_splits():
    """The groups cover all rows, in order, and are as many as the threads, if these are few."""
    seen = []

    def fn(x, h):
        seen.append(x.shape[1])
        return x * h, h + 1

    x, h = torch.randn(64, 10, 3), torch.randn(10, 3)
    with row_threads.threads(2):
        y, after = row_threads.side_by_side(fn, (x,), (h,), list)
    assert sorted(seen) == [5, 5]
    torch.testing.assert_close(y, x * h)
    torch.testing.assert_close(after, h + 1)
    seen.clear()
    row_threads.side_by_side(fn, (x,), (h,), list)
    assert seen == [10]


def test_an_error_in_any_thread_reaches_the_caller():
    def fn(x, h):
        raise ValueError(f"rows {x.shape[1]}")

    with row_threads.threads(2), pytest.raises(ValueError, match="rows"):
        row_threads.side_by_side(fn, (torch.randn(64, 9, 3),), (torch.randn(9, 3),), list)


def meet_and_split(barrier: threading.Barrier, rows: int, steps: int = 64) -> list[int]:
    """The groups of rows of a call that runs while the others run, too."""
    barrier.wait(10)
    seen = []

    def fn(x, h):
        seen.append(x.shape[1])
        return x, h

    row_threads.side_by_side(fn, (torch.zeros(steps, rows, 1),), (torch.zeros(rows, 1),), list)
    return sorted(seen)


@pytest.mark.parametrize(("threads", "groups"), [(2, [[8], [10]]), (4, [[4, 4], [5, 5]])])
def test_calls_at_once_share_the_threads(threads, groups):
    """Each runs beside the others and splits its rows over its share; the results are in order."""
    barrier = threading.Barrier(2)
    calls = [functools.partial(meet_and_split, barrier, rows) for rows in (8, 10)]
    with row_threads.threads(threads):
        assert row_threads.at_once(calls, [8, 10]) == groups
        assert row_threads._pool.get() is not None, "the threads are still those of the caller"


def test_more_calls_than_threads():
    with row_threads.threads(2):
        assert row_threads.at_once([lambda n=n: n for n in range(7)], [1] * 7) == list(range(7))


@pytest.mark.parametrize(("threads", "rows"), [(1, [8, 8]), (2, [24, 8])], ids=["one thread", "uneven"])
def test_calls_that_follow_each_other(threads, rows):
    """With one thread; and where one call has most of the rows, which then uses all threads."""
    running = []

    def call(own):
        running.append(own)
        assert running == [own], "two at once"
        found = meet_and_split(threading.Barrier(1), own)
        running.remove(own)
        return found

    with row_threads.threads(threads):
        found = row_threads.at_once([functools.partial(call, own) for own in rows], rows)
    assert found == [[own] if threads == 1 else [own // 2] * 2 for own in rows]


def test_the_first_error_of_calls_is_raised_when_all_have_ended():
    ended = []

    def fail(number, seconds):
        time.sleep(seconds)
        ended.append(number)
        raise ValueError(f"call {number}")

    calls = [functools.partial(fail, 0, 0.0), functools.partial(fail, 1, 0.05)]
    with row_threads.threads(2), pytest.raises(ValueError, match="call 0"):
        row_threads.at_once(calls, [4, 4])
    assert ended == [0, 1]


def test_no_thread_is_left_behind():
    before = threading.active_count()
    with row_threads.threads(3):
        core = CORES["gru"].build(8)
        core.unroll(torch.randn(64, 24, 8), core.initial_state(24), torch.zeros(64, 24, dtype=torch.bool))
        assert threading.active_count() > before
    assert threading.active_count() == before
