"""Directives for the pages on runtimes and scale: tables of what bench/ measured."""

from __future__ import annotations

import json
from typing import Any

from recollect_benches import RESULTS
from recollect_docs import Generated, table
from sphinx.application import Sphinx

QUIET = 0.1
"""The share of the cores that others may take beside a measurement."""


def results(name: str) -> dict[str, Any]:
    """What a benchmark wrote."""
    try:
        return json.loads((RESULTS / name).read_text())["results"]
    except FileNotFoundError:
        raise ValueError(f"bench/results/{name} is not there: run the benchmark that writes it") from None


def noted(text: str, found: dict[str, Any]) -> str:
    """The text, with a warning if others were using the machine."""
    share = found["busy_before"]
    if share <= QUIET:
        return text
    return f"{text}\n\n**Preliminary:** other programs took {share:.0%} of the cores before it began."


class RuntimeSpeeds(Generated):
    """``{runtime-speeds} CartPole-v1``: every way to run an env, against inline."""

    def make(self, argument: str) -> str:
        """A table, and whether the bar was reached."""
        whole = results("runtimes.json")
        found = whole["envs"][argument]
        shown = table(
            ["way", "steps/s", "of inline", "first update after"],
            (
                [
                    way,
                    f"{one['steps_per_s']:,.0f}",
                    f"{one['of_inline']:.2f}",
                    f"{one['first_update_after_s']:.1f} s",
                ]
                for way, one in found["ways"].items()
            ),
        )
        verdict = "reached" if found["reached"] >= found["bar"] else "**not reached**"
        best = f"Best: {found['best']}, {found['reached']:.2f} of inline."
        return noted(f"{shown}\n\n{best} The bar, {found['bar']}, is {verdict}.", whole)


class Transport(Generated):
    """``{transport}``: rollouts and bytes per second, against a copy of the same bytes."""

    def make(self, argument: str) -> str:
        """A table, one row a size and way."""
        found = results("transport.json")
        rows = [
            [
                f"{size['megabytes']:.3g} MB",
                way,
                f"{one['rollouts_per_s']:,.0f}",
                f"{one['megabytes_per_s']:,.0f}",
                f"{one['of_memcpy']:.3f}",
                f"{one['share']['write']:.0%}",
                f"{one['share']['join']:.0%}",
                f"{one['share']['other']:.0%}",
            ]
            for size in found["sizes"]
            for way, one in size["ways"].items()
        ]
        heads = ["rollout", "way", "rollouts/s", "MB/s", "of one memcpy", "writing", "joining", "all else"]
        return noted(table(heads, rows), found)


class ScaleRuns(Generated):
    """``{scale-runs}``: measured speeds."""

    def make(self, argument: str) -> str:
        """A table."""
        found = results("scaling.json")
        rows = [
            [
                str(run["actors"]),
                str(run["rows"]),
                run["mode"],
                f"{run['steps_per_s']:,.0f}",
                f"{run['lag']:.2f}",
                *(
                    f"{run.get(f'time/{name}', 0.0):.0%}"
                    for name in ("env", "policy", "transport", "learner")
                ),
            ]
            for run in found["runs"]
        ]
        heads = ["actors", "rows each", "mode", "steps/s", "lag"]
        heads += ["env", "policy", "transport", "waiting for the learner"]
        shown = table(heads, rows)
        return noted(shown, found)


class Simulation(Generated):
    """``{simulation}``: the thousand actors."""

    def make(self, argument: str) -> str:
        """A table, one row a number of actors and mode."""
        found = results("simulation.json")
        rows = [
            [
                f"{row['actors']:,}",
                row["mode"],
                "none" if row["learner_steps_per_s"] is None else f"{row['learner_steps_per_s']:,.0f}",
                f"{row['offered_steps_per_s']:,}",
                f"{row['steps_per_s']:,}",
                f"{row['most_steps_per_s']:,}",
                f"{row['lag']:.2f}",
                *(
                    f"{row['cpu_ms_per_update'].get(part, 0.0):.1f}"
                    for part in ("collect", "join", "publish", "episodes")
                ),
                f"{row['ground_busy']:.0%}",
            ]
            for row in found["rows"]
        ]
        heads = [
            "actors",
            "mode",
            "learner, steps/s",
            "offered, steps/s",
            "made, steps/s",
            "at most, steps/s",
            "lag",
        ]
        heads += ["collect, ms", "join, ms", "publish, ms", "episodes, ms", "stubs busy"]
        return noted(table(heads, rows), found)


class SimulationFacts(Generated):
    """``{simulation-facts}``: what an actor takes beside time."""

    def make(self, argument: str) -> str:
        """A table of what runs out, at which number of actors."""
        found = results("simulation.json")
        largest = max((row for row in found["rows"] if row["mode"] == "async"), key=lambda row: row["actors"])
        actors, real, limit = largest["actors"], found["real_actor"], found["few_files"]["limit"]
        files = largest["files"] / actors
        rows = [
            [
                "open files of the learner's process",
                f"{files:.1f}",
                f"{limit / files:,.0f} actors with the usual {limit:,}, were it not raised",
            ],
            [
                "private memory of an actor's process",
                f"{real['private_megabytes']:.0f} MB",
                f"{1000 * real['private_megabytes'] / 1e3:,.0f} GB for 1,000",
            ],
            [
                "core time to start one",
                f"{real['start_cpu_seconds']:.1f} s",
                f"{real['start_cpu_seconds'] * 1000 / 60:,.0f} core minutes for 1,000",
            ],
            [
                "slots in shared memory, async",
                f"{largest['slots_megabytes'] / actors * 1e3:,.0f} kB",
                f"{largest['slots_megabytes'] / actors:,.2f} GB for 1,000",
            ],
        ]
        text = found["few_files"]["result"].replace("|", "\\|")
        return (
            table(["what an actor takes", "each", "so"], rows)
            + f"\n\n{found['few_files']['actors']:,} actors begun with a limit of {limit:,} files: {text}."
        )


def setup(app: Sphinx) -> dict[str, Any]:
    """Make the directives known."""
    for name, directive in {
        "runtime-speeds": RuntimeSpeeds,
        "transport": Transport,
        "scale-runs": ScaleRuns,
        "simulation": Simulation,
        "simulation-facts": SimulationFacts,
    }.items():
        app.add_directive(name, directive)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
