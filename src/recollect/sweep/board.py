"""How a sweep looks while it goes on: a table in the terminal, lines elsewhere. All on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from recollect.base.numbers import count, duration, number, share
from recollect.display.base import standard_error
from recollect.display.words import path as typed
from recollect.display.words import shortened
from recollect.errors import ConfigError
from recollect.sweep.member import Member, Progress
from recollect.sweep.work import State

MODES = ("auto", "live", "plain", "quiet")
DRAW = 0.5
"""Seconds between two drawings of the table."""
SAY = 30.0
"""Seconds between two lines about how far it is."""
STYLES = {"running": "cyan", "finished": "green", "failed": "bold red", "stopped": "yellow", "waiting": "dim"}
WIDTHS = {"seed": 4, "state": 8, "steps": 5, "return": 7, "eval": 7, "left": 8}
"""Columns of the table beside the label, which gets the rest."""
URGENT = ("running", "failed", "stopped", "waiting", "finished")
"""Which runs are shown first where not all fit."""


class Board:
    """What is known of all runs of a sweep, and nothing shown of it."""

    every = SAY

    def __init__(self, path: Path, members: Sequence[Member], left: Sequence[Member], jobs: int):
        self.path, self.jobs = path, jobs
        waiting = {member.path for member in left}
        self.rows: dict[Path, Row] = {
            member.path: Row(member, "waiting" if member.path in waiting else "finished")
            for member in members
        }
        self.urgency = 0
        self._looked = time.monotonic()
        self._is_silent = False

    def told(self, member: Any, state: State, text: str) -> None:
        """A run has another state."""
        row = self.rows[member.path]
        row.state = state
        row.look()
        self._show(self.changed, row, text)

    def tick(self, urgency: int) -> None:
        """Time goes on; ``urgency``: 1 once somebody asked for an end, 2 if at once."""
        now = time.monotonic()
        if urgency > self.urgency:
            self.urgency = urgency
            self._show(self.asked)
        if now - self._looked >= self.every:
            self._looked = now
            for row in self.rows.values():
                if row.state == "running":
                    row.look()
            self._show(self.drawn)

    def close(self) -> None:
        """All is over."""
        self._show(self.closed)

    def _show(self, show: Callable[..., None], *args: Any) -> None:
        """The sweep goes on if nobody can read this any more: a closed terminal, the end of a pipe."""
        if not self._is_silent:
            try:
                show(*args)
            except (OSError, ValueError):
                self._is_silent = True

    def changed(self, row: Row, text: str) -> None:
        """A run has another state."""

    def asked(self) -> None:
        """Somebody asked for an end."""

    def drawn(self) -> None:
        """It is time to show how far it is."""

    def closed(self) -> None:
        """All is over."""

    @property
    def left(self) -> float | None:
        """Seconds until all is finished, if the runs to come take as long as those so far."""
        known = [row.progress for row in self.rows.values() if row.progress.fraction > 0]
        made = sum(progress.fraction for progress in known)
        to_come = sum(1 - row.fraction for row in self.rows.values() if row.state in ("waiting", "running"))
        if not made:
            return None
        return sum(progress.seconds for progress in known) / made * to_come / self.jobs

    def summary(self) -> str:
        """One line about all runs."""
        states = [row.state for row in self.rows.values()]
        parts = [f"{states.count('finished')} of {len(states)} finished"]
        parts += [f"{states.count(state)} {state}" for state in URGENT[:3] if state in states]
        return ", ".join([*parts, f"left {duration(self.left)}"])


class Row:
    """One run and how far it is."""

    def __init__(self, member: Member, state: State):
        self.member, self.state = member, state
        self.progress = Progress()
        self.look()

    @property
    def fraction(self) -> float:
        """Of its training."""
        return 1.0 if self.state == "finished" else self.progress.fraction

    def look(self) -> None:
        """Read how far it is."""
        self.progress = self.member.progress()

    def line(self) -> str:
        """In words."""
        progress = self.progress
        return (
            f"{self.member.name}: {share(self.fraction)}  return {number(progress.mean_return)}  "
            f"eval {number(progress.evaluation)}  left {duration(progress.left)}"
        )


class Lines(Board):
    """A line for each change, and some now and then."""

    def __init__(self, *args: Any, console: Console):
        super().__init__(*args)
        self.console = console

    def changed(self, row: Row, text: str) -> None:
        """A line; of an error, the last that it said."""
        progress = row.progress
        why = f": {_essence(text)}" if text else ""
        more = f", eval {number(progress.evaluation)}" if row.state == "finished" else ""
        steps = f" at step {count(progress.steps)}" if row.state == "stopped" else ""
        self._print(f"{row.member.name}: {row.state}{steps}{more}{why}")

    def asked(self) -> None:
        """What happens now, and what a second Ctrl-C would do."""
        self._print(STOPPING[self.urgency])

    def drawn(self) -> None:
        """What runs, and the whole."""
        for row in self.rows.values():
            if row.state == "running":
                self._print(row.line())
        self._print(self.summary())

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True, emoji=False)


class LiveTable(Board):
    """A table that is redrawn in its place, and goes when all is over."""

    every = DRAW

    def __init__(self, *args: Any, console: Console):
        super().__init__(*args)
        self.console = console
        # No thread redraws it: processes are started here, and a thread might hold a lock just then.
        self.live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            get_renderable=self.view,
            redirect_stdout=False,
        )
        self._show(self.live.start)

    def changed(self, row: Row, text: str) -> None:
        """Draw; a failure also gets a line that stays."""
        if row.state == "failed":
            words = f"{row.member.name}: {_essence(text)}"
            self.console.print(Text.assemble(("failed ", "bold red"), words), soft_wrap=True)
        self.live.refresh()

    def asked(self) -> None:
        """The last line says it."""
        self.live.refresh()

    def drawn(self) -> None:
        """Draw."""
        self.live.refresh()

    def closed(self) -> None:
        """Give the terminal back."""
        self.live.stop()

    def view(self) -> RenderableType:
        """A line a run, as many as fit, and one about all."""
        room = max(1, self.console.height - 5)
        rows = list(self.rows.values())
        if len(rows) > room:
            urgent = sorted(rows, key=lambda row: URGENT.index(row.state))[:room]
            rows = [row for row in rows if row in urgent]
        table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="bold")
        table.add_column("run", ratio=1, no_wrap=True, overflow="ellipsis")
        for name, width in WIDTHS.items():
            side = "left" if name == "state" else "right"
            table.add_column(name, justify=side, no_wrap=True, min_width=width)
        for row in rows:
            table.add_row(*_cells(row), style="dim" if row.state == "waiting" else "")
        hidden = len(self.rows) - len(rows)
        more = [Text(f"and {hidden} more", "dim")] if hidden else []
        words = STOPPING[self.urgency] or f"{self.summary()}  {typed(self.path)}"
        last = Text(shortened(words, self.console.width), "yellow" if self.urgency else "bold")
        return Group(table, *more, last)


STOPPING = (
    "",
    "stopping: the runs save after their update; Ctrl-C again kills them",
    "killing the runs",
)
"""By urgency."""


def _cells(row: Row) -> tuple[RenderableType, ...]:
    progress, has_begun = row.progress, row.fraction > 0
    return (
        row.member.variant.name,
        str(row.member.seed),
        Text(row.state, STYLES[row.state]),
        share(row.fraction) if has_begun else "",
        number(progress.mean_return) if has_begun else "",
        number(progress.evaluation) if has_begun else "",
        duration(progress.left) if row.state == "running" else "",
    )


def _essence(text: str) -> str:
    """Of the end of a log, the line that says most: the error, not the exit code after it."""
    lines = text.splitlines()
    return next((line for line in reversed(lines) if "error" in line.lower()), lines[-1] if lines else "")


@contextmanager
def make_board(
    mode: bool | str,
    path: Path,
    members: Sequence[Member],
    left: Sequence[Member],
    jobs: int,
    console: Console | None = None,
) -> Iterator[Board]:
    """The board that fits: a table where one can be redrawn, else lines."""
    mode = {True: "auto", False: "quiet"}.get(mode, mode) if isinstance(mode, bool) else mode
    if mode not in MODES:
        raise ConfigError(f"progress = {mode!r}: choose {', '.join(MODES)}")
    console = console or standard_error()
    about = (path, members, left, jobs)
    if mode == "auto":
        can_redraw = console.is_terminal and console.is_interactive and not console.is_dumb_terminal
        mode = "live" if can_redraw and console.file.isatty() else "plain"
    if mode == "live":
        board = LiveTable(*about, console=console)
    else:
        board = Board(*about) if mode == "quiet" else Lines(*about, console=console)
    try:
        yield board
    finally:
        board.close()
