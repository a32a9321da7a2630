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


def whole(name: str) -> dict[str, Any]:
    """The results of a benchmark that are no rows."""
    found: Any = results(name)
    return found


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


class Integrity(Generated):
    """``{integrity}``: reads of weights and slots under stress, and what a read costs."""

    def make(self, argument: str) -> str:
        """Two tables: what was seen, and the costs."""
        found = whole("integrity.json")
        kinds = {
            "small weights": found["small_weights"],
            "large weights": found["large_weights"],
            "the control": found["control_that_does_not_verify"],
        }
        seen = table(
            ["", "reads", "mixed", "an older version than before", "published", "readers killed"],
            (
                [
                    kind,
                    *(
                        f"{row[name]:,}"
                        for name in ("reads", "mixed", "backwards", "published", "readers_killed")
                    ),
                ]
                for kind, row in kinds.items()
            ),
        )
        killed, slots = found["killed_writers"], found["slots"]
        words = (
            f"Writers killed while they published: {killed['writers']}; mixed after it: {killed['mixed']}, "
            f"versions lost: {killed['lost']}. Rows through slots: {slots['rows']:,} in "
            f"{slots['rollouts']:,} rollouts; torn: {slots['torn']}, stale: {slots['stale']}, out of order: "
            f"{slots['disordered']}."
        )
        costs = table(
            ["bytes of weights", "one copy", "publish, in copies", "read, in copies"],
            (
                [
                    f"{row['bytes']:,}",
                    f"{row['copy_ms']:.3g} ms",
                    f"{row['publish_to_copy']:.2f}",
                    f"{row['read_to_copy']:.2f}",
                ]
                for row in found["costs"]
            ),
        )
        return f"{seen}\n\n{words}\n\n{costs}"


class SoakKills(Generated):
    """``{soak-kills}``: training while actors are killed."""

    def make(self, argument: str) -> str:
        """One row a mode."""
        return table(
            [
                "mode",
                "minutes",
                "updates",
                "killed",
                "tickets given, given back, learned",
                "lost",
                "doubled",
                "beyond `max_lag`",
                "memory",
                "open files",
            ],
            (
                [
                    mode,
                    f"{row['minutes']:g}",
                    f"{row['updates']:,}",
                    f"{row['killed']}",
                    ", ".join(f"{row['tickets'][name]:,}" for name in ("given", "given_back", "learned")),
                    f"{row['lost']}",
                    f"{row['doubled']}",
                    f"{row['beyond_max_lag']}",
                    _grown(row["resident_mb"], " MB"),
                    _grown(row["open_files"], ""),
                ]
                for mode, row in whole("soak_kills.json").items()
            ),
        )


def _grown(row: dict[str, float], unit: str) -> str:
    return f"{row['after_a_fifth']:.0f} to {row['at_the_end']:.0f}{unit}"


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
    for name, directive in {
        "core-costs": CoreCosts,
        "learned": Learned,
        "soaks": Soaks,
        "integrity": Integrity,
        "soak-kills": SoakKills,
    }.items():
        app.add_directive(name, directive)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
