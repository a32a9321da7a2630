"""Values of JSON files, which may be damaged, and curves of few points that keep all extremes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Row = dict[str, Any]
POINTS = 600
"""Maximum points of a large curve."""


def thin(values: np.ndarray, limit: int = POINTS) -> np.ndarray:
    """Indices of at most ``limit`` of the values [N]: both ends, and the extremes of each bucket.

    A bucket without finite values keeps its first, so that gaps stay visible.
    """
    if len(values) <= limit:
        return np.arange(len(values))
    buckets = max(1, (limit - 2) // 2)
    edges = np.linspace(0, len(values), buckets + 1).astype(np.int64)
    kept = {0, len(values) - 1}
    for start, end in itertools.pairwise(edges):
        bucket = values[start:end]
        if np.isfinite(bucket).any():
            kept |= {int(start + np.nanargmin(bucket)), int(start + np.nanargmax(bucket))}
        else:
            kept.add(int(start))
    return np.array(sorted(kept))


def number(value: Any) -> float:
    """A finite number as a float; NaN for everything else, None and booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        value = float(value)
    except OverflowError:  # JSON integers have any size
        return math.nan
    return value if math.isfinite(value) else math.nan


def mapping(value: Any) -> Row:
    """The value if it is a dict, else {}."""
    return value if isinstance(value, dict) else {}


def column(rows: Sequence[Row], name: str) -> np.ndarray:
    """One metric of all rows [N], NaN where it is missing."""
    return np.array([number(row.get(name)) for row in rows], dtype=np.float64)


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Rows ordered by ``steps``; where a resumed run repeated steps, the later rows replace the earlier."""
    kept: list[Row] = []
    for row in rows:
        steps = number(row.get("steps"))
        if math.isnan(steps):
            continue
        while kept and kept[-1]["steps"] >= steps:
            kept.pop()
        kept.append(row)
    return kept


def json_numbers(values: np.ndarray | Iterable[float], digits: int = 5) -> list[float | int | None]:
    """Numbers for JSON: rounded to ``digits`` significant digits, whole ones as integers, NaN as None."""
    return [rounded(value, digits) for value in np.asarray(values, dtype=np.float64).tolist()]


def rounded(value: float | None, digits: int = 5) -> float | int | None:
    """One number for JSON; see ``json_numbers``."""
    if value is None or not math.isfinite(value):
        return None
    if value == int(value) and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{digits}g}")


def curve(rows: Sequence[Row], values: np.ndarray, limit: int = POINTS) -> Row:
    """``values`` [N] over ``rows``, thinned, with the steps and the seconds of each point."""
    kept = thin(values, limit)
    picked = [rows[i] for i in kept]
    return {
        "steps": json_numbers(column(picked, "steps"), 12),
        "seconds": json_numbers(column(picked, "seconds"), 6),
        "values": json_numbers(values[kept]),
    }
