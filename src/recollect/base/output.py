"""The stream for programs: stdout, which ``--json`` keeps free of everything else.

An env, or a library in it, may print: in Python, in C straight to file descriptor 1, in an actor or env
worker, which inherits that descriptor. None of it may stand between two lines of JSON.
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
    """Where to write what programs read."""
    return _results or sys.stdout


@contextlib.contextmanager
def for_programs() -> Iterator[None]:
    """Only ``results()`` leads to stdout in here; all other output of this process and its children goes to
    stderr."""
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
        ctypes.CDLL(None).fflush(None)  # what C has buffered would else come out with the descriptor restored
        os.dup2(kept, 1)
        os.close(kept)
        if stream is not before:
            stream.close()


def _is_descriptor_1(stream: TextIO) -> bool:
    """Not so where tests or notebooks have put an object of theirs in its place."""
    try:
        return stream.fileno() == 1
    except (AttributeError, io.UnsupportedOperation):
        return False
