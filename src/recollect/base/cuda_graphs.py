"""CUDA graphs: thousands of kernel launches as one.

A rollout of 64 steps, or an optimiser step, is a few thousand operations of a few microseconds each, and a
launch takes the host as long. A graph captures them once and launches them together.

A captured function has no arguments, reads and writes tensors at fixed addresses, reads no value on the host,
and draws random numbers only from registered generators. Its first two calls run eagerly, to compile kernels
and allocate persistent memory; the second also detects synchronising operations, which rule out a capture.
The third call captures. A function that cannot be captured runs eagerly, slower and with the same results,
and a note says why.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import nn

T = TypeVar("T")

SYNCHRONISED = "called a synchronizing CUDA operation"
"""Text of torch's warning for a synchronising operation."""


class Graphs:
    """Captures functions on one device, and collects notes for the user."""

    def __init__(self, device: torch.device, is_on: bool = True):
        self.is_on = is_on and device.type == "cuda"
        self.device = device
        self.notes: list[str] = []
        """The functions that could not be captured, and why."""
        self.seconds = 0.0
        """Time spent so far on first calls, which compile kernels, and on captures."""
        self._stream = torch.cuda.Stream(device) if self.is_on else None
        self._failed: list[torch.cuda.CUDAGraph] = []

    def captured(
        self,
        fn: Callable[[], T],
        what: str,
        module: nn.Module,
        generators: Sequence[torch.Generator] = (),
        key: Callable[[], Any] | None = None,
    ) -> Captured[T]:
        """``fn`` as a graph, from its third call on; ``Captured`` describes the arguments."""
        return Captured(self, fn, what, module, generators, key)

    def taken_notes(self) -> list[str]:
        """The notes since the last call."""
        notes, self.notes = self.notes, []
        return notes

    def aside(self, fn: Callable[[], T]) -> T:
        """``fn()`` on the capture stream; its time counts as start-up."""
        assert self._stream is not None
        torch.cuda.synchronize(self.device)
        started = time.perf_counter()
        with torch.cuda.stream(self._stream):
            result = fn()
        torch.cuda.synchronize(self.device)
        self.seconds += time.perf_counter() - started
        return result

    def watched(self, fn: Callable[[], T]) -> tuple[T, str | None]:
        """``aside(fn)``, and the source line of its first synchronising operation, if any."""
        before = torch.cuda.get_sync_debug_mode()

        def under_watch() -> T:
            torch.cuda.set_sync_debug_mode("warn")
            try:
                return fn()
            finally:
                torch.cuda.set_sync_debug_mode(before)

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = self.aside(under_watch)
        where = None
        for one in caught:
            if SYNCHRONISED in str(one.message):
                where = where or f"{one.filename.rpartition('/')[2]}:{one.lineno}"
            else:
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        return result, where

    def capture(
        self, fn: Callable[[], T], generators: Sequence[torch.Generator]
    ) -> tuple[torch.cuda.CUDAGraph, T]:
        """A graph of ``fn``, and its result, whose tensors hold no values before a replay."""
        started = time.perf_counter()
        stream, graph = torch.cuda.current_stream(self.device), torch.cuda.CUDAGraph()
        # Every graph also uses the default generator of the device.
        drawn = [*generators, torch.cuda.default_generators[stream.device_index]]
        kept = [generator.clone_state() for generator in drawn]
        for generator in generators:
            graph.register_generator_state(generator)
        try:
            with (
                _no_garbage(),
                torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"),
            ):
                result = fn()
        except BaseException:
            self._failed.append(graph)  # the allocator still refers to it
            torch.cuda.set_stream(stream)
            for generator, state in zip(drawn, kept):  # they are still in capture mode
                generator.graphsafe_set_state(state)
            raise
        finally:
            self.seconds += time.perf_counter() - started
        return graph, result


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Disable garbage collection: destroying an old graph would invalidate the capture in progress."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(slots=True, eq=False)
class Captured(Generic[T]):
    """Calls a function twice eagerly, then as a graph. From then on it returns the tensors of the capture,
    which every call overwrites."""

    _graphs: Graphs
    _fn: Callable[[], T]
    _what: str
    """The name of the function in notes."""
    _module: nn.Module
    """Its parameters and buffers: if their addresses change, the function is captured again."""
    _generators: Sequence[torch.Generator]
    """The generators that it draws from."""
    _key: Callable[[], Any] | None = None
    """If its result changes, the function is captured again. Equal results mean the same operations on the
    same tensors."""
    _last_key: Any = None
    _addresses: tuple[int, ...] = ()
    _calls: int = 0
    _graph: torch.cuda.CUDAGraph | None = None
    _result: T | None = None
    _is_eager: bool = False

    def __call__(self) -> T:
        """Call the function, or launch its graph."""
        if self._is_eager or not self._graphs.is_on:
            return self._fn()
        addresses = tuple(t.data_ptr() for t in (*self._module.parameters(), *self._module.buffers()))
        key = None if self._key is None else self._key()
        if addresses != self._addresses or key != self._last_key:  # a graph would use the old addresses
            self._graph, self._result, self._calls = None, None, 0
            self._addresses, self._last_key = addresses, key
        if self._graph is None:
            self._calls += 1
            if self._calls == 1:
                return self._graphs.aside(self._fn)
            if self._calls == 2:
                result, where = self._graphs.watched(self._fn)
                if where is not None:
                    self._give_up(f"it reads numbers on the host (at {where})")
                return result
            self._capture()
            if self._graph is None:
                return self._fn()
        self._graph.replay()
        return self._result  # pyright: ignore[reportReturnType]

    @property
    def is_graph(self) -> bool:
        """Whether the function has been captured."""
        return self._graph is not None

    def _capture(self) -> None:
        """Capture the function, or run it eagerly from now on if that fails."""
        try:
            self._graph, self._result = self._graphs.capture(self._fn, self._generators)
        except Exception as error:  # a user's encoder or env may raise anything
            cause: BaseException = error
            while cause.__context__ is not None:  # the end of a failed capture raises as well
                cause = cause.__context__
            lines = str(cause).strip().splitlines() or [""]
            self._give_up(f"capturing it failed with {type(cause).__name__}: {lines[0]}")

    def _give_up(self, why: str) -> None:
        self._is_eager = True
        self._graphs.notes.append(
            f"{self._what} runs without a CUDA graph, slower and with the same results: {why}"
        )
