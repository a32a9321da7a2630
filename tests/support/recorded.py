"""CUDA graphs of what a test computes, and a device that nobody may wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


@contextmanager
def silence() -> Iterator[None]:
    """Whatever waits for the device raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def recorded(
    fn: Callable[[], T], calls: int = 1, *, is_silent: bool = False
) -> tuple[torch.cuda.CUDAGraph, T]:
    """A graph of ``fn``, and what it returned, which every replay writes anew.

    Before that it is called ``calls`` times on a stream of its own; with ``is_silent`` once more in silence.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(calls):
            fn()
        if is_silent:
            with silence():
                fn()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = fn()
    return graph, found
