"""Ctrl-C while the command line is still importing: an exit code in place of a traceback.

Python raises KeyboardInterrupt wherever it is, and half of a second goes by in imports before ``main`` can
catch it. Nothing has been started by then, so that the process can end at once.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from types import FrameType


def end_at_once() -> None:
    """From now on Ctrl-C ends this process, if it is the command line's own."""
    is_free = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # neither ignored nor replaced
    if is_free and threading.current_thread() is threading.main_thread() and _is_command():
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, as usual."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


def _is_command() -> bool:
    """Whether this process was started as ``recollect ...`` or ``python -m recollect ...``."""
    program = (getattr(sys, "argv", None) or [""])[0]
    if program == "-m":  # so while Python looks for the module that it is to run
        words = sys.orig_argv
        return "-mrecollect" in words or ("-m", "recollect") in itertools.pairwise(words)
    return os.path.basename(program) == "recollect"
