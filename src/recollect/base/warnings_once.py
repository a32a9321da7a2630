"""Shows each Python warning once per run: not once per process, env, or time that a filter changes.

Python forgets the warnings that it has shown whenever any code changes a filter, and every process of a run
has its own memory of them. Here the processes of a run share one: an open file without a name, which child
processes inherit.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
import warnings
from collections.abc import Iterator
from typing import Any

from recollect.base.files import anonymous_file

SIZE = 16
"""Bytes of a warning's hash."""
ATTEMPTS = 100
"""Attempts to lock the file, 10 ms apart. A stopped process may hold the lock."""

_shown: int | None = None


def shared_fd() -> int | None:
    """The file of the warnings shown so far, for a child process to inherit; None outside of a run."""
    return _shown


def install(fd: int) -> None:
    """Show only warnings that are not in the file ``fd``, until this process ends."""
    global _shown
    _shown = fd
    show = warnings.showwarning

    def show_once(message: Warning | str, category: type[Warning], *rest: Any, **options: Any) -> None:
        if _is_new(fd, f"{category.__name__}: {message}"):
            show(message, category, *rest, **options)

    warnings.showwarning = show_once


@contextlib.contextmanager
def once() -> Iterator[None]:
    """Show each warning once until the end of this context, in this process and in those that it starts."""
    global _shown
    if _shown is not None:  # a run inside a command
        yield
        return
    fd, show = anonymous_file(), warnings.showwarning
    install(fd)
    try:
        yield
    finally:
        warnings.showwarning, _shown = show, None
        os.close(fd)


def _is_new(fd: int, text: str) -> bool:
    """Whether the file lacks this text; adds it."""
    key = hashlib.blake2b(text.encode(errors="replace"), digest_size=SIZE).digest()
    with _locked(fd):
        size = os.fstat(fd).st_size
        known = os.pread(fd, size, 0)
        if any(known[at : at + SIZE] == key for at in range(0, size, SIZE)):
            return False
        os.pwrite(fd, key, size)
    return True


@contextlib.contextmanager
def _locked(fd: int) -> Iterator[None]:
    """Lock the file against other processes; without a lock after ``ATTEMPTS``, a warning may come twice."""
    is_locked = False
    for _ in range(ATTEMPTS):
        with contextlib.suppress(OSError):
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = True
            break
        time.sleep(0.01)
    try:
        yield
    finally:
        if is_locked:
            fcntl.lockf(fd, fcntl.LOCK_UN)
