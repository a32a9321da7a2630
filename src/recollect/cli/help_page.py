"""Print pages for people: titles, wrapped paragraphs, and rows of two columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

READABLE = 80
"""Columns; longer lines are hard to read."""
FLAG_WIDTH = 29
"""A wider flag gets its own line."""


@dataclass(frozen=True, slots=True)
class Page:
    """Prints to a console, in lines of at most ``width`` columns."""

    console: Console
    width: int

    @classmethod
    def readable(cls) -> Page:
        """A page as wide as the terminal, at most ``READABLE``."""
        console = Console(highlight=False)
        return cls(console, min(console.width, READABLE))

    def line(self, text: str = "", rest: str = "", style: str = "") -> None:
        """Print one line, ``text`` in a style; characters that the terminal lacks are printed as names."""
        encoding = self.console.encoding
        text, rest = (part.encode(encoding, "namereplace").decode(encoding) for part in (text, rest))
        # A Text, because rich would parse the [no-] of a flag as markup.
        self.console.print(Text.assemble((text, style), rest), soft_wrap=True)

    def title(self, text: str) -> None:
        """Print a title; with a line break in front, after an empty line."""
        if text.startswith("\n"):
            self.line()
        self.print(text.strip(), style="bold cyan")

    def print(self, text: str, indent: int = 0, hanging: int = 0, style: str = "") -> None:
        """Print a paragraph with an indent; lines after the first are indented by ``hanging`` more."""
        first, others = " " * indent, " " * (indent + hanging)
        for line in textwrap.wrap(text, self.width, initial_indent=first, subsequent_indent=others) or [""]:
            self.line(line, style=style)

    def row(self, head: str, words: str, column: int = 0, style: str = "") -> None:
        """Print ``words`` wrapped beside ``head``; a ``column``: from there on, below a head without room."""
        is_wide = column > 0 and len(head) > column - 2
        column = column or len(head)
        lines = textwrap.wrap(words, max(self.width - column, 12), break_on_hyphens=False)
        for number, line in enumerate(["", *lines] if is_wide or not lines else lines):
            start = "" if number else head
            self.line(start, " " * (column - len(start)) + line if line else "", style)

    def flags(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """Print flags, each with its help and its default."""
        rows = list(rows)
        if not rows:
            self.print("It has no settings.", indent=2)
        column = min(max((len(flag) for flag, _, _ in rows), default=0), FLAG_WIDTH) + 4
        for flag, words, default in rows:
            self.row(f"  {flag}", f"{words} [{default}]" if default else words, column, "bold")
