"""Handle of one env worker in the actor's process: its commands and answers, and its end."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from recollect.base.child_process import Child, stop_all
from recollect.base.shared_memory import Layout, Segment
from recollect.envs.worker_process import STACK_SIGNAL, MakeSlots, give_memory, serve
from recollect.errors import LostError

STACK_SECONDS = 1.0
"""Time for a hung worker to write its stack."""
STACK_LINES = 13
"""Lines of the stack to show, innermost calls first."""


class Deadline:
    """A time limit."""

    def __init__(self, seconds: float | None):
        self.seconds, self._ends = seconds, None if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float | None:
        """Remaining seconds; None: no limit."""
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())


class Worker:
    """Handle of one worker: its process, and the number of pending answers."""

    def __init__(self, make: MakeSlots, slots: range, name: str):
        last = slots.stop - 1
        which = f"env slot {last}" if len(slots) == 1 else f"env slots {slots.start} to {last}"
        self.slots, self.name = slots, f"{name} ({which})"
        self._stack = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the worker)
        fd = self._stack.fileno()
        try:
            self.child = Child(serve, make, slots, fd, name=self.name, fds=(fd,))
        except BaseException:
            self._stack.close()
            raise
        self._pending = 1  # its ``Made``
        self.is_usable = True
        """Whether the process is alive and no message was interrupted halfway."""

    def send(self, command: str, *arguments: Any) -> None:
        """Send a command."""
        self.is_usable = False
        self.child.send((command, *arguments))
        self._pending += 1
        self.is_usable = True

    def answer(self, deadline: Deadline) -> Any:
        """Receive the next answer."""
        self.is_usable = False
        try:
            message = self.child.receive(deadline.left)
        except TimeoutError:
            raise LostError(self._hung(deadline)) from None
        except LostError:
            raise
        except Exception:  # an exception of the env is an answer, too
            self._pending, self.is_usable = self._pending - 1, True
            raise
        self._pending, self.is_usable = self._pending - 1, True
        return message

    def give_memory(self, segment: Segment, layout: Layout) -> None:
        """Send shared memory."""
        self.is_usable = False
        try:
            give_memory(self.child.line, segment, layout)
        except (EOFError, OSError):
            raise LostError(f"{self.name} (process {self.child.pid}) died while it started") from None
        self.is_usable = True

    def drain(self, deadline: Deadline) -> None:
        """Read and discard all pending answers."""
        while self.is_usable and self._pending:
            with contextlib.suppress(Exception):  # an old error; is_usable is false if the worker is lost
                self.answer(deadline)
        self.is_usable = self.is_usable and self.child.is_alive

    def stop(self) -> None:
        """End the process."""
        self.child.stop()
        self._stack.close()

    def _hung(self, deadline: Deadline) -> str:
        """End the hung worker. Returns the error message, with the worker's stack."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child.pid, STACK_SIGNAL)
        text, ends = "", time.monotonic() + STACK_SECONDS
        while "in <module>" not in text and time.monotonic() < ends:  # the last line of the stack
            time.sleep(0.01)
            text = os.pread(self._stack.fileno(), 1 << 16, 0).decode(errors="replace")
        self.child.stop(grace=0.0)
        where = "\n".join(text.splitlines()[:STACK_LINES]) or "It wrote no stack"
        return (
            f"{self.name} (process {self.child.pid}) has not answered for {deadline.seconds:g} seconds "
            f"(env_timeout) and was ended. {where}"
        )


def stop_workers(workers: Sequence[Worker], grace: float = 2.0) -> None:
    """End all workers in parallel."""
    stop_all([worker.child for worker in workers], grace)
    for worker in workers:
        worker.stop()
