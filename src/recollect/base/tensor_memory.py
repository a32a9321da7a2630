"""Counts the memory of the tensors that a piece of code allocates."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorMemory(TorchDispatchMode):
    """Within this context ``peak`` is the largest number of bytes that its new tensors took at one time.

    Counts every operation of the calling thread, with backward passes on the CPU; not the temporary memory
    inside an operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        """Bytes of the tensors that are still there."""
        self.peak = 0
        """The largest value of ``live``."""
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count the results of an operation. Its arguments were there before."""
        kwargs = kwargs or {}
        self._see((args, kwargs), is_new=False)
        results = func(*args, **kwargs)
        self._see(results, is_new=True)
        self.peak = max(self.peak, self.live)
        return results

    def _see(self, tensors: Any, is_new: bool) -> None:
        for leaf in tree_leaves(tensors):
            if not isinstance(leaf, torch.Tensor):
                continue
            storage = leaf.untyped_storage()
            key = id(storage)  # torch keeps this Python object for as long as the memory
            if key not in self._sizes:
                size = self._sizes[key] = storage.nbytes() if is_new else 0
                self.live += size
                weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        self.live -= self._sizes.pop(key)
