"""Child processes: a fresh interpreter that runs one function and talks to its parent over a socket.

Not ``multiprocessing``: a script needs no ``if __name__ == "__main__"``, because nothing of it is imported
again, and functions of a notebook can be sent, because they travel by value (cloudpickle).

A child ends when its parent does, however that ends: it holds one end of a pipe, the lifeline, whose other
end only the parent has. It has a session of its own, so that a Ctrl-C in the terminal is the parent's to
handle, and it takes no notice of the signals that a job system sends to all processes at once. What it raises
arrives at the parent with its traceback.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

from recollect.errors import ChildError, LostError, RecollectError, ResourceError

_START = (
    "import sys; sys.path[:] = {path!r}; "
    "from recollect.base import child_process; child_process._main({fds!r})"
)


_PARENTS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_SPARE_FILES = 256
"""For all else that a process has open."""


class HungUpError(EOFError):
    """The other side of a line is gone."""


class Line:
    """One end of a conversation in whole messages. Tensors travel as bytes, never as shared memory."""

    def __init__(self, connection: Connection):
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, message: Any) -> None:
        """Send; raises HungUpError if nobody is there."""
        data = pickle.dumps(message, protocol=5)
        try:
            with self._sending:
                self._connection.send_bytes(data)
        except OSError:
            raise HungUpError from None

    def recv(self) -> Any:
        """The next message; raises HungUpError once the other side is gone."""
        try:
            data = self._connection.recv_bytes()
        except (EOFError, OSError):
            raise HungUpError from None
        return pickle.loads(data)

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether a message, or the end, is there within ``timeout`` seconds; None: wait for it."""
        return self._connection.poll(timeout)

    def fileno(self) -> int:
        """For ``multiprocessing.connection.wait``."""
        return self._connection.fileno()

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


@dataclass(frozen=True, slots=True)
class Raised:
    """What a child sends in place of an answer when it fails."""

    text: str
    """The traceback."""
    error: bytes | None
    """The exception itself, pickled, if it can be."""


@dataclass(frozen=True, slots=True)
class Hung:
    """What a child sends when something in it does not come back."""

    text: str


class Child:
    """A process of this run. ``target(line, *arguments)`` runs in it until ``HungUpError``."""

    def __init__(
        self,
        target: Callable[..., None],
        *arguments: Any,
        name: str,
        fds: Sequence[int] = (),
        log: Path | None = None,
    ):
        """Start it.

        Args:
            target: gets the child's end of the line and the arguments; all go by cloudpickle.
            arguments: for it.
            name: what it is, for errors.
            fds: file descriptors that the child inherits, under the same numbers.
            log: where its output goes; None: where that of this process goes.
        """
        self.name, self.log = name, log
        try:
            work = cloudpickle.dumps((target, arguments))
        except Exception as error:
            raise RecollectError(
                f"{name} cannot be started: what it needs cannot be sent to another process ({error}). "
                "Give the env by its name, or by a function that makes it"
            ) from error
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            near, far = (theirs.enter_context(end) for end in socket.socketpair())
            lifeline, kept = os.pipe()
            theirs.callback(os.close, lifeline)
            ours.callback(os.close, kept)
            # Not over the line: the child begins to read only once it has imported everything.
            given = _unnamed_file(work)
            theirs.callback(os.close, given)
            output = None if log is None else theirs.enter_context(_appended(log))
            inherited = (far.fileno(), lifeline, given)
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START.format(path=sys.path, fds=inherited), f"recollect {name}"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(*inherited, *fds),
                start_new_session=True,
            )
            ours.pop_all()
            self._lifeline, self.line = kept, Line(Connection(near.detach()))
        self.pid = self._process.pid
        self._is_stopped = False

    def send(self, message: Any) -> None:
        """Send; raises LostError, or what the child raised before it went, if it is gone."""
        try:
            self.line.send(message)
        except HungUpError:
            self._raise_last()

    def receive(self, timeout: float | None = None) -> Any:
        """Its next message.

        Raises:
            LostError: it was killed, or crashed, or hangs.
            ChildError: it raised; a RecollectError comes as it is, with the traceback as a note.
            TimeoutError: nothing came.
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
        return not self._has_ended()

    def stop(self, grace: float = 2.0) -> None:
        """End it: by hanging up, and after ``grace`` seconds by force."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self.line.close()
        try:
            self._end(grace)
        finally:
            os.close(self._lifeline)

    def _has_ended(self, seconds: float = 0.0) -> bool:
        """Whether it has ended, or does within so many seconds. Its number stays its own until ``_end``."""
        if self._process.returncode is not None:
            return True
        until, pause = time.monotonic() + seconds, 0.0005
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, pause))
            pause = min(2 * pause, 0.05)
        return True

    def _end(self, grace: float) -> int:
        """Its exit code, by force if it does not end by itself; what it has started itself ends with it."""
        self._has_ended(grace)
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()

    def _raise_last(self) -> None:
        """Raise what the child said last, or how it ended."""
        while True:
            self.receive(1.0)

    def _how_it_ended(self) -> str:
        if not self._has_ended(2.0):
            return f"{self} has hung up"
        code = self._end(0.0)
        how = f"ended with exit code {code}"
        if code < 0:
            how = f"was killed by {_signal_name(-code)}"
            if -code == signal.SIGKILL:
                how += " (by somebody, or by the system because memory ran out)"
        tail = "" if self.log is None else f"; its output is in {self.log}"
        return f"{self} {how}{tail}"


def stop_all(children: Sequence[Child], grace: float = 2.0) -> None:
    """Stop them together: all are told before the first is waited for."""
    for child in children:
        child.line.close()
    ends = time.monotonic() + grace
    for child in children:
        child.stop(max(0.0, ends - time.monotonic()))


def allow_open_files(count: int) -> None:
    """See to it that this process can open so many files more than it has; the usual limit is 1,024.

    Raises:
        ResourceError: the system does not allow it.
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
    return Raised("".join(traceback.format_exception(error)).rstrip(), data)


def raised_error(raised: Raised, who: str) -> Exception:
    """What it stands for: as it is if it is one of ours, else as the cause of a ``ChildError``."""
    origin = None
    if raised.error is not None:
        with contextlib.suppress(Exception):
            origin = pickle.loads(raised.error)
    if isinstance(origin, RecollectError):
        origin.add_note(f"in {who}:\n{raised.text}")
        return origin
    error = ChildError(f"{who} failed:\n{raised.text}")
    error.__cause__ = origin
    return error


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # those for real time have none
        return f"signal {number}"


def _unnamed_file(data: bytes) -> int:
    """A file descriptor to read ``data`` from."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("recollect")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _appended(log: Path) -> Any:
    log.parent.mkdir(parents=True, exist_ok=True)
    return log.open("ab")


def _main(fds: tuple[int, int, int]) -> None:
    """The life of a child."""
    connection_fd, lifeline, given = fds
    for fd in fds:
        os.set_inheritable(fd, False)  # its own children get lines of their own
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True, name="lifeline").start()
    _leave_signals_to_the_parent()
    faulthandler.enable()
    line = Line(Connection(connection_fd))
    try:
        with open(given, "rb") as file:
            target, arguments = pickle.load(file)
        target(line, *arguments)
    except HungUpError:
        pass  # the parent wants no more
    except BaseException as error:
        with contextlib.suppress(HungUpError):
            line.send(describe_raised(error))
        sys.exit(1)


def _leave_signals_to_the_parent() -> None:
    """A job system sends them to every process of a run; only the parent knows what to save first."""
    before = {number: signal.getsignal(number) for number in _PARENTS_SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which programs that an env starts would inherit
    os.register_at_fork(after_in_child=restore)


def _end_with_parent(lifeline: int) -> None:
    """Wait for the parent's end, then end too, whatever the other threads are doing."""
    os.read(lifeline, 1)
    os._exit(1)
