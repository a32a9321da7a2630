"""Signals that ask this process to end: Ctrl-C, SIGTERM, SIGHUP.

The imports of the command line take half a second before ``main`` can catch a KeyboardInterrupt. Nothing has
been started by then, so that a Ctrl-C exits at once, with an exit code instead of a traceback.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def end_at_once() -> None:
    """From now on, Ctrl-C exits this process if it is the command line."""
    is_free = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # neither ignored nor replaced
    if is_free and threading.current_thread() is threading.main_thread() and _is_command():
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """From now on, Ctrl-C raises KeyboardInterrupt, as usual."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def handled(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within the context ``handle`` gets the signals, if this is the main thread, as Python requires."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # no nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


def _is_command() -> bool:
    """Whether this process was started as ``recollect ...`` or ``python -m recollect ...``."""
    program = (getattr(sys, "argv", None) or [""])[0]
    if program == "-m":  # while Python locates the module to run
        words = sys.orig_argv
        return "-mrecollect" in words or ("-m", "recollect") in itertools.pairwise(words)
    return os.path.basename(program) == "recollect"
