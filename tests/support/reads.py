"""Reads: what makes the host wait for a GPU, noticed on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from recollect.base import devices

READS = {
    *("aten._local_scalar_dense", "aten.item", "aten.is_nonzero", "aten.equal", "aten.nonzero"),
    *("aten.masked_select", "aten.unique_consecutive", "aten._unique", "aten._unique2", "aten.unique_dim"),
    *("aten.bincount", "aten.repeat_interleave", "aten.nonzero_numpy"),
}
"""Operations whose result, or its shape, is read on the host."""


COPIES = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu, torch.Tensor.__array__)
"""What brings numbers to the host. On the CPU it is no operation, so that it is seen only as a call."""


class _NoCopies(TorchFunctionMode):
    """Raises where numbers would be copied to the host."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # pyright: ignore
        if func in COPIES:
            raise AssertionError(f"{func} brings numbers to the host: on a GPU everything would wait for it")
        return func(*args, **(kwargs or {}))


class _NoReads(TorchDispatchMode):
    """Raises where a GPU would make the host wait."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # pyright: ignore
        name = str(func.overloadpacket)
        is_masked = name in ("aten.index", "aten.index_put", "aten.index_put_") and any(
            isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        is_varying = name == "aten.repeat_interleave" and (kwargs or {}).get("output_size") is not None
        if (name in READS and not is_varying) or is_masked:
            raise AssertionError(f"{func} reads numbers on the host: on a GPU everything would wait for it")
        return func(*args, **(kwargs or {}))


@contextmanager
def unread() -> Iterator[None]:
    """Code takes the path of a GPU, and whatever reads a number on the host raises."""
    with pytest.MonkeyPatch.context() as patched, _NoReads(), _NoCopies():
        patched.setattr(devices, "synchronises", lambda where: True)
        yield
