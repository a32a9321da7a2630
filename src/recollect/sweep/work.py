"""Runs tasks, each in a process of its own, a few at a time; no process outlives it."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Literal, Protocol

from recollect.base.process_group import ProcessGroup
from recollect.errors import RecollectError

State = Literal["waiting", "running", "finished", "stopped", "failed"]
TICK = 0.1
"""Seconds between two polls of the processes."""
GRACE = 300.0
"""Seconds for a process to save after an interrupt, before it is killed."""
BUSY = 60.0
"""Seconds to wait for a run that another process still saves, such as that of a killed sweep."""
STOPPED = (130, 143, -signal.SIGINT, -signal.SIGTERM)
"""Exit codes of a process that ended on request."""
PROMPT = "$ "
"""Starts the line of a log that shows the command."""


class Task(Protocol):
    """Work for one process."""

    @property
    def log(self) -> Path:
        """The file for the output of the process."""
        ...

    def is_busy(self) -> bool:
        """Whether it has to wait for another process."""
        ...

    def command(self) -> list[str] | None:
        """The command to run; None: nothing is left to do."""
        ...


def work(
    tasks: Sequence[Task],
    jobs: int,
    *,
    told: Callable[[Task, State, str], None],
    tick: Callable[[int], None],
) -> int:
    """Run every task, at most ``jobs`` at a time. A task that fails stops no other.

    Args:
        tasks: in the order in which they start.
        jobs: processes at a time.
        told: called with every change of a task's state, and a text for a failure.
        tick: called repeatedly, with 0, or 1 after a request to end, or 2 after one to end at once.

    Returns:
        The signal that ended the tasks early, or 0.
    """
    waiting, children = list(tasks), dict[Task, Child]()
    began = time.monotonic()
    with _signals() as asked:
        try:
            deadline: float | None = None
            while children or (waiting and not asked):
                urgency = _urgency(asked)
                if urgency:
                    deadline = deadline or time.monotonic() + GRACE
                    _end(children.values(), at_once=urgency > 1 or time.monotonic() > deadline)
                else:
                    is_patient = time.monotonic() - began < BUSY
                    _fill(waiting, children, jobs, is_patient, told)
                for task, child in list(children.items()):
                    if child.poll() is not None:
                        del children[task]
                        told(task, *child.outcome())
                tick(urgency)
                time.sleep(TICK)
        finally:  # after an error the others save, too
            deadline = time.monotonic() + GRACE
            while any(child.poll() is None for child in children.values()):
                _end(children.values(), at_once=_urgency(asked) > 1 or time.monotonic() > deadline)
                time.sleep(TICK)
    return asked[0] if asked else 0


def _fill(
    waiting: list[Task],
    children: dict[Task, Child],
    jobs: int,
    is_patient: bool,
    told: Callable[[Task, State, str], None],
) -> None:
    """Start the tasks that may start now. Tasks that have to wait are started later."""
    for task in list(waiting):
        if len(children) >= jobs:
            return
        state, text = "finished", ""
        try:
            if is_patient and task.is_busy():
                continue
            command = task.command()
            if command is not None:
                children[task] = Child(command, task.log)
                state = "running"
        except (RecollectError, OSError) as error:
            state, text = "failed", str(error)
        waiting.remove(task)
        told(task, state, text)


def _end(children: Iterable[Child], *, at_once: bool) -> None:
    for child in children:
        if at_once:
            child.kill()
        else:
            child.interrupt()


class Child:
    """The process of a task."""

    def __init__(self, command: Sequence[str], log: Path):
        self._log, self._is_asked = log, False
        self._code: int | None = None
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            file.write(f"{PROMPT}{shlex.join(command)}\n".encode())
            file.flush()
            self._from = file.tell()
            self._group = ProcessGroup(command, output=file, before=_end_with_parent())

    def poll(self) -> int | None:
        """The exit code, once it has ended; no process that it started is left then."""
        if self._code is None and self._group.has_ended():
            self._code = self._group.end()
        return self._code

    def interrupt(self) -> None:
        """Ask it to save and end; only once, because a second interrupt ends it at once."""
        if not self._is_asked and self.poll() is None:
            self._is_asked = True
            self._group.interrupt()

    def kill(self) -> None:
        """End it and all processes that it started."""
        if self.poll() is None:
            self._is_asked = True
            self._code = self._group.end()

    def outcome(self) -> tuple[State, str]:
        """How it ended, with its last lines of output if it failed."""
        code = self._code or 0
        if code == 0:
            return "finished", ""
        if code in STOPPED or (self._is_asked and code == -signal.SIGKILL):
            return "stopped", ""
        why = f"exit code {code}" if code > 0 else _signal_words(-code)
        return "failed", "\n".join([*self._last_lines(), why])

    def _last_lines(self, count: int = 8) -> list[str]:
        with self._log.open("rb") as file:
            file.seek(max(self._from, file.seek(0, os.SEEK_END) - 8192))
            text = file.read().decode("utf-8", "replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


def _signal_words(number: int) -> str:
    hint = ": was the memory full?" if number == signal.SIGKILL else ""
    return f"ended by signal {number} ({signal.strsignal(number)}){hint}"


def _end_with_parent() -> Callable[[], None] | None:
    """A function for the new process, so that it saves and ends when this process is killed."""
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()
    set_parent_death_signal = 1

    def ask() -> None:
        prctl(set_parent_death_signal, signal.SIGTERM)
        if os.getppid() != parent:  # it was killed before the call
            os._exit(143)

    return ask


def _urgency(asked: Sequence[int]) -> int:
    """0: continue; 1: end; 2: end at once, which needs a second Ctrl-C, not a second SIGTERM."""
    return min(len(asked), 1) + (asked.count(signal.SIGINT) > 1)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The requests to end, as their signals arrive. Only the main thread of a program gets signals."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def handle(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    before = {}
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # nohup ignores the hangup: keep that.
        if number is not None and not (name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN):
            before[number] = signal.signal(number, handle)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
