"""Lines of the catalogues ``recollect tasks`` and ``recollect cores``, each with its style."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console

from recollect.cli.help import written
from recollect.config.fields import Field

Lines = Iterator[tuple[str, str | None]]
WIDTH = 80
"""Longer lines are hard to read."""


def width() -> int:
    """Columns of a line: those of the terminal, at most ``WIDTH``."""
    return min(Console().width, WIDTH)


def show(lines: Iterable[tuple[str, str | None]]) -> None:
    """Print lines; characters that the terminal cannot show are replaced by their names."""
    console = Console(highlight=False, soft_wrap=True)
    for line, style in lines:
        known = line.encode(console.encoding, "namereplace").decode(console.encoding)
        console.print(known, style=style, markup=False)


def title(text: str) -> Lines:
    """A title after an empty line."""
    yield "", None
    yield text, "bold"


def wrapped(text: str, indent: str = "", *, first: str = "", style: str | None = None) -> Lines:
    """Lines of at most ``width()``: the first begins with ``first``, all others with ``indent``."""
    for line in textwrap.wrap(text, width(), initial_indent=first, subsequent_indent=indent) or [""]:
        yield line, style


def row(head: str, words: str) -> Lines:
    """A row of a table, whose last column is wrapped."""
    lines = textwrap.wrap(words, max(width() - len(head), 12))
    yield head + lines[0], None
    yield from ((" " * len(head) + line, None) for line in lines[1:])


def settings(section: str, fields: Sequence[Field], by_size: str = "none") -> Lines:
    """The settings of a part as flags, with their defaults and docstrings; ``by_size``: the default None."""
    for field in fields:
        default = by_size if field.default is None else written(field.default)
        yield f"  --{section}.{field.name.replace('_', '-')} {default}", None
        yield from wrapped(field.doc, " " * 6, first=" " * 6, style="dim")
    if not fields:
        yield "  none", None


def docstring(thing: Any) -> str:
    """The docstring of a module or class, without markup."""
    return inspect.cleandoc(thing.__doc__ or "").replace("``", "'")
