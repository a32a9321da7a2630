"""CUDA graphs: thousands of small launches as one.

A rollout of 64 steps, or an optimiser step, is a few thousand operations that take a GPU a few
microseconds each, and the host as long to launch. A graph records them once and launches them together.

What is recorded must be the same every time: a function without arguments that reads and writes tensors
which stay where they are, asks for no number, and draws random numbers only from generators that the graph
knows. It is called twice as it is, to compile kernels and allocate what lives on, the second time under
watch: if it makes the host wait for a number there, it is never recorded. The third call records it.
Whatever does not work is said once, in words, and goes on without a graph: slower, with the same numbers.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

import torch
from torch import nn

T = TypeVar("T")

WAITED = "called a synchronizing CUDA operation"
"""What torch warns of where the host waits, and of nothing else."""


class Replayable(Protocol):
    """Something recorded."""

    def replay(self) -> None:
        """Compute it."""
        ...


class Graphs:
    """Records functions on one device, and keeps what the user should hear of it."""

    def __init__(self, device: torch.device, is_on: bool = True):
        self.is_on = is_on and device.type == "cuda"
        self.device = device
        self.notes: list[str] = []
        """What could not be recorded, and why; taken by whoever tells the user."""
        self.seconds = 0.0
        """Spent so far on first calls, in which kernels are compiled, and on recording."""
        self._stream = torch.cuda.Stream(device) if self.is_on else None
        self._failed: list[Replayable] = []

    def captured(
        self, fn: Callable[[], T], what: str, module: nn.Module, generators: Sequence[torch.Generator] = ()
    ) -> Captured[T]:
        """``fn`` as a graph, from its third call on.

        Args:
            fn: what to record.
            what: names it for the user.
            module: whose parameters and buffers it uses; if they move elsewhere, it is recorded anew.
            generators: those that it draws from.
        """
        return Captured(self, fn, what, module, generators)

    def taken_notes(self) -> list[str]:
        """The notes since the last call."""
        notes, self.notes = self.notes, []
        return notes

    def aside(self, fn: Callable[[], T]) -> T:
        """``fn()`` on the stream that graphs are recorded on, timed as part of the start."""
        assert self._stream is not None
        torch.cuda.synchronize(self.device)
        started = time.perf_counter()
        with torch.cuda.stream(self._stream):
            result = fn()
        torch.cuda.synchronize(self.device)
        self.seconds += time.perf_counter() - started
        return result

    def watched(self, fn: Callable[[], T]) -> tuple[T, str | None]:
        """``aside(fn)``, and where in it the host had to wait for a number, if anywhere."""
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
            if WAITED in str(one.message):
                where = where or f"{one.filename.rpartition('/')[2]}:{one.lineno}"
            else:
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        return result, where

    def record(self, fn: Callable[[], T], generators: Sequence[torch.Generator]) -> tuple[Replayable, T]:
        """A graph of ``fn``, and what it returned; nothing is computed. Raises whatever goes wrong."""
        started = time.perf_counter()
        stream, graph = torch.cuda.current_stream(self.device), torch.cuda.CUDAGraph()
        # Every graph knows the device's own generator, too.
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
            self._failed.append(graph)  # the allocator still asks it whose memory is whose
            torch.cuda.set_stream(stream)
            for generator, state in zip(drawn, kept):  # they believe that they are still recorded
                generator.graphsafe_set_state(state)
            raise
        finally:
            self.seconds += time.perf_counter() - started
        return graph, result


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Let no garbage collection come in between: the end of an old graph would void the one in the making."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Captured(Generic[T]):
    """Calls a function: twice as it is, then as a graph. Returns what the function returned when recorded,
    tensors that every call writes anew."""

    def __init__(
        self,
        graphs: Graphs,
        fn: Callable[[], T],
        what: str,
        module: nn.Module,
        generators: Sequence[torch.Generator],
    ):
        """See ``Graphs.captured``."""
        self._graphs, self._fn, self._what, self._generators = graphs, fn, what, generators
        self._module, self._places = module, ()
        self._calls = 0
        self._graph: Replayable | None = None
        self._result: T | None = None
        self._is_plain = not graphs.is_on

    def __call__(self) -> T:
        """Call it, or launch its graph."""
        if self._is_plain:
            return self._fn()
        places = tuple(t.data_ptr() for t in (*self._module.parameters(), *self._module.buffers()))
        if places != self._places:  # a graph would go on with the memory of before
            self._graph, self._result, self._calls, self._places = None, None, 0, places
        if self._graph is None:
            self._calls += 1
            if self._calls == 1:
                return self._graphs.aside(self._fn)
            if self._calls == 2:
                return self._watched()
            if not self._record():
                return self._fn()
        assert self._graph is not None
        self._graph.replay()
        return self._result  # pyright: ignore[reportReturnType]

    @property
    def is_graph(self) -> bool:
        """Whether it has been recorded."""
        return self._graph is not None

    def _watched(self) -> T:
        """Call it once more, and see whether it makes the host wait."""
        result, where = self._graphs.watched(self._fn)
        if where is not None:
            self._give_up(f"it reads numbers on the host (at {where})")
        return result

    def _record(self) -> bool:
        """Record it. False if that did not work."""
        try:
            graph, result = self._graphs.record(self._fn, self._generators)
        except Exception as error:  # whatever a foreign encoder or env may do in there
            cause: BaseException = error
            while cause.__context__ is not None:  # the end of a failed recording fails as well
                cause = cause.__context__
            lines = str(cause).strip().splitlines() or [""]
            self._give_up(f"recording it failed with {type(cause).__name__}: {lines[0]}")
            return False
        self._graph, self._result = graph, result
        return True

    def _give_up(self, why: str) -> None:
        self._is_plain = True
        self._graphs.notes.append(
            f"{self._what} runs without a CUDA graph, slower and with the same numbers: {why}"
        )
