"""Works through tasks, each a process of its own, a few at a time; nothing outlives it."""

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
"""Seconds between two looks at the processes."""
GRACE = 300.0
"""Seconds that a process has to save after it was interrupted, before it is killed."""
BUSY = 60.0
"""Seconds to wait for a run that another process still saves, such as one of a sweep that was killed."""
STOPPED = (130, 143, -signal.SIGINT, -signal.SIGTERM)
"""Exit codes of a process that was asked to end."""
PROMPT = "$ "
"""Opens the line of a log that tells what was started."""


class Task(Protocol):
    """Something that a process does."""

    @property
    def log(self) -> Path:
        """The file for what the process prints."""
        ...

    def is_busy(self) -> bool:
        """Whether it has to wait for somebody else."""
        ...

    def command(self) -> list[str] | None:
        """What to start for it; None: nothing is left to do."""
        ...


def work(
    tasks: Sequence[Task],
    jobs: int,
    *,
    told: Callable[[Task, State, str], None],
    tick: Callable[[int], None],
) -> int:
    """Start every task, at most ``jobs`` at a time, and wait for them all. One that fails stops no other.

    Args:
        tasks: in the order in which they begin.
        jobs: processes at a time.
        told: gets every change of a task's state, with words for a failure.
        tick: called again and again, with 0, 1 once somebody asked for an end, 2 if at once.

    Returns:
        The signal that ended the work early, or 0.
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
    """Start what may begin now. Who has to wait for somebody lets the others go first."""
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
        """How it ended, with the last lines that it printed if it failed."""
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
    """What a new process calls before all else, so that it saves and ends when this one is killed."""
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()
    set_parent_death_signal = 1

    def ask() -> None:
        prctl(set_parent_death_signal, signal.SIGTERM)
        if os.getppid() != parent:  # it was killed before we could ask
            os._exit(143)

    return ask


def _urgency(asked: Sequence[int]) -> int:
    """0: go on; 1: end; 2: at once, which only a second Ctrl-C means, no second word of the system."""
    return min(len(asked), 1) + (asked.count(signal.SIGINT) > 1)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals that ask for an end, as they come in. Only the main thread of a program gets any."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def handle(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    before = {}
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # nohup has the hangup ignored, and so do we then.
        if number is not None and not (name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN):
            before[number] = signal.signal(number, handle)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
