"""A command in a process group of its own: it and all processes that it starts end together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

REAP_SECONDS = 10.0
"""Seconds for the system to remove a killed process."""


class ProcessGroup:
    """A running command. It leads a session, so that a Ctrl-C in the terminal does not reach it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        output: Any,
        fds: Sequence[int] = (),
        before: Callable[[], None] | None = None,
    ):
        """Start it.

        Args:
            output: the file for its output; None: the output of this process.
            fds: file descriptors that it inherits, under the same numbers.
            before: called in the new process before the command.
        """
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=fds,
            start_new_session=True,
            preexec_fn=before,
        )
        self.pid = self._process.pid
        self._code: int | None = None

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Whether the command has ended, or ends within so many seconds. Its pid is kept until ``end``."""
        until, pause = time.monotonic() + seconds, 0.0005
        while not self._is_over():
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, pause))
            pause = min(2 * pause, 0.05)
        return True

    def interrupt(self) -> None:
        """Send the command SIGINT."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)

    def end(self, grace: float = 0.0) -> int:
        """Kill the group unless the command ends within ``grace`` seconds, and return its exit code.

        Processes that the command has started are killed in any case.
        """
        if self._code is None:
            self.has_ended(grace)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            try:
                self._code = self._process.wait(REAP_SECONDS)
            except subprocess.TimeoutExpired:  # stuck in the kernel
                self._code = -signal.SIGKILL
        return self._code

    def _is_over(self) -> bool:
        if self._code is not None:
            return True
        if not hasattr(os, "waitid"):  # macOS: the pid may be reused before ``end``
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def describe_exit(code: int) -> str:
    """How a process with this exit code ended; a negative code is the number of a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # real-time signals have no name
        name = f"signal {-code}"
    hint = " (the system does so when memory runs out)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
