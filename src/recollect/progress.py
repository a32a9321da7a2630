"""Progress in the terminal: one live line with a bar, or plain lines where it is no terminal."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Progress:
    """Shows the metrics of a run as they come; a context manager. Advice gets a line of its own."""

    def __init__(
        self, start: int, end: int, *, shown: bool = True, console: Console | None = None, opening: str = ""
    ):
        self._console = console or Console(stderr=True)
        self._shown, self._end, self._opening = shown, end, opening
        self._last_line = time.monotonic()
        self._bar: Bar | None = None
        if shown and self._console.is_terminal:
            self._bar = Bar(
                TextColumn("{task.completed:>9,.0f} steps"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[text]}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task("", total=end - start, text="")
        self._start = start

    def __enter__(self) -> Progress:
        if self._shown and self._opening:
            self._console.print(self._opening, highlight=False, markup=False)
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, metrics: dict[str, float], advice: list[str]) -> None:
        """Update the line; print new advice above it."""
        if not self._shown:
            return
        for text in advice:
            self._console.print(f"[yellow]advice:[/] {escape(text)}", highlight=False)
        text = self._text(metrics)
        if self._bar is not None:
            self._bar.update(self._task, completed=metrics["steps"] - self._start, text=text)
        elif time.monotonic() - self._last_line >= 5 or metrics["steps"] >= self._end:
            self._last_line = time.monotonic()
            self._console.print(f"{metrics['steps']:>11,.0f} steps  {text}", highlight=False)

    def _text(self, metrics: dict[str, float]) -> str:
        mean_return = f"{metrics['return']:.3g}" if "return" in metrics else "-"
        worst = max(metrics["deviation/log_prob"], metrics["deviation/value"])
        return f"return {mean_return}  {metrics['speed/total']:,.0f}/s  deviation {worst:.0e}"
