"""The path that code takes on a GPU, tried on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from recollect.base import devices


@contextmanager
def without_reads(is_on: bool = True) -> Iterator[None]:
    """Code that avoids host reads on a GPU avoids them here, too."""
    if not is_on:
        yield
        return
    with mock.patch.object(devices, "synchronises", return_value=True):
        yield
