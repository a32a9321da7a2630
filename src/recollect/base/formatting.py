"""Numbers, times and sizes as short texts."""

from __future__ import annotations

import json
import math
from typing import Any

ABSENT = "-"
"""Stands for a number that does not exist yet."""


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


def digits(value: float, count: int = 3) -> str:
    """``count`` significant digits without trailing zeros: 0.93, 12.3, 2e-07; large numbers whole: 4,896."""
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e15 else f"{value:.{count}g}"


def change(value: float) -> str:
    """The same with a sign: +0.12."""
    return f"{'+' if value >= 0 else ''}{number(value)}"


def tiny(value: float | None) -> str:
    """The order of magnitude of a rounding error: 2e-07."""
    if value is None or math.isnan(value):
        return ABSENT
    return "0" if value == 0 else f"{value:.0e}"


def count(value: float | None) -> str:
    """A whole number with thousands separators."""
    return ABSENT if value is None or not math.isfinite(value) else f"{value:,.0f}"


def share(value: float | None) -> str:
    """A fraction in percent; an explained variance below -1 is just "below 0"."""
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


def percent(probability: float) -> str:
    """A probability in percent: 97%; a small one is <1%, not 0%."""
    if 0 < probability < 0.005:
        return "<1%"
    return f"{probability:.0%}" if probability == probability else "NaN"


def short(x: float) -> str:
    """A number in few characters: 3 digits, an exponent only where needed."""
    if abs(x) >= 100:
        return f"{x:,.0f}" if abs(x) < 1e6 else f"{x:.2e}"
    text = f"{x:.2f}" if abs(x) >= 0.1 or x == 0 else f"{x:.2g}"
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def signed(x: float) -> str:
    """A short number with its sign: +1, -0.1."""
    return f"+{short(x)}" if x > 0 else short(x)


def short_list(values: list[float], most: int = 6) -> str:
    """Numbers side by side; the first of many."""
    shown = [f"{v:.2f}" if abs(v) < 100 else f"{v:.0f}" for v in values[:most]]
    return " ".join(shown + (["…"] if len(values) > most else []))


def byte_count(count: int) -> str:
    """9,999 B, 12.5 KiB."""
    return f"{count:,} B" if count < 10_000 else f"{count / 1024:,.1f} KiB"


def short_count(number: int) -> str:
    """A whole number as a flag takes it: 100k, 1m; 1,500 if it is not round."""
    for unit, letter in ((1_000_000, "m"), (1000, "k")):
        if number >= unit and number % unit == 0:
            return f"{number // unit}{letter}"
    return f"{number:,}"


def plural(number: int, noun: str) -> str:
    """1 run, 2 runs."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def setting(value: Any) -> str:
    """A value of a config."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and 10_000 <= abs(value) < 1e15 else f"{value:g}"
    return json.dumps(value, ensure_ascii=False, default=str)
