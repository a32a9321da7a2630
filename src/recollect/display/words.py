"""Numbers, times and curves as short texts of steady width."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ABSENT = "-"
"""Shown for a missing number."""


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters of a display."""

    blocks: str
    """Blocks of a sparkline, from low to high."""
    up: str
    down: str
    flat: str
    good: str
    bad: str
    dot: str
    """Separator of two facts."""
    cut: str
    """Marks a truncated text."""
    shades: str
    """Fills for the parts of a bar, distinct also without colours."""


UNICODE = Glyphs(
    blocks="▁▂▃▄▅▆▇█", up="▲", down="▼", flat="▸", good="✓", bad="!", dot="·", cut="…", shades="█▓▒░"
)
ASCII = Glyphs(
    blocks="_.:-=+*#", up="^", down="v", flat=">", good="+", bad="!", dot="-", cut="..", shades="#=:."
)
"""For terminals without Unicode."""


def number(value: float | None) -> str:
    """About three digits: 0.931, 12.3, 1,234, 2e-07; a dash for None and NaN."""
    if value is None or math.isnan(value):
        return ABSENT
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    size = abs(value)
    if size == 0:
        return "0"
    if size < 1e-3 or size >= 1e6:
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    decimals = (
        0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3 if size >= 0.01 else 4
    )
    return f"{value:,.{decimals}f}"


def change(value: float) -> str:
    """The same with its sign: +0.12."""
    return f"{'+' if value >= 0 else ''}{number(value)}"


def tiny(value: float | None) -> str:
    """The order of a number that should be 0 but for rounding: 2e-07."""
    if value is None or math.isnan(value):
        return ABSENT
    return "0" if value == 0 else f"{value:.0e}"


def count(value: float | None) -> str:
    """A whole number with its thousands apart."""
    return ABSENT if value is None or not math.isfinite(value) else f"{value:,.0f}"


def share(value: float | None) -> str:
    """A fraction in percent; how far an explained variance is below 0 tells nothing."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return "below 0" if value < -1 else f"{100 * value:.0f}%"


def duration(seconds: float | None) -> str:
    """0:07, 12:34, 1:02:03, 2d 03:04."""
    if seconds is None or not math.isfinite(seconds):
        return ABSENT
    minutes, second = divmod(int(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24:02d}:{minute:02d}"
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def shortened(text: str, width: int, cut: str = UNICODE.cut) -> str:
    """The start of a text that is too long."""
    return text if len(text) <= width else text[: max(0, width - len(cut))] + cut


def tail(text: str, width: int, cut: str = UNICODE.cut) -> str:
    """The end of a text that is too long, such as a path."""
    return text if len(text) <= width else cut + text[len(text) - max(0, width - len(cut)) :]


def sparkline(values: Sequence[float], width: int, blocks: str = UNICODE.blocks) -> str:
    """A curve of at most ``width`` characters from the lowest value to the highest."""
    finite = [value for value in values if math.isfinite(value)]
    bars = min(width, len(finite))
    if bars < 2:
        return ""
    edges = [len(finite) * i // bars for i in range(bars + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if not 0 < high - low < math.inf:
        return blocks[0] * bars
    top = len(blocks) - 1
    return "".join(blocks[round((mean - low) / (high - low) * top)] for mean in means)


def trend(values: Sequence[float]) -> tuple[float, int] | None:
    """The change of a curve over its last fifth, and its direction: up (1), down (-1) or flat (0).

    Flat is at most a fiftieth of the curve's range. None for fewer than five values.
    """
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 5:
        return None
    moved = finite[-1] - finite[len(finite) - 1 - len(finite) // 5]
    span = max(finite) - min(finite)
    return moved, 0 if abs(moved) <= 0.02 * span else 1 if moved > 0 else -1


def path(folder: Path | str) -> str:
    """A folder's path, relative if it is inside the current folder."""
    try:
        relative = os.path.relpath(folder)
    except (OSError, ValueError):  # another drive, or no current folder any more
        return str(folder)
    return str(folder) if relative.startswith("..") else relative
