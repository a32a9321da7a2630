"""Child processes: a fresh interpreter that runs one function and exchanges messages with its parent.

Unlike ``multiprocessing``, a script needs no ``if __name__ == "__main__"``, because it is not imported again,
and functions of a notebook can be sent, because they are pickled by value (cloudpickle).

A child ends when its parent ends, for any reason: it holds one end of a pipe, the lifeline, whose other end
only the parent has. It has a session of its own, so that only the parent gets a Ctrl-C in the terminal, and
it ignores the signals that a job system sends to all processes. Its exceptions reach the parent with their
traceback.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

from recollect.base import tracebacks, warnings_once
from recollect.base.files import anonymous_file
from recollect.base.parts import Carried
from recollect.base.process_group import ProcessGroup, describe_exit
from recollect.errors import ChildError, LostError, RecollectError, ResourceError

_START = (
    "import sys; sys.path[:] = {path!r}; "
    "from recollect.base import child_process; child_process.main({fds!r}, {shown!r})"
)
_PARENTS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_SPARE_FILES = 256
"""Open files besides those that are counted."""


class HungUpError(EOFError):
    """The process at the other end of a line has closed it."""


class Line(Connection):
    """One end of a socket for whole messages. Tensors are sent as bytes, never as shared memory."""

    def __init__(self, fd: int):
        super().__init__(fd)
        self._sending = threading.Lock()

    def send(self, obj: Any) -> None:
        """Send; raises HungUpError if the other end is closed."""
        data = pickle.dumps(obj, protocol=5)
        try:
            with self._sending:
                self.send_bytes(data)
        except OSError:
            raise HungUpError from None

    def recv(self) -> Any:
        """The next message; raises HungUpError if the other end is closed."""
        try:
            data = self.recv_bytes()
        except (EOFError, OSError):
            raise HungUpError from None
        return pickle.loads(data)


@dataclass(frozen=True, slots=True)
class Raised:
    """The last message of a child that fails."""

    text: str
    """The traceback."""
    error: bytes | None
    """The exception itself, pickled, if it can be."""
    summary: str
    """Its type and message."""
    user_frames: str
    """The frames of the user's code."""


@dataclass(frozen=True, slots=True)
class Hung:
    """The last message of a child in which something hangs."""

    text: str


class Child:
    """A process that runs ``target(line, *arguments)``, which may end with ``HungUpError``."""

    def __init__(
        self,
        target: Callable[..., None],
        *arguments: Any,
        name: str,
        fds: Sequence[int] = (),
        log: Path | None = None,
    ):
        """Start it; target and arguments are sent by cloudpickle.

        Args:
            name: for errors.
            fds: file descriptors that the child inherits, under the same numbers.
            log: the file for its output; None: the output of this process.
        """
        self.name, self.log = name, log
        try:
            work = cloudpickle.dumps((Carried(), target, arguments))
        except Exception as error:
            raise RecollectError(
                f"{name} cannot be started: its arguments cannot be sent to another process ({error}). "
                "Give the env by its name, or by a function that makes it"
            ) from error
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            near, far = (theirs.enter_context(end) for end in socket.socketpair())
            lifeline, kept = os.pipe()
            theirs.callback(os.close, lifeline)
            ours.callback(os.close, kept)
            # Not over the line: the child reads from it only after all imports.
            given = anonymous_file()
            theirs.callback(os.close, given)
            with open(given, "wb", closefd=False) as file:
                file.write(work)
            os.lseek(given, 0, os.SEEK_SET)
            output = None
            if log is not None:
                log.parent.mkdir(parents=True, exist_ok=True)
                output = theirs.enter_context(log.open("ab"))
            inherited = (far.fileno(), lifeline, given)
            # A log of its own has its own warnings.
            shown = None if log is not None else warnings_once.shared_fd()
            start = _START.format(path=sys.path, fds=inherited, shown=shown)
            self._group = ProcessGroup(
                [sys.executable, "-c", start, f"recollect {name}"],
                output=output,
                fds=(*inherited, *([] if shown is None else [shown]), *fds),
            )
            ours.pop_all()
            self._lifeline, self.line = kept, Line(near.detach())
        self.pid = self._group.pid
        self._is_stopped = False

    def send(self, message: Any) -> None:
        """Send; if the child has ended, raise its exception or LostError."""
        try:
            self.line.send(message)
        except HungUpError:
            while True:  # until its last message, or its end, is raised
                self.receive(1.0)

    def receive(self, timeout: float | None = None) -> Any:
        """Its next message.

        Raises:
            LostError: it was killed, or crashed, or hangs.
            ChildError: it raised; a RecollectError is raised as it is, with the traceback as a note.
            TimeoutError: there was no message.
        """
        if not self.line.poll(timeout):
            raise TimeoutError(f"{self.name} has not answered for {timeout:g} seconds")
        try:
            message = self.line.recv()
        except HungUpError:
            raise LostError(self._how_it_ended()) from None
        if isinstance(message, Raised):
            raise raised_error(message, self.name)
        if isinstance(message, Hung):
            raise LostError(f"{self.name} hangs: {message.text}")
        return message

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid})"

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return not self._group.has_ended()

    def stop(self, grace: float = 2.0) -> None:
        """End it: close the line, and kill it after ``grace`` seconds."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self.line.close()
        try:
            self._group.end(grace)
        finally:
            os.close(self._lifeline)

    def _how_it_ended(self) -> str:
        if not self._group.has_ended(2.0):
            return f"{self} has closed its line"
        tail = "" if self.log is None else f"; its output is in {self.log}"
        return f"{self} {describe_exit(self._group.end())}{tail}"


def stop_all(children: Sequence[Child], grace: float = 2.0) -> None:
    """Stop them together: all lines are closed before the first child is waited for."""
    for child in children:
        child.line.close()
    ends = time.monotonic() + grace
    for child in children:
        child.stop(max(0.0, ends - time.monotonic()))


def allow_open_files(count: int) -> None:
    """Raise this process's limit of open files by ``count``; the usual limit is 1,024.

    Raises:
        ResourceError: the system does not allow so many.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _SPARE_FILES
    if soft in (resource.RLIM_INFINITY, -1) or wanted <= soft:
        return
    if hard not in (resource.RLIM_INFINITY, -1) and wanted > hard:
        raise ResourceError(
            f"{wanted} open files are needed, and the limit of this process is {hard}: lower actors, or "
            "raise the limit (ulimit -n)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def describe_raised(error: BaseException) -> Raised:
    """The exception as a child sends it."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # an exception with its own __init__ can often be pickled and not read back
    except Exception:
        data = None
    return Raised(tracebacks.whole(error), data, tracebacks.one_line(error), tracebacks.user_frames(error))


def raised_error(raised: Raised, who: str) -> Exception:
    """The exception to raise: a RecollectError as it is, any other as the cause of a ``ChildError``."""
    origin = None
    if raised.error is not None:
        with contextlib.suppress(Exception):
            origin = pickle.loads(raised.error)
    if isinstance(origin, RecollectError):
        origin.add_note(f"in {who}:\n{raised.text}")
        origin.user_frames = raised.user_frames
        return origin
    error = ChildError(f"{who} failed:\n{raised.text}")
    error.summary, error.user_frames = f"{who} failed: {raised.summary}", raised.user_frames
    error.__cause__ = origin
    return error


def main(fds: tuple[int, int, int], shown: int | None = None) -> None:
    """The main function of a child; ``shown``: the file of the warnings shown so far (``warnings_once``)."""
    connection_fd, lifeline, given = fds
    for fd in fds if shown is None else (*fds, shown):
        os.set_inheritable(fd, False)  # its own children must not inherit them
    if shown is not None:
        warnings_once.install(shown)
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True, name="lifeline").start()
    _leave_signals_to_the_parent()
    faulthandler.enable()
    line = Line(connection_fd)
    try:
        with open(given, "rb") as file:
            _, target, arguments = pickle.load(file)
        target(line, *arguments)
    except HungUpError:
        pass  # the parent has closed the line
    except BaseException as error:
        with contextlib.suppress(HungUpError):
            line.send(describe_raised(error))
        sys.exit(1)


def _leave_signals_to_the_parent() -> None:
    """Ignore the signals that a job system sends to every process of a run; the parent handles them."""
    before = {number: signal.getsignal(number) for number in _PARENTS_SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which subprocesses of an env would inherit
    os.register_at_fork(after_in_child=restore)


def _end_with_parent(lifeline: int) -> None:
    """Wait for the end of the parent, then end this process, whatever its other threads do."""
    os.read(lifeline, 1)
    os._exit(1)
