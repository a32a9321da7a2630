"""Tracebacks of errors in the user's code: their frames for people, the whole text for the run folder."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from recollect.errors import ChildError, ConfigError, EnvError, RecollectError

FILE = "traceback.txt"
"""The file of a run folder that holds the whole tracebacks of its errors, the newest last."""
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_KEPT = "_recollect_traceback_file"


def user_frames(error: BaseException) -> str:
    """The traceback from the user's code on, as Python prints it but without the last line, the message.

    The user's code is an env, a core, an encoder or the like that Recollect calls: the frames after those of
    Recollect and of libraries such as Gymnasium. An error in an installed env has only frames of libraries,
    which are shown instead. Empty if no such code was running.
    """
    origin = error
    while isinstance(origin, RecollectError):
        if origin.user_frames:  # of another process
            return origin.user_frames
        if origin.__cause__ is None:
            break
        origin = origin.__cause__
    text = traceback.TracebackException.from_exception(origin)
    _shorten(text, is_env=isinstance(error, EnvError))
    message = list(text.format_exception_only())
    where = message[:-1] if isinstance(origin, SyntaxError) else []  # file and line are in the message
    if not text.stack:
        return "".join(where).rstrip()
    return "".join([*list(text.format())[: -len(message)], *where]).rstrip()


def one_line(error: BaseException) -> str:
    """The message for people, without a traceback: of an error that is not Recollect's, with its type."""
    if isinstance(error, ChildError) and error.summary:
        return error.summary
    try:
        text = str(error)
    except Exception:  # the user's own class of errors
        text = ""
    if isinstance(error, RecollectError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def whole(error: BaseException) -> str:
    """The whole traceback, with those of other processes, which are notes."""
    return "".join(traceback.format_exception(error)).rstrip()


@contextmanager
def keeping(folder: Path | None) -> Iterator[None]:
    """Append the whole traceback of an error to ``FILE`` in this run folder, and raise the error.

    An error is kept once. A wrong setting without an error in the user's code is not kept.
    """
    try:
        yield
    except Exception as error:
        is_call = isinstance(error, ConfigError) and not user_frames(error)
        if folder is not None and not is_call and kept_in(error) is None:
            with suppress(OSError):  # the first error is the one to show
                _append(folder / FILE, error)
        raise


def kept_in(error: BaseException) -> Path | None:
    """The file that ``keeping`` has appended this error to."""
    return vars(error).get(_KEPT)


def _append(file: Path, error: BaseException) -> None:
    if file.is_symlink():
        return  # nothing is written through a link in a run
    heading = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}  {one_line(error)}"
    with file.open("a", encoding="utf-8", errors="backslashreplace") as handle:
        handle.write(f"{heading}\n{whole(error)}\n\n")
    vars(error)[_KEPT] = file


def _shorten(text: traceback.TracebackException, *, is_env: bool) -> None:
    """Drop the frames before the user's, also in the errors before this one."""
    text.stack = traceback.StackSummary.from_list(_from_user(text.stack, is_env=is_env))
    for earlier in (text.__cause__, text.__context__):
        if earlier is not None:
            _shorten(earlier, is_env=True)


def _from_user(frames: list[traceback.FrameSummary], *, is_env: bool) -> list[traceback.FrameSummary]:
    ours = [i for i, frame in enumerate(frames) if frame.filename.startswith(_OURS)]
    called = frames[ours[0] + 1 :] if ours else frames  # before: the program that runs Recollect
    for i, frame in enumerate(called):
        if not _is_library(frame.filename):
            return called[i:]
    return frames[ours[-1] + 1 :] if is_env and ours else [] if ours else frames


def _is_library(file: str) -> bool:
    is_installed = "site-packages" in file or "dist-packages" in file
    # "<string>": methods that dataclasses generate
    return is_installed or file.startswith((_OURS, *_LIBRARIES, "<frozen ", "<string>"))
