"""What a device costs, and what its products are rounded to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, SupportsFloat

import torch
from torch import Tensor

Products = Literal["fp32", "tf32", "bf16"]
"""What the factors of a matrix product are rounded to on a GPU; sums are float32 throughout."""

_products: ContextVar[Products] = ContextVar("products", default="fp32")


def waits(where: Tensor | torch.device) -> bool:
    """Whether to read a number on the host means to wait until the device has done all that it was given.

    Code that would look at numbers only to save work (is any episode over? is a row invalid?) asks this
    first, and where it waits does the work for all rows, by selection.
    """
    return (where.device if isinstance(where, Tensor) else where).type != "cpu"


def products() -> Products:
    """What products on a GPU are rounded to now."""
    return _products.get()


@contextmanager
def rounded(to: Products) -> Iterator[None]:
    """For a while round the factors of all products on a GPU, torch's and our kernels', like this.

    torch's own products know float32 and TF32; bf16 is for kernels that ask (``products``), and for
    autocast.
    """
    before, token = torch.get_float32_matmul_precision(), _products.set(to)
    convolutions = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest" if to == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = to != "fp32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = convolutions
        _products.reset(token)


class Total:
    """The sum of what need not be known before it is asked for."""

    def __init__(self, parts: Sequence[SupportsFloat]):
        self._parts = parts

    def __float__(self) -> float:
        return sum(float(part) for part in self._parts)


class Stopwatch:
    """Seconds between two moments, of the device's time where work is only handed to it."""

    def __init__(self, device: torch.device):
        """Begins."""
        self._device = device
        self._begin, self._end = self._now(), None

    def stopped(self) -> Stopwatch:
        """Itself, ended now."""
        self._end = self._now()
        return self

    def __float__(self) -> float:
        """The seconds. On a GPU this waits until the end was reached there."""
        begin, end = self._begin, self._end
        assert end is not None, "a stopwatch is read after it was stopped"
        if isinstance(begin, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
            end.synchronize()
            return begin.elapsed_time(end) / 1000
        return float(end) - float(begin)  # pyright: ignore[reportArgumentType]

    def _now(self) -> float | torch.cuda.Event:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
