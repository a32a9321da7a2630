"""Characters, shortened texts and curves of a display."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters that a display draws with."""

    blocks: str
    """Of a sparkline, from low to high."""
    up: str
    down: str
    flat: str
    good: str
    bad: str
    dot: str
    """Between two facts."""
    cut: str
    """Where a text was shortened."""
    shades: str
    """Of the parts of a bar; told apart without colours too."""


UNICODE = Glyphs(
    blocks="▁▂▃▄▅▆▇█", up="▲", down="▼", flat="▸", good="✓", bad="!", dot="·", cut="…", shades="█▓▒░"
)
ASCII = Glyphs(
    blocks="_.:-=+*#", up="^", down="v", flat=">", good="+", bad="!", dot="-", cut="..", shades="#=:."
)
"""For terminals whose encoding has no blocks."""


def shortened(text: str, width: int, cut: str = UNICODE.cut) -> str:
    """The start of a text that is too long."""
    return text if len(text) <= width else text[: max(0, width - len(cut))] + cut


def tail(text: str, width: int, cut: str = UNICODE.cut) -> str:
    """The end of a text that is too long: of a path, the part that tells most."""
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
    """How far a curve moved over the last fifth of it, and whether that is up (1), down (-1) or flat (0).

    Flat is less than a fiftieth of the whole curve's range. None if there is too little of it.
    """
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 5:
        return None
    moved = finite[-1] - finite[len(finite) - 1 - len(finite) // 5]
    span = max(finite) - min(finite)
    return moved, 0 if abs(moved) <= 0.02 * span else 1 if moved > 0 else -1


def path(folder: Path | str) -> str:
    """A folder as one would type it here: relative if it lies below the current one."""
    try:
        relative = os.path.relpath(folder)
    except (OSError, ValueError):  # another drive, or no current folder any more
        return str(folder)
    return str(folder) if relative.startswith("..") else relative
