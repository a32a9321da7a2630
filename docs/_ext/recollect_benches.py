"""Directives that show what bench/ measured, straight from its JSON, so that no page can say otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recollect_docs import Generated, table
from sphinx.application import Sphinx

RESULTS = Path(__file__).parents[2] / "bench" / "results"


def results(name: str) -> list[dict[str, Any]]:
    """The rows that a benchmark wrote."""
    try:
        return json.loads((RESULTS / name).read_text())["results"]
    except FileNotFoundError:
        raise ValueError(f"bench/results/{name} is not there: run the benchmark that writes it") from None


class CoreCosts(Generated):
    """``{core-costs} 256``: what every core costs with so many rows."""

    def make(self, argument: str) -> str:
        """A table, the cheapest to train first."""
        rows = [row for row in results("cores.json") if row["B"] == int(argument)]
        if not rows:
            raise ValueError(f"bench/results/cores.json has nothing for {argument} rows")
        rows.sort(key=lambda row: -(row["train_of_lstm"] or 1e9))
        return table(
            [
                "core",
                "train, of the LSTM",
                "act, of the LSTM",
                "train, steps/s",
                "act, steps/s",
                "state",
                "weights",
            ],
            (
                [
                    f"`{row['core']}`",
                    "-" if row["train_of_lstm"] is None else f"{row['train_of_lstm']:.2f}",
                    f"{row['act_of_lstm']:.2f}",
                    "-" if row["train_steps_per_s"] is None else f"{row['train_steps_per_s']:,}",
                    f"{row['act_steps_per_s']:,}",
                    _bytes(row["state_bytes"]),
                    f"{row['weights']:,}",
                ]
                for row in rows
            ),
        )


class Learned(Generated):
    """``{learned} task task ...``: where every network got on those tasks, seed by seed."""

    def make(self, argument: str) -> str:
        """One row a network, one column a task: the return, and after how many steps the bar was reached."""
        tasks = argument.split()
        rows = [row for row in results("memory.json") if row["task"] in tasks and not row["soak"]]
        names = list(dict.fromkeys(_network(row) for row in rows))
        return table(
            ["network", *(f"{task}" for task in tasks)],
            ([f"`{name}`", *(_cell(rows, name, task) for task in tasks)] for name in names),
        )


class Soaks(Generated):
    """``{soaks}``: the runs that went on to the end, solved or not."""

    def make(self, argument: str) -> str:
        """Final and best return, and how the memory of the process grew."""
        rows = [row for row in results("memory.json") if row["soak"]]
        return table(
            ["network", "task", "steps", "final", "best seen", "final of best", "memory, first to last"],
            (
                [
                    f"`{_network(row)}`",
                    row["task"],
                    f"{row['trained']:,}",
                    f"{row['return']:.3f}",
                    f"{row['best']:.3f}",
                    f"{row['return'] / row['best']:.2f}",
                    f"{row['curve'][len(row['curve']) // 5][2]:.0f} to {row['curve'][-1][2]:.0f} MB",
                ]
                for row in rows
            ),
        )


def _cell(rows: Iterable[dict[str, Any]], name: str, task: str) -> str:
    runs = [row for row in rows if _network(row) == name and row["task"] == task]
    said = []
    for row in sorted(runs, key=lambda row: row["seed"]):
        when = row["trained"] if row["reached"] is None else row["reached"]
        is_solved = row["reached"] is not None
        text = f"{row['return']:.2f} ({when / 1000:.0f}k)"
        said.append(f"**{text}**" if is_solved else text)
    return ", ".join(said) or "not measured"


def _network(row: dict[str, Any]) -> str:
    return " + ".join(part for part in (row["policy"], row["core"]) if part)


def _bytes(count: int) -> str:
    return f"{count} B" if count < 10_000 else f"{count / 1024:.1f} KiB"


def setup(app: Sphinx) -> dict[str, Any]:
    """Make the directives known."""
    for name, directive in {"core-costs": CoreCosts, "learned": Learned, "soaks": Soaks}.items():
        app.add_directive(name, directive)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
