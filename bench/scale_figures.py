"""Draw the results of bench/scaling.py and of the simulation with a thousand actors.

    python bench/scale_figures.py

Writes docs/images/scale.svg (measured and predicted speeds) and docs/images/simulation.svg (the thousand
actors).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, TOP, GAP, BOTTOM = 300, 200, 62, 34, 76, 66
COLOURS = ("#1f6feb", "#d1570a", "#1a7f4e", "#8250df", "#57606a")
GREY, DARK = "#8c959f", "#24292f"
Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One line, or points, of a panel."""

    name: str
    points: Sequence[Point]
    colour: str
    is_line: bool = True
    is_dashed: bool = False
    hollow: frozenset[Point] = frozenset()


@dataclass(frozen=True)
class Panel:
    """One diagram."""

    title: str
    below: str
    series: list[Series]
    is_log: bool = False
    ticks: Sequence[float] = field(default_factory=list)
    """On the horizontal axis."""


def drawing(panels: Sequence[Panel]) -> Iterator[str]:
    """The lines of an SVG, panels side by side."""
    width = LEFT + len(panels) * (WIDTH + GAP)
    legend = max(len(panel.series) for panel in panels)
    height = TOP + HEIGHT + BOTTOM + 16 * legend
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{DARK}">'
    )
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    for i, panel in enumerate(panels):
        yield from _panel(panel, LEFT + i * (WIDTH + GAP))
    yield "</svg>"


def _panel(panel: Panel, x: float) -> Iterator[str]:
    points = [point for series in panel.series for point in series.points if point[1] > 0]
    xs, ys = [px for px, _ in points], [py for _, py in points]
    if panel.is_log:
        low = 10 ** math.floor(math.log10(min(ys)))
        high = 10 ** math.ceil(math.log10(max(ys)))
        levels = [10.0**k for k in range(round(math.log10(low)), round(math.log10(high)) + 1)]
    else:
        step = _step(max(ys))
        low, high = 0.0, step * math.ceil(max(ys) / step)
        levels = [step * k for k in range(round(high / step) + 1)]

    def place(px: float, py: float) -> Point:
        if panel.is_log:
            share = math.log(px / min(xs)) / math.log(max(xs) / min(xs))
            up = math.log(max(py, low) / low) / math.log(high / low)
        else:
            share, up = (px - min(xs)) / (max(xs) - min(xs)), (py - low) / (high - low)
        return round(x + WIDTH * share, 1), round(TOP + HEIGHT * (1 - up), 1)

    yield f'<text x="{x}" y="18" font-weight="600">{escape(panel.title)}</text>'
    yield f'<rect x="{x}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="#f6f8fa"/>'
    for level in levels:
        _, y = place(min(xs), level)
        yield f'<path d="M{x} {y}H{x + WIDTH}" stroke="#d0d7de"/>'
        yield f'<text x="{x - 6}" y="{y + 4}" text-anchor="end" fill="#57606a">{_short(level)}</text>'
    for tick in panel.ticks:
        px, _ = place(tick, levels[-1])
        yield f'<text x="{px}" y="{TOP + HEIGHT + 16}" text-anchor="middle" fill="#57606a">{tick:g}</text>'
    middle = x + WIDTH / 2
    yield f'<text x="{middle}" y="{TOP + HEIGHT + 34}" text-anchor="middle">{escape(panel.below)}</text>'
    for i, series in enumerate(panel.series):
        placed = [place(*point) for point in series.points if point[1] > 0]
        if series.is_line:
            dash = ' stroke-dasharray="4 3"' if series.is_dashed else ""
            text = " ".join(f"{px},{py}" for px, py in placed)
            yield f'<polyline points="{text}" fill="none" stroke="{series.colour}" stroke-width="1.5"{dash}/>'
        else:
            for point in series.points:
                px, py = place(*point)
                fill = "#ffffff" if point in series.hollow else series.colour
                yield f'<circle cx="{px}" cy="{py}" r="3.5" fill="{fill}" stroke="{series.colour}"/>'
        y = TOP + HEIGHT + BOTTOM - 8 + 16 * i
        if series.is_line:
            dash = ' stroke-dasharray="4 3"' if series.is_dashed else ""
            yield f'<path d="M{x} {y - 4}h18" stroke="{series.colour}" stroke-width="1.5"{dash}/>'
        else:
            yield f'<circle cx="{x + 9}" cy="{y - 4}" r="3.5" fill="{series.colour}"/>'
        yield f'<text x="{x + 24}" y="{y}">{escape(series.name)}</text>'


def _step(largest: float) -> float:
    """A round distance of about five levels."""
    rough = largest / 5
    power = 10 ** math.floor(math.log10(rough))
    return next(power * k for k in (1, 2, 5, 10) if power * k >= rough)


def _short(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def scale(results: dict[str, Any]) -> list[Panel]:
    """Measured and predicted speeds, one panel a mode."""
    panels = []
    for mode in ("lockstep", "async"):
        series = []
        for colour, rows in zip(COLOURS, (8, 32)):
            mine = [run for run in results["runs"] if run["mode"] == mode and run["rows"] == rows]
            if not mine:
                continue
            points = [(run["actors"], run["steps_per_s"]) for run in mine]
            hollow = frozenset(point for point, run in zip(points, mine) if not run["fitted"])
            said = [(run["actors"], run["predicted_steps_per_s"]) for run in mine]
            series += [
                Series(
                    f"measured, {rows} rows an actor (hollow: not fitted)",
                    points,
                    colour,
                    False,
                    False,
                    hollow,
                ),
                Series(f"the model, {rows} rows an actor", said, colour),
            ]
        ticks = sorted({run["actors"] for run in results["runs"]})
        panels.append(Panel(f"{mode}: env steps per second", "actors", series, ticks=ticks))
    return panels


def simulation(results: dict[str, Any]) -> list[Panel]:
    """Speeds of the simulation, and where the time of the learner's process goes."""
    rows = results["rows"]

    def of(mode: str, is_learning: bool) -> list[dict[str, Any]]:
        return [
            r for r in rows if r["mode"] == mode and (r["learner_steps_per_s"] is not None) == is_learning
        ]

    def speeds(chosen: list[dict[str, Any]], name: str = "steps_per_s") -> list[Point]:
        return [(row["actors"], row[name]) for row in chosen]

    free = of("async", False)
    left = [
        Series("what the actors could make", speeds(free, "offered_steps_per_s"), GREY, is_dashed=True),
        Series("async, a learner that takes no time", speeds(free), COLOURS[0]),
        Series("lockstep, a learner that takes no time", speeds(of("lockstep", False)), COLOURS[2]),
        Series("async, a learner on two cores", speeds(of("async", True)), COLOURS[1]),
        Series("steps per second of the learner's core, async", speeds(free, "most_steps_per_s"), COLOURS[3]),
    ]
    names = {"collect": "collect: tickets, messages", "join": "join", "publish": "publish, new tickets"}
    names |= {"episodes": "episodes"}
    right = [
        Series(words, [(row["actors"], row["cpu_ms_per_update"].get(part, 0.0)) for row in free], colour)
        for colour, (part, words) in zip(COLOURS, names.items())
    ]
    ticks = [row["actors"] for row in free]
    return [
        Panel("Env steps per second", "actors", left, True, ticks),
        Panel("Learner's process, ms of a core an update", "actors", right, True, ticks),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("bench/results"))
    parser.add_argument("--images", type=Path, default=Path("docs/images"))
    args = parser.parse_args()
    for name, make, image in (("scaling", scale, "scale"), ("simulation", simulation, "simulation")):
        results = json.loads((args.results / f"{name}.json").read_text())["results"]
        path = args.images / f"{image}.svg"
        path.write_text("\n".join(drawing(make(results))) + "\n")
        print(f"written to {path}")


if __name__ == "__main__":
    main()
