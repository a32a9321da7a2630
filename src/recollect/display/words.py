"""Characters, shortened texts and curves of a display."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


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


def bar(shares: Mapping[str, float], width: int, shades: str) -> str:
    """The shares as one bar of ``width`` characters, a shade for each; empty if the sum is 0 or NaN."""
    total = sum(shares.values())
    if not total > 0:
        return ""
    drawn, before = "", 0.0
    for shade, share in zip(shades, shares.values()):
        before += share
        drawn += shade * (round(width * before / total) - len(drawn))
    return drawn


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
