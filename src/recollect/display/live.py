"""The live display: a panel in the terminal, redrawn in place."""

from __future__ import annotations

import sys
import threading
import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from recollect.display import closing_summary
from recollect.display.base import Display, standard_error
from recollect.display.panel import View
from recollect.display.state import Clock

EVERY = 0.25
IDLE = 1.0
"""Seconds without an update after which the panel is redrawn for its clock."""


class LivePanel(Display):
    """Draws a panel at most four times per second."""

    every = EVERY

    def __init__(self, console: Console | None = None, clock: Clock = time.monotonic):
        super().__init__(clock)
        self.console = console or standard_error()
        self._live: Live | None = None
        self._drawing = threading.Lock()
        self._over = threading.Event()
        self._ticker: threading.Thread | None = None

    @property
    def shows_signals(self) -> bool:
        """True: the panel shows a signal within a second."""
        return self.is_active

    def start(self) -> None:
        """Print the opening and draw the empty panel."""
        self._over.clear()
        self._view = View(self.state)
        if opening := self.state.training.opening:
            self.console.print(Text(opening, "dim"))
        # The user's own prints appear above the panel, unless stdout is redirected to a file.
        is_here = self.console.is_terminal and sys.stdout is not None and sys.stdout.isatty()
        self._live = Live(
            console=self.console,
            auto_refresh=False,
            redirect_stdout=is_here,
            redirect_stderr=True,
            get_renderable=lambda: self._view,
        )
        self._live.start()
        self.draw()
        self._ticker = threading.Thread(target=self._tick, name="recollect-display", daemon=True)
        self._ticker.start()

    def advised(self, text: str) -> None:
        """Print the whole text above the panel, where it stays."""
        self._print_above("advice: ", text)

    def warned(self, text: str) -> None:
        """Print the whole text above the panel, where it stays."""
        self._print_above("warning: ", text)

    def _print_above(self, kind: str, text: str) -> None:
        with self._drawing:
            self.console.print(Text.assemble((kind, "bold yellow"), text))

    def ended(self, reason: str) -> None:
        """Draw the panel for the last time, with the summary below it."""
        self._view = View(self.state, is_final=True)
        if self._live is not None:
            self.draw()
        self._stop()
        (kind, why), *rest = closing_summary.summary(self.state, reason)
        colour = {"finished": "green", "failed": "red"}.get(kind, "yellow")
        lines = [Text.assemble((f"{kind}: ", f"bold {colour}"), why)]
        lines += [Text.assemble((f"  {name:<12}", "cyan"), text) for name, text in rest]
        if commands := closing_summary.commands(self.state, reason):
            lines += [Text(), *(Text.assemble("  ", (command, "bold")) for command in commands)]
        for line in lines:
            self.console.print(line, soft_wrap=True)

    def abandon(self, error: BaseException) -> None:
        """Restore the terminal."""
        self._stop()

    def draw(self) -> None:
        """Redraw the panel."""
        with self._drawing:
            super().draw()
            if self._live is not None:
                self._live.refresh()

    def _tick(self) -> None:
        """Keep the clock running during long iterations and evaluations."""
        while not self._over.wait(IDLE):
            if self.clock() - self.drawn_at >= IDLE:
                self._attempt(self.draw)

    def _stop(self) -> None:
        self._over.set()
        if self._ticker is not None and self._ticker is not threading.current_thread():
            self._ticker.join(timeout=5)
        live, self._live = self._live, None
        if live is not None:
            live.stop()
