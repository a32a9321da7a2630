"""Rows of metrics as curves that are small enough to draw, and still show every extreme."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

POINTS = 600
"""The most points of a large curve."""


def thin(values: np.ndarray, limit: int = POINTS) -> np.ndarray:
    """The indices of at most ``limit`` of N values [N]: the ends, and each bucket's lowest and highest.

    A bucket without one finite value keeps its first, so that the gap stays a gap.
    """
    if len(values) <= limit:
        return np.arange(len(values))
    buckets = max(1, (limit - 2) // 2)
    edges = np.linspace(0, len(values), buckets + 1).astype(np.int64)
    kept = {0, len(values) - 1}
    for start, end in itertools.pairwise(edges):
        piece = values[start:end]
        if np.isfinite(piece).any():
            kept |= {int(start + np.nanargmin(piece)), int(start + np.nanargmax(piece))}
        else:
            kept.add(int(start))
    return np.array(sorted(kept))


def number(value: Any) -> float:
    """A finite number as a float; NaN for everything else, None and booleans among it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        value = float(value)
    except OverflowError:  # JSON knows integers of any size
        return math.nan
    return value if math.isfinite(value) else math.nan


def column(rows: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    """One metric of all rows [N], NaN where a row has none."""
    return np.array([number(row.get(name)) for row in rows], dtype=np.float64)


def in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in order of ``steps``. Where a resumed run went back, what it did again replaces the old."""
    kept: list[dict[str, Any]] = []
    for row in rows:
        steps = number(row.get("steps"))
        if math.isnan(steps):
            continue
        while kept and kept[-1]["steps"] >= steps:
            kept.pop()
        kept.append(row)
    return kept


def plain(values: np.ndarray | Iterable[float], digits: int = 5) -> list[float | int | None]:
    """Numbers for JSON: rounded to ``digits`` significant digits, whole ones as integers, NaN as None."""
    return [rounded(value, digits) for value in np.asarray(values, dtype=np.float64).tolist()]


def rounded(value: float | None, digits: int = 5) -> float | int | None:
    """One number for JSON; see ``plain``."""
    if value is None or not math.isfinite(value):
        return None
    if value == int(value) and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{digits}g}")


def curve(
    rows: Sequence[dict[str, Any]], values: np.ndarray, limit: int = POINTS
) -> dict[str, list[float | int | None]]:
    """``values`` [N] over ``rows``, thinned, with the steps and the seconds of each point."""
    kept = thin(values, limit)
    picked = [rows[i] for i in kept]
    return {
        "steps": plain(column(picked, "steps"), 12),
        "seconds": plain(column(picked, "seconds"), 6),
        "values": plain(values[kept]),
    }
