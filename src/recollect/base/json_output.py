"""Machine-readable output: with ``--json``, stdout holds nothing but JSON.

An env or its libraries may print: from Python, from C directly to file descriptor 1, or from an actor or env
worker, which inherits that descriptor. All of that is redirected to stderr.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

_results: TextIO | None = None


def results() -> TextIO:
    """The stream for machine-readable output."""
    return _results or sys.stdout


@contextlib.contextmanager
def for_programs() -> Iterator[None]:
    """Within the context only ``results()`` writes to stdout; all other output of this process and its
    children goes to stderr."""
    global _results
    before = sys.stdout
    if before is None or sys.stderr is None:  # closed by the parent process
        yield
        return
    before.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    stream = before
    if _is_descriptor_1(before):
        stream = os.fdopen(os.dup(kept), "w", encoding=before.encoding, errors=before.errors)
    _results, sys.stdout = stream, sys.stderr
    try:
        yield
    finally:
        _results, sys.stdout = None, before
        ctypes.CDLL(None).fflush(None)  # C buffers would else be flushed to the restored descriptor
        os.dup2(kept, 1)
        os.close(kept)
        if stream is not before:
            stream.close()


def _is_descriptor_1(stream: TextIO) -> bool:
    """Whether the stream writes to descriptor 1; tests and notebooks replace it by another object."""
    try:
        return stream.fileno() == 1
    except (AttributeError, io.UnsupportedOperation):
        return False
