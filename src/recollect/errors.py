"""The errors of Recollect: each says what, where, the likely cause and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable


class RecollectError(Exception):
    """The base of all errors that Recollect raises."""

    user_frames: str = ""
    """The frames of the user's code in the other process that raised the error; empty if it was this one."""


class ConfigError(RecollectError, ValueError):
    """A setting is invalid, or contradicts another one."""


class SpaceError(RecollectError, ValueError):
    """An observation or action space, or a value from one, that is not supported or does not fit."""


class StateError(RecollectError, ValueError):
    """A recurrent state that is missing or does not fit."""


class EnvError(RecollectError, RuntimeError):
    """An env that broke its contract: a wrong shape, NaN, Inf."""


class AlignmentError(RecollectError, RuntimeError):
    """The learner does not reproduce what the actor recorded."""


class DivergedError(RecollectError, RuntimeError):
    """NaN or Inf in a loss, a gradient or a weight."""


class EvaluationCancelledError(RecollectError):
    """An evaluation was cancelled because the run is ending."""


class ChildError(RecollectError, RuntimeError):
    """An exception in another process of the run; the text has its traceback."""

    summary: str = ""
    """The text without the traceback."""


class LostError(RecollectError, RuntimeError):
    """A process of the run was killed, crashed or hangs. It can be restarted."""


class ResourceError(RecollectError, RuntimeError):
    """The machine has not enough of something: shared memory."""


class WeightsError(RecollectError, RuntimeError):
    """Weights that cannot be published or loaded: none there, another version, other tensors."""


class PickleError(RecollectError, TypeError):
    """An object that must not be pickled; the text names the way to save it."""


class StorageError(RecollectError, OSError):
    """Something could not be written: a full disk, a folder without permission."""


class Interrupted(KeyboardInterrupt):  # no RecollectError: nothing is wrong, and ``except`` must not stop it
    """Ctrl-C or SIGTERM ended a run, after it was saved."""

    def __init__(self, message: str, signal: int):
        super().__init__(message)
        self.signal = signal


def nearest(name: str, known: Iterable[str], key: Callable[[str], str] = str.lower) -> str:
    """ " (did you mean 'x'?)" for the known name closest to ``name``, compared by ``key``; else empty."""
    by_key = {key(other): other for other in known}
    close = difflib.get_close_matches(key(name), by_key, n=1)
    return f" (did you mean {by_key[close[0]]!r}?)" if close else ""
