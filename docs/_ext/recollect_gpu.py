"""Directives for the page on GPUs: tables of what bench/gpu_*.py measured, or that nothing was yet."""

from __future__ import annotations

import json
import statistics
from typing import Any

from recollect_benches import RESULTS
from recollect_docs import Generated, table
from sphinx.application import Sphinx


class Measured(Generated):
    """A table from ``bench/results/NAME.json``. Without the file it says how to make it."""

    name_of_bench = ""

    def make(self, argument: str) -> str:
        """The table, and where it was measured."""
        path = RESULTS / f"{self.name_of_bench}.json"
        if not path.exists():
            return f"*Not measured yet:* `python bench/{self.name_of_bench}.py` on a machine with a GPU."
        found = json.loads(path.read_text())
        parts = [found.get("gpu") or found["cpu"], f"torch {found['torch']}"]
        parts += [f"Triton {found['triton']}"] if found.get("triton") else []
        commit = f", commit `{found['commit']}`" if found["commit"] else ""
        where = f"{', '.join(parts)}{commit} (`bench/{self.name_of_bench}.py`)."
        return f"{self.shown(found['results'], argument)}\n\n{where}"

    def shown(self, results: Any, argument: str) -> str:
        """The results as Markdown."""
        raise NotImplementedError


class Speeds(Measured):
    """``{gpu-speeds}``: env steps per second of PPO."""

    name_of_bench = "gpu_ppo"

    def shown(self, results: Any, argument: str) -> str:
        """One row a case, the fastest first."""
        good = [row for row in results if "error" not in row]
        good.sort(key=lambda row: (-row["rows"], -row["steps_per_s"]))
        return table(
            [
                "task",
                "core",
                "rows",
                "precision",
                "M steps/s",
                "quartiles",
                "acting alone",
                "trained, per epoch",
                "start",
                "memory",
            ],
            (
                [
                    row["task"],
                    row["core"].upper(),
                    f"{row['rows']:,}",
                    row["precision"] + ("" if row["graphs"] else ", no graphs"),
                    f"**{_millions(row['steps_per_s'])}**",
                    " to ".join(_millions(value) for value in row["quartiles"]),
                    _of(row.get("acting_steps_per_s"), row.get("of_acting_ceiling")),
                    _of(row.get("trained_steps_per_s_and_epoch"), row.get("of_training_ceiling")),
                    f"{row['warm_s']:.0f} s",
                    "-" if row["gpu_gb"] is None else f"{row['gpu_gb']['used']:.1f} GB",
                ]
                for row in good
            ),
        )


class Budget(Measured):
    """``{gpu-budget} tf32``: where the time of an iteration goes; without a name the first measured."""

    name_of_bench = "gpu_profile"

    def shown(self, results: Any, argument: str) -> str:
        """One row a part."""
        one = next((row for row in results if argument in ("", row["precision"])), results[0])
        spans = ("acting", "update", "rest")
        rows = [
            [
                row["group"],
                *(f"{row[span]:,.0f}" if row.get(span) else "" for span in spans),
                f"{row['us']:,.0f}",
                f"{row['share']:.1%}",
            ]
            for row in one["budget"]
            if row["us"]
        ]
        rows.append(["an iteration", "", "", "", f"{one['iteration_us']:,.0f}", "100%"])
        words = (
            f"{one['task']}, {one['core'].upper()}, {one['rows']:,} rows, {one['precision']}: microseconds "
            f"of an iteration of {one['steps']:,.0f} steps. {one['traced']['kernels']:,} kernels ran in it."
        )
        return f"{words}\n\n{table(['part', *spans, 'us', 'share'], rows)}"


class Unrolls(Measured):
    """``{gpu-unrolls}``: our LSTM and GRU against cuDNN's."""

    name_of_bench = "gpu_unroll"

    def shown(self, results: Any, argument: str) -> str:
        """One row a core and size."""
        return table(
            ["core", "units", "rows", "precision", "forwards", "both", "M steps/s", "cuDNN", "ratio"],
            (
                [
                    row["core"].upper(),
                    str(row["hidden"]),
                    f"{row['rows']:,}",
                    row["products"],
                    f"{row['forward_ms']:.2f} ms",
                    f"{row['both_ms']:.2f} ms",
                    f"{row['both_msteps']:.0f}",
                    f"{row['cudnn']['both_msteps']:.0f}",
                    f"**{row['times_cudnn']:.1f}**",
                ]
                for row in results
                if "error" not in row
            ),
        )


class Learning(Measured):
    """``{gpu-learning}``: seconds until memory tasks are solved."""

    name_of_bench = "gpu_learning"

    def shown(self, results: Any, argument: str) -> str:
        """One row a task and seed."""
        rows = []
        for task, found in results.items():
            for run in found["runs"]:
                when = run["solved_after_s"]
                rows.append(
                    [
                        task,
                        str(run["seed"]),
                        f"{found['bar']:g}",
                        f"not within {run.get('net_s', 0):.0f} s" if when is None else f"**{when:.1f} s**",
                        f"{run.get('steps', 0) / 1e6:.1f}M",
                        f"{run.get('warm_up_s', 0):.1f} s",
                        f"{run.get('evaluating_s', 0):.1f} s",
                    ]
                )
        heads = [
            "task",
            "seed",
            "bar",
            "solved after",
            "steps",
            "beside: start",
            "beside: evaluations",
        ]
        return table(heads, rows)


class Parity(Measured):
    """``{gpu-parity}``: the same settings on CPU and GPU."""

    name_of_bench = "gpu_parity"

    def shown(self, results: Any, argument: str) -> str:
        """One row a task and precision."""
        return table(
            ["task", "precision on the GPU", "CPU", "GPU", "difference", "within chance"],
            (
                [
                    row["task"],
                    row["precision"],
                    _spread(row["cpu"]),
                    _spread(row["gpu"]),
                    f"{row['difference']:+.3g}",
                    f"{'yes' if row['is_within'] else '**no**'} (up to {row['allowed']:.2g})",
                ]
                for row in results["summary"]
            ),
        )


class Soak(Measured):
    """``{gpu-soak}``: long runs of all cores and token policies."""

    name_of_bench = "gpu_soak"

    def shown(self, results: Any, argument: str) -> str:
        """One row a run, by name."""
        rows = []
        for row in sorted(results, key=lambda row: row["name"]):
            early, late = row.get("gpu_gb_early"), row.get("gpu_gb_late")
            rows.append(
                [
                    row["name"],
                    f"{row['trained'] / 1e6:.1f}M",
                    "-" if row.get("final") is None else f"{row['final']:.3g}",
                    "-" if row.get("best") is None else f"{row['best']:.3g}",
                    f"{early['used']:.2f} to {late['used']:.2f} GB" if early and late else "-",
                    row["verdict"][:120],
                ]
            )
        return table(["run", "steps", "last tenth", "best tenth", "GPU memory", "verdict"], rows)


class Foreign(Measured):
    """``{gpu-foreign}``: envs on the CPU, the policy on the GPU."""

    name_of_bench = "gpu_foreign"

    def shown(self, results: Any, argument: str) -> str:
        """One row a number of envs and way."""
        rows = [
            [
                str(result["num_envs"]),
                name,
                *(
                    cell
                    for kind in ("training", "acting")
                    for cell in (f"{way[kind]['steps_per_s']:,}", f"{way[kind]['of_cpu']:.2f}")
                ),
                f"{way['training']['of_before']:.2f}",
            ]
            for result in results
            for name, way in result["ways"].items()
        ]
        heads = ["envs", "way", "training, steps/s", "of the CPU", "acting, steps/s", "of the CPU"]
        return table([*heads, "training, of a transfer per tensor"], rows)


def _millions(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e6:.1f}M" if value >= 1e5 else f"{value / 1e6:.3f}M"


def _of(value: float | None, share: float | None) -> str:
    """A speed, and what it is of its ceiling."""
    return _millions(value) + ("" if share is None else f" ({share:.2f})")


def _spread(values: list[float]) -> str:
    return f"{statistics.fmean(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def setup(app: Sphinx) -> dict[str, Any]:
    """Make the directives known."""
    for name, directive in {
        "gpu-speeds": Speeds,
        "gpu-budget": Budget,
        "gpu-unrolls": Unrolls,
        "gpu-learning": Learning,
        "gpu-parity": Parity,
        "gpu-soak": Soak,
        "gpu-foreign": Foreign,
    }.items():
        app.add_directive(name, directive)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
