"""The processes of a sweep: each run has one, a few at a time, and no process outlives the sweep."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from recollect.base import interrupts
from recollect.base.process_group import ProcessGroup, describe_exit
from recollect.errors import RecollectError
from recollect.sweep.member import Member

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


def run_members(
    members: Sequence[Member],
    jobs: int,
    *,
    on_change: Callable[[Member, State, str], None],
    tick: Callable[[int], None],
) -> int:
    """Start the members in their order, at most ``jobs`` at a time. One that fails stops no other.

    Args:
        members: the runs.
        jobs: processes at a time.
        on_change: called with every change of a member's state, and a text for a failure.
        tick: called repeatedly, with 0, or 1 after a request to end, or 2 after one to end at once.

    Returns:
        The signal that ended the runs early, or 0.
    """
    waiting, children = list(members), dict[Member, RunProcess]()
    began = time.monotonic()
    asked: list[int] = []
    with interrupts.handled(lambda number, _: asked.append(number)):
        try:
            deadline: float | None = None
            while children or (waiting and not asked):
                urgency = _urgency(asked)
                if urgency:
                    deadline = deadline or time.monotonic() + GRACE
                    for child in children.values():
                        child.ask(at_once=urgency > 1 or time.monotonic() > deadline)
                else:
                    is_patient = time.monotonic() - began < BUSY
                    _fill(waiting, children, jobs, is_patient, on_change)
                for member, child in list(children.items()):
                    if child.has_ended():
                        del children[member]
                        on_change(member, *child.outcome())
                tick(urgency)
                time.sleep(TICK)
        finally:  # after an error the others save, too
            deadline = time.monotonic() + GRACE
            while running := [child for child in children.values() if not child.has_ended()]:
                for child in running:
                    child.ask(at_once=_urgency(asked) > 1 or time.monotonic() > deadline)
                time.sleep(TICK)
            for child in children.values():
                child.end()
    return asked[0] if asked else 0


def _fill(
    waiting: list[Member],
    children: dict[Member, RunProcess],
    jobs: int,
    is_patient: bool,
    on_change: Callable[[Member, State, str], None],
) -> None:
    """Start the members that may start now. Those that have to wait are started later."""
    for member in list(waiting):
        if len(children) >= jobs:
            return
        state, text = "finished", ""
        try:
            if is_patient and member.is_busy():
                continue
            command = member.command()
            if command is not None:
                children[member] = RunProcess(command, member.log)
                state = "running"
        except (RecollectError, OSError) as error:
            state, text = "failed", str(error)
        waiting.remove(member)
        on_change(member, state, text)


class RunProcess(ProcessGroup):
    """The process of a run, and all processes that it starts."""

    def __init__(self, command: Sequence[str], log: Path):
        self._log, self._is_asked = log, False
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            file.write(f"{PROMPT}{shlex.join(command)}\n".encode())
            file.flush()
            self._from = file.tell()
            super().__init__(command, output=file, before=_end_with_parent())

    def ask(self, *, at_once: bool) -> None:
        """Ask it to save and end, only once, because a second interrupt ends it at once; or kill it."""
        if self.has_ended() or (self._is_asked and not at_once):
            return
        self._is_asked = True
        if at_once:
            self.end()
        else:
            self.interrupt()

    def outcome(self) -> tuple[State, str]:
        """How it ended, with its last lines of output if it failed. No process that it started is left."""
        code = self.end()
        if code == 0:
            return "finished", ""
        if code in STOPPED or (self._is_asked and code == -signal.SIGKILL):
            return "stopped", ""
        return "failed", "\n".join([*self._last_lines(), describe_exit(code)])

    def _last_lines(self, count: int = 8, most: int = 30) -> list[str]:
        """The last lines, from the traceback on if there is one within ``most`` lines."""
        with self._log.open("rb") as file:
            file.seek(max(self._from, file.seek(0, os.SEEK_END) - 8192))
            text = file.read().decode("utf-8", "replace")
        lines = [line.rstrip() for line in text.splitlines() if line.strip()][-most:]
        starts = [i for i, line in enumerate(lines) if line.startswith("Traceback ")]
        return lines[starts[-1] :] if starts else lines[-count:]


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
