"""What all tests share: one thread, so that small tensors are fast and results do not depend on cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from recollect import devices
from recollect.cores.kernels import fused

TIMEOUT, SLOW_TIMEOUT = 600, 3600
"""Seconds after which a test that hangs fails, and a slow one: several times what they take on busy cores."""

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give every test its timeout. (In pyproject.toml it would be an error where the plugin is missing.)"""
    if config.pluginmanager.hasplugin("timeout"):
        for item in items:
            seconds = SLOW_TIMEOUT if item.get_closest_marker("slow") else TIMEOUT
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(seconds))


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


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """``with unread():`` code takes the path of a GPU, and whatever reads a number on the host raises."""

    @contextmanager
    def context() -> Iterator[None]:
        with monkeypatch.context() as patched, _NoReads(), _NoCopies():
            patched.setattr(devices, "waits", lambda where: True)
            yield

    return context


@pytest.fixture
def fused_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels in Triton's interpreter, wherever they suit; skips where there is no Triton."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("Triton interprets only where it was told so at the start")
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope) -> None:
        """NumPy takes an array of one number no longer for a number, which ``range`` in a kernel needs."""
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
    monkeypatch.setattr(fused, "_is_forced", True)
