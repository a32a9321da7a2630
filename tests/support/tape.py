"""CUDA graphs on the CPU, for tests: operations are written to a tape, and replayed on the very tensors.

As on a GPU, Python runs once: a replay repeats the operations with the addresses of the recording, so that
whatever was kept in an attribute, a number or a fresh tensor between two calls comes out wrong.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from recollect.base.cuda_graphs import Graphs


class Tape(TorchDispatchMode):
    """Writes down operations, with what they were given and what they returned."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, tuple, dict, dict[int, torch.Tensor]]] = []
        self._is_fresh = True
        self._own: set[int] = set()
        self._given: dict[int, tuple[StorageWeakRef, str]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # pyright: ignore
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        places = {_place(leaf) for leaf in given}
        for leaf in given:
            storage = leaf.untyped_storage()
            if (
                leaf.dim() and storage.size() and storage._cdata not in self._own
            ):  # a GPU gets numbers by value
                about = f"{func} of {leaf.dtype} {tuple(leaf.shape)}"
                self._given.setdefault(storage._cdata, (StorageWeakRef(storage), about))
        result = func(*args, **kwargs)
        # What was written in place, or is a view of what was given, is where it belongs already.
        made = {i: leaf for i, leaf in enumerate(_tensors(result)) if _place(leaf) not in places}
        self._own |= {leaf.untyped_storage()._cdata for leaf in made.values()}
        self._operations.append((func, args, kwargs, made))
        return result

    def dead(self) -> list[str]:
        """What the operations were given from outside and nobody keeps but this tape; it forgets them.

        A graph keeps nothing alive that it did not allocate itself: it would read memory of somebody else.
        """
        self._operations.clear()
        gc.collect()
        return [about for reference, about in self._given.values() if reference.expired()]

    def replay(self) -> None:
        """All operations once more, into the same tensors. The recording itself counts as the first time."""
        if self._is_fresh:
            self._is_fresh = False
            return
        with torch.no_grad():
            for func, args, kwargs, made in self._operations:
                result = _tensors(func(*args, **kwargs))
                for i, target in made.items():
                    target.copy_(result[i])

    def __len__(self) -> int:
        return len(self._operations)


def _place(leaf: torch.Tensor) -> int:
    return leaf.untyped_storage().data_ptr()


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


class TapeGraphs(Graphs):
    """Captures onto tapes."""

    def __init__(self, device: torch.device, is_on: bool = True):
        super().__init__(device, False)
        self.is_on = is_on
        self.tapes: list[Tape] = []

    def aside(self, fn: Callable[[], Any]) -> Any:
        """Call it."""
        return fn()

    def watched(self, fn: Callable[[], Any]) -> tuple[Any, str | None]:
        """Call it; tests forbid reads by other means."""
        return fn(), None

    def capture(self, fn: Callable[[], Any], generators: Sequence[torch.Generator]) -> tuple[Tape, Any]:
        """The tape of a call, which on a GPU would compute nothing: so its first replay does not either."""
        tape = Tape()
        with tape:
            result = fn()
        self.tapes.append(tape)
        return tape, result
