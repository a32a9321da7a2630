"""Python processes that are forked from a server with everything imported, in place of fresh interpreters.

The imports of a training take 3 seconds of a core, and the tests start hundreds of processes. A forked
process has the descriptors, environment, folder, arguments and signal handlers that a fresh one would have;
its name in /proc is that of the server. Processes that it starts itself are fresh.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl: orphans below this process become its children."""
_IMPORTED = (
    *("torch._dynamo", "torch.distributed"),  # the first for the optimiser
    *("recollect.api", "recollect.cli.train", "tests.mutants.planted", "tests.support.process_runs"),
)
"""What processes of the tests import."""
_START = "import sys; sys.path.append({root!r}); from tests.support import warm; warm._serve({fd})"
_ROOT = str(Path(__file__).parents[2])


class Popen(subprocess.Popen):
    """A process of this Python is forked from the server, any other is started as usual.

    ``preexec_fn`` is not called: signal handlers are the default ones anyway.
    """

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest) -> None:
        has_program = len(args) > 1 and (args[1] in ("-c", "-m") or not args[1].startswith("-"))
        if isinstance(args, str) or args[0] != sys.executable or not has_program:
            super()._execute_child(  # pyright: ignore[reportAttributeAccessIssue]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest
            )
            return
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = rest[3:9]
        streams = [own if fd == -1 else fd for own, fd in enumerate((p2cread, c2pwrite, errwrite))]
        order = {
            "arguments": list(map(os.fspath, args[1:])),
            "environment": dict(os.environ if env is None else env),
            "folder": os.fspath(cwd or os.getcwd()),
            "fds": (*range(3), *pass_fds),
        }
        try:
            self.pid = _fork(order, [*streams, *pass_fds])
            self._child_created = True
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.contextmanager
def used() -> Iterator[None]:
    """Within it Python processes are forked; on Linux alone."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            start_server()
            patch.setattr(subprocess, "Popen", Popen)
        yield


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Take in orphans, so that this process is the parent of what the server forks."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_SUBREAPER, 0, 0, 0, 0)


_server: socket.socket | None = None


def start_server() -> None:
    """Start it, once in this process; it ends with this process."""
    global _server
    if _server is None:
        _server, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-c", _START.format(root=_ROOT, fd=theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), start_new_session=True)
        atexit.register(process.wait)
        atexit.register(_server.close)


def _fork(order: dict[str, Any], fds: list[int]) -> int:
    assert _server is not None
    data = pickle.dumps(order)
    with adopting():
        # The number of bytes, with the descriptors; then the bytes.
        socket.send_fds(_server, [len(data).to_bytes(8, "little")], fds)
        _server.sendall(data)
        return int.from_bytes(_received(_server, 8), "little")


def _received(line: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = line.recv(count - len(data))
        if not part:
            raise EOFError("the other side is gone")
        data += part
    return data


# In the server -------------------------------------------------------------------------------------------


def _serve(fd: int) -> None:
    """Fork a process for each order."""
    given = len(os.environ.get("PYTHONPATH", "").split(os.pathsep)) if os.environ.get("PYTHONPATH") else 0
    installed = sys.path[1 + given : -1]  # without "", PYTHONPATH and what ``_START`` has appended
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(fileno=fd) as line:
        while True:
            size, fds, _, _ = socket.recv_fds(line, 8, 253)
            if not size:
                return
            order = pickle.loads(_received(line, int.from_bytes(size, "little")))
            told, tells = os.pipe()
            if os.fork() == 0:
                if child := os.fork():  # an orphan when this one has ended, and adopted
                    os.write(tells, child.to_bytes(8, "little"))
                    os._exit(0)
                line.close()
                os.close(told)
                os.close(tells)
                break
            os.wait()
            line.sendall(os.read(told, 8))
            for one in (told, tells, *fds):
                os.close(one)
    _settle(order, fds)
    code = 0
    try:
        _run(order["arguments"], order["environment"], installed)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    _end(code)


def _settle(order: dict[str, Any], fds: Sequence[int]) -> None:
    """Be as a process of its own that was started with ``order``."""
    os.setsid()
    numbers = order["fds"]
    away = [fcntl.fcntl(one, fcntl.F_DUPFD, max(*numbers, *fds) + 1) for one in fds]
    for one in fds:
        os.close(one)
    for one, number in zip(away, numbers):
        os.dup2(one, number)
        os.close(one)
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        signal.signal(number, handler)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    if "env worker" in order["arguments"][-1]:
        Path("/proc/self/comm").write_text("env worker")  # for tests/support/worker_worlds.py
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115


def _run(arguments: list[str], environment: Mapping[str, str], installed: list[str]) -> None:
    """``python *arguments``."""
    name = arguments[0]
    first = "" if name == "-c" else os.getcwd() if name == "-m" else str(Path(name).parent)
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [first, *filter(None, given), *installed]
    if name == "-c":
        sys.argv = ["-c", *arguments[2:]]
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), vars(main))
    elif name == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(name, run_name="__main__")


def _end(code: int) -> None:
    """As an interpreter ends, but for a second in which it would take down everything that was imported."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(code)
