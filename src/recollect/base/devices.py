"""Devices: synchronisation, precision of matrix products, timing."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, SupportsFloat

import torch
from torch import Tensor

Products = Literal["fp32", "tf32", "bf16"]
"""The precision of the factors of a matrix product on a GPU; sums are always float32."""

_products: ContextVar[Products] = ContextVar("products", default="fp32")


def synchronises(where: Tensor | torch.device) -> bool:
    """Whether a host read synchronises the device, that is, waits for all its queued work.

    Code that reads a value only to save work (has any episode ended? is a row invalid?) does the work for
    all rows, by selection, where a read synchronises.
    """
    return (where.device if isinstance(where, Tensor) else where).type != "cpu"


def products() -> Products:
    """The current precision of products on a GPU."""
    return _products.get()


@contextmanager
def rounded(to: Products) -> Iterator[None]:
    """Set the precision of products on a GPU within the context, in torch and in our kernels.

    torch's own products use float32 or TF32; bf16 applies to kernels that read ``products()`` and to
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
    """A sum of times that is computed when it is read, because reading a GPU time synchronises."""

    def __init__(self, parts: Sequence[SupportsFloat]):
        self._parts = parts

    def __float__(self) -> float:
        return sum(float(part) for part in self._parts)


class Mean:
    """A weighted mean that is computed when it is read. NaN is no value, and is left out."""

    def __init__(self) -> None:
        self._parts: list[tuple[SupportsFloat, int]] = []

    def add(self, value: SupportsFloat, weight: int) -> None:
        """Add a number."""
        self._parts.append((value, weight))

    def __float__(self) -> float:
        known = [(number, w) for value, w in self._parts if not math.isnan(number := float(value))]
        return sum(number * w for number, w in known) / sum(w for _, w in known) if known else math.nan


class Stopwatch:
    """Seconds between start and stop; on a GPU, in the time of the device's stream."""

    def __init__(self, device: torch.device):
        """Start."""
        self._device = device
        self._begin, self._end = self._now(), None

    def stopped(self) -> Stopwatch:
        """Stop, and return the stopwatch."""
        self._end = self._now()
        return self

    def __float__(self) -> float:
        """The seconds. On a GPU this synchronises with the stop."""
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
