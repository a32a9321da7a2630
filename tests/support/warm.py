"""Children that are forked from a server with everything imported, in place of fresh interpreters.

An import of torch takes 2 seconds of a core, and the tests start hundreds of children. A forked child runs
``child_process.main`` with the descriptors, environment, folder and session that a fresh one would have.
Fresh interpreters: tests/base/test_child_process.py, and wherever a test starts a script or a command.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import importlib
import os
import pickle
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from recollect.base import child_process

_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl: orphans below this process become its children."""
_IMPORTED = ("torch._dynamo", "torch.distributed", "tests.mutants.planted", "tests.support.process_runs")
"""What children import; the first for their optimiser."""
_START = "import sys; sys.path[:] = {path!r}; from tests.support import warm; warm._serve({fd})"


@contextmanager
def adopting() -> Iterator[None]:
    """Take in orphans, so that this process is the parent of what the server forks."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_SUBREAPER, 0, 0, 0, 0)


class _Forked:
    """As much of ``subprocess.Popen`` as ``Child`` uses."""

    def __init__(self, command: list[str], *, stdout: Any, pass_fds: Sequence[int], **_: Any):
        inherited = re.search(r"child_process\.main\((.*)\)$", command[2])
        assert inherited is not None
        output = (1, 2) if stdout is None else (stdout.fileno(), stdout.fileno())
        order = {
            "main": eval(inherited[1]),
            "fds": tuple(pass_fds),
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "path": sys.path,
            "is_env_worker": "env worker" in command[-1],
        }
        self.pid = _fork(order, [*pass_fds, *output])
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


popen = SimpleNamespace(Popen=_Forked, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)
"""In place of ``subprocess`` in ``recollect.base.process_group``."""
_server: socket.socket | None = None


def start_server() -> None:
    """Start it, once in this process; it ends with this process."""
    global _server
    if _server is None:
        _server, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-c", _START.format(path=sys.path, fd=theirs.fileno())]
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
    """Fork a child for each order. A child returns from here, and ends as an interpreter does."""
    for name in _IMPORTED:
        importlib.import_module(name)

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
    child_process.main(order["main"])


def _settle(order: dict[str, Any], fds: list[int]) -> None:
    """Be as a process of its own that was started with ``order``."""
    os.setsid()
    numbers = (*order["fds"], 1, 2)
    away = [fcntl.fcntl(one, fcntl.F_DUPFD, max(*numbers, *fds) + 1) for one in fds]
    for one in fds:
        os.close(one)
    for one, number in zip(away, numbers):
        os.dup2(one, number)
        os.close(one)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.path[:] = order["path"]
    if order["is_env_worker"]:
        Path("/proc/self/comm").write_text("env worker")
