"""Progress of a sweep on stderr: a table in the terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from recollect.base.formatting import count, duration, number, share
from recollect.display.base import can_redraw, standard_error
from recollect.display.words import path as typed
from recollect.display.words import shortened
from recollect.errors import ConfigError
from recollect.sweep.member import Member, Progress
from recollect.sweep.run_processes import State

MODES = ("auto", "live", "plain", "quiet")
DRAW = 0.5
"""Seconds between two redraws of the table."""
SAY = 30.0
"""Seconds between two progress lines."""
STYLES = {"running": "cyan", "finished": "green", "failed": "bold red", "stopped": "yellow", "waiting": "dim"}
WIDTHS = {"seed": 4, "state": 8, "steps": 5, "return": 7, "eval": 7, "left": 8}
"""Widths of the table's columns; the label gets the rest."""
URGENT = ("running", "failed", "stopped", "waiting", "finished")
"""States in the order in which runs are shown if not all fit."""
STOPPING = ("", "stopping: the runs save after this update; Ctrl-C again kills them", "killing the runs")
"""By urgency."""


class Board:
    """The state of all runs of a sweep: a line for each change, and the progress every ``SAY`` seconds."""

    every = SAY

    def __init__(
        self, path: Path, members: Sequence[Member], left: Sequence[Member], jobs: int, console: Console
    ):
        self.path, self.jobs, self.console = path, jobs, console
        self.rows = {m.path: Row(m, "finished", m.progress()) for m in members}
        for member in left:
            self.rows[member.path].state = "waiting"
        self.urgency = 0
        self._refreshed = time.monotonic()
        self._is_silent = False

    def update(self, member: Member, state: State, text: str) -> None:
        """Set the state of a run; ``text``: the end of its log."""
        row = self.rows[member.path]
        row.state, row.progress = state, member.progress()
        self._show(self.changed, row, text)

    def tick(self, urgency: int) -> None:
        """Refresh at regular intervals; ``urgency``: 1 after one interrupt, 2 after two."""
        now = time.monotonic()
        if urgency > self.urgency:
            self.urgency = urgency
            self._show(self.interrupted)
        if now - self._refreshed >= self.every:
            self._refreshed = now
            for row in self.rows.values():
                if row.state == "running":
                    row.progress = row.member.progress()
            self._show(self.drawn)

    def close(self) -> None:
        """Called when the sweep has ended."""

    def _show(self, show: Callable[..., None], *args: Any) -> None:
        """Stop showing anything if the output fails, for example in a closed terminal or pipe."""
        if not self._is_silent:
            try:
                show(*args)
            except (OSError, ValueError):
                self._is_silent = True

    def changed(self, row: Row, text: str) -> None:
        """Print the new state, with the error if there is one."""
        progress = row.progress
        why = f": {_essence(text)}" if text else ""
        more = f", {progress.evaluated}" if row.state == "finished" else ""
        steps = f" at step {count(progress.steps)}" if row.state == "stopped" else ""
        self._print(f"{row.member.name}: {row.state}{steps}{more}{why}")

    def interrupted(self) -> None:
        """Print what happens now, and the effect of a second Ctrl-C."""
        self._print(STOPPING[self.urgency])

    def drawn(self) -> None:
        """Print the active runs and the summary."""
        for row in self.rows.values():
            if row.state == "running":
                progress = row.progress
                self._print(
                    f"{row.member.name}: {share(row.fraction)}  return {number(progress.mean_return)}  "
                    f"{progress.evaluated}  left {duration(progress.left)}"
                )
        self._print(self.summary())

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True, emoji=False)

    @property
    def left(self) -> float | None:
        """Estimated seconds to the end, from the runs so far; None if unknown."""
        known = [row.progress for row in self.rows.values() if row.progress.fraction > 0]
        made = sum(progress.fraction for progress in known)
        to_come = sum(1 - row.fraction for row in self.rows.values() if row.state in ("waiting", "running"))
        if not made:
            return None
        return sum(progress.seconds for progress in known) / made * to_come / self.jobs

    def summary(self) -> str:
        """One line on all runs."""
        states = [row.state for row in self.rows.values()]
        parts = [f"{states.count('finished')} of {len(states)} finished"]
        parts += [f"{states.count(state)} {state}" for state in URGENT[:3] if state in states]
        return ", ".join([*parts, f"left {duration(self.left)}"])


@dataclass(slots=True, eq=False)
class Row:
    """One run and its progress."""

    member: Member
    state: State
    progress: Progress

    @property
    def fraction(self) -> float:
        """Progress of its training, in [0, 1]."""
        return 1.0 if self.state == "finished" else self.progress.fraction


class LiveTable(Board):
    """A table redrawn in place, and removed at the end."""

    every = DRAW

    def __init__(self, *args: Any):
        super().__init__(*args)
        # No redraw thread: it might hold a lock while this process starts another.
        how: Any = {"auto_refresh": False, "transient": True, "redirect_stdout": False}
        self.live = Live(console=self.console, get_renderable=self.view, **how)
        self.interrupted = self.drawn = self.live.refresh
        self._show(self.live.start)

    def changed(self, row: Row, text: str) -> None:
        """Redraw; a failure also gets a line that stays."""
        if row.state == "failed":
            words = f"{row.member.name}: {_essence(text)}"
            self.console.print(Text.assemble(("failed ", "bold red"), words), soft_wrap=True)
        self.live.refresh()

    def close(self) -> None:
        """Restore the terminal."""
        self._show(self.live.stop)

    def view(self) -> RenderableType:
        """One line per run, as many as fit, and the summary."""
        room = max(1, self.console.height - 5)
        rows = list(self.rows.values())
        if len(rows) > room:
            urgent = sorted(rows, key=lambda row: URGENT.index(row.state))[:room]
            rows = [row for row in rows if row in urgent]
        table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="bold")
        table.add_column("run", ratio=1, no_wrap=True, overflow="ellipsis")
        modes = {row.progress.mode for row in self.rows.values() if row.progress.evaluation is not None}
        for name, width in WIDTHS.items():
            name = f"{modes.copy().pop()} eval" if name == "eval" and len(modes) == 1 else name
            side = "left" if name == "state" else "right"
            table.add_column(name, justify=side, no_wrap=True, min_width=width)
        for row in rows:
            name, seed, progress = row.member.variant.name, str(row.member.seed), row.progress
            numbers = share(row.fraction), number(progress.mean_return), number(progress.evaluation)
            shown = numbers if row.fraction > 0 else ("", "", "")
            left = duration(progress.left) if row.state == "running" else ""
            state = Text(row.state, STYLES[row.state])
            table.add_row(name, seed, state, *shown, left, style="dim" if row.state == "waiting" else "")
        hidden = len(self.rows) - len(rows)
        more = [Text(f"and {hidden} more", "dim")] if hidden else []
        words = STOPPING[self.urgency] or f"{self.summary()}  {typed(self.path)}"
        last = Text(shortened(words, self.console.width), "yellow" if self.urgency else "bold")
        return Group(table, *more, last)


def _essence(text: str) -> str:
    """The error line of a log, or its last line."""
    lines = text.splitlines()
    errors = [line for line in lines if "error" in line.lower()]
    found = [line for line in errors if line.startswith("error: ")] or errors or lines
    return found[-1] if found else ""


@contextmanager
def make_board(
    mode: bool | str,
    path: Path,
    members: Sequence[Member],
    left: Sequence[Member],
    jobs: int,
    console: Console | None = None,
) -> Iterator[Board]:
    """A board for ``mode``; "auto" is a table if the terminal can redraw it, else lines."""
    mode = {True: "auto", False: "quiet"}.get(mode, mode) if isinstance(mode, bool) else mode
    if mode not in MODES:
        raise ConfigError(f"progress = {mode!r}: choose {', '.join(MODES)}")
    console = Console(quiet=True) if mode == "quiet" else console or standard_error()
    is_live = mode == "live" or (mode == "auto" and can_redraw(console))
    board = (LiveTable if is_live else Board)(path, members, left, jobs, console)
    try:
        yield board
    finally:
        board.close()
