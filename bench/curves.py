"""Draw the learning curves that bench/memory.py measured: a row for each network, a column for each task.

    python bench/curves.py bench/results/memory.json docs/images/cores.svg --tasks repeat-previous recall-5

One line for each seed: the greedy return over env steps. A dot marks where a run reached the task's bar and
ended; the dashed line is that bar.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from memory import WORLDS

WIDTH, HEIGHT, GAP, TOP = 190, 46, 14, 44
COLOURS = ("#1f6feb", "#d1570a", "#1a7f4e")


def network(run: dict[str, Any]) -> str:
    return " + ".join(part for part in (run["policy"], run["core"]) if part)


def drawing(runs: list[dict[str, Any]], tasks: list[str]) -> Iterator[str]:
    """The lines of an SVG."""
    names = list(dict.fromkeys(network(run) for run in runs))
    left = 24 + 7 * max(len(name) for name in names)  # room for the names
    width = left + len(tasks) * (WIDTH + GAP)
    height = TOP + len(names) * (HEIGHT + GAP) + 30
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#24292f">'
    )
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    for column, task in enumerate(tasks):
        mine = [run for run in runs if run["task"] == task]
        if not mine:
            continue
        x = left + column * (WIDTH + GAP)
        values = [mean for run in mine for _, mean, _ in run["curve"]]
        low, high = min([*values, 0.0]), max([*values, WORLDS[task].bar or 0.0])
        end = max(run["steps"] for run in mine)
        yield f'<text x="{x}" y="18" font-weight="600">{escape(task)}</text>'
        yield f'<text x="{x}" y="34" fill="#57606a">return {low:.3g} to {high:.3g}</text>'
        for row, name in enumerate(names):
            y = TOP + row * (HEIGHT + GAP)
            own = [run for run in mine if network(run) == name]
            yield from panel(own, (x, y), (low, high), end, WORLDS[task].bar)
        bottom = TOP + len(names) * (HEIGHT + GAP) + 4
        yield f'<text x="{x}" y="{bottom}" fill="#57606a">0</text>'
        steps = f"{end / 1e6:g}M steps"
        yield f'<text x="{x + WIDTH}" y="{bottom}" fill="#57606a" text-anchor="end">{steps}</text>'
    for row, name in enumerate(names):
        y = TOP + row * (HEIGHT + GAP) + HEIGHT / 2 + 4
        yield f'<text x="{left - 10}" y="{y:g}" text-anchor="end">{escape(name)}</text>'
    yield "</svg>"


def panel(
    runs: list[dict[str, Any]],
    at: tuple[float, float],
    span: tuple[float, float],
    end: int,
    bar: float | None,
) -> Iterator[str]:
    """One network on one task."""
    (x, y), (low, high) = at, span
    yield f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="#f6f8fa"/>'

    def place(steps: float, value: float) -> tuple[float, float]:
        share = (value - low) / max(high - low, 1e-9)
        return round(x + WIDTH * min(1, steps / end), 1), round(y + HEIGHT * (1 - share), 1)

    if bar is not None:
        _, height = place(0, bar)
        yield f'<path d="M{x} {height}H{x + WIDTH}" stroke="#8c959f" stroke-dasharray="3 3"/>'
    for run in runs:
        colour = COLOURS[run["seed"] % len(COLOURS)]
        points = [place(steps, mean) for steps, mean, _ in run["curve"]]
        if points:
            line = " ".join(f"{px},{py}" for px, py in points)
            yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        if run["reached"] is not None and points:
            yield f'<circle cx="{points[-1][0]}" cy="{points[-1][1]}" r="3" fill="{colour}"/>'


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="what bench/memory.py --collect wrote")
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=WORLDS, default=["repeat-previous", "delayed-cue-100"])
    args = parser.parse_args()
    runs = [
        run
        for run in json.loads(args.file.read_text())["results"]
        if run["task"] in args.tasks and not run["soak"]
    ]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(drawing(runs, args.tasks)) + "\n")
    print(f"written to {args.out}: {len(runs)} runs")


if __name__ == "__main__":
    main()
