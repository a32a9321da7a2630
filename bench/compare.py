"""Recollect beside other libraries, on the same work in one run on one machine.

    python bench/compare.py [--seeds 3] [--only recollect sb3-contrib] [--out bench/results/compare.json]

CartPole without velocities through Gymnasium, 16 envs, rollout 128, 4 epochs, 4 minibatches, an encoder
layer of 128 and an LSTM of 128. Measures env steps per second with learning included, and env steps
and seconds until the mean return of the last 50 episodes reaches 400. Contenders run one after another,
each in its own process and its own virtual environment (bench/others/README.md says how to make them);
one whose environment is not there is skipped. An idle machine is needed: load spoils all numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common

ROOT = Path(__file__).resolve().parents[1]
BASE = "recollect"
"""The contender that ratios are to."""
QUICK = ("--steps", "8192", "--warmup-updates", "1", "--window-updates", "3")


@dataclass(frozen=True, slots=True)
class Contender:
    """One library with one way to use it."""

    script: str
    """In bench/others."""
    venv: str | None
    """Folder of its virtual environment under the root; None: the one that runs this script."""
    options: tuple[str, ...] = ()
    """For the script."""
    takes_threads: bool = True
    """Whether its number of torch threads is a choice."""

    @property
    def python(self) -> Path:
        """Its interpreter."""
        if self.venv is None:
            return Path(sys.executable)
        return ROOT / self.venv / "bin/python"


def _recollect(chunk: int) -> Contender:
    return Contender("recollect_run.py", None, ("--chunk", str(chunk)))


def _sb3(variant: str) -> Contender:
    return Contender("sb3_contrib_run.py", ".venv-sb3", ("--variant", variant))


def _sample_factory(variant: str, mode: str) -> Contender:
    options = ("--variant", variant, "--mode", mode)
    return Contender("sample_factory_run.py", ".venv-sample-factory", options, mode == "serial")


CONTENDERS = {
    BASE: _recollect(32),
    "recollect-chunk16": _recollect(16),
    "recollect-chunk128": _recollect(128),
    "sb3-contrib": _sb3("default"),
    "sb3-contrib-shared": _sb3("shared"),
    "sb3-contrib-tuned": _sb3("tuned"),
    "sample-factory": _sample_factory("default", "async"),
    "sample-factory-serial": _sample_factory("default", "serial"),
    "sample-factory-tuned": _sample_factory("tuned", "serial"),
}
"""What each variant means stands at the top of its script."""


def run(contender: Contender, options: list[str], timeout: float) -> dict[str, Any]:
    """One run in a process group and a folder of its own, both gone afterwards.

    Returns what the script printed, or {"error": why, "stderr": its last words}.
    """
    command = [str(contender.python), str(ROOT / "bench/others" / contender.script)]
    command += [*contender.options, *options]
    with (
        tempfile.TemporaryDirectory(prefix="compare-", ignore_cleanup_errors=True) as folder,
        open(Path(folder) / "stderr.txt", "w+") as errors,
    ):
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            env=os.environ | {"TMPDIR": folder},
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout)
            error = f"exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            output, error = "", f"not done after {timeout:g} s"
        finally:
            _end(process)
        errors.seek(0)
        last_words = "\n".join(errors.read().splitlines()[-15:])
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode != 0 or not lines:
        return {"error": error, "stderr": last_words}
    return json.loads(lines[-1])


def _end(process: subprocess.Popen) -> None:
    """Kill the process and whatever it started and left behind."""
    with contextlib.suppress(ProcessLookupError):  # all gone by themselves
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)


def summarise(runs: list[dict[str, Any]], cap: int) -> dict[str, Any]:
    """Medians over the seeds; a run that did not reach the target counts as longer than all others."""
    good = [row for row in runs if "error" not in row]
    if not good:
        return {"runs": len(runs), "failed": len(runs)}

    def median(name: str) -> float | None:
        values = [math.inf if row[name] is None else row[name] for row in good]
        middle = statistics.median(values)
        return None if math.isinf(middle) else middle

    speeds = [row["steps_per_second"] for row in good if row["steps_per_second"] is not None]
    return {
        "version": good[0]["version"],
        "runs": len(runs),
        "failed": len(runs) - len(good),
        "steps_per_second": statistics.median(speeds) if speeds else None,
        "steps_per_second_range": [min(speeds), max(speeds)] if speeds else None,
        "reached": sum(row["steps_to_400"] is not None for row in good),
        "steps_to_400": median("steps_to_400"),
        "seconds_to_400": median("seconds_to_400"),
        "cap": cap,
    }


def add_ratios(summaries: dict[str, dict[str, Any]]) -> None:
    """Every number as a ratio to Recollect's; None where one of the two is missing."""
    base = summaries.get(BASE, {})
    for row in summaries.values():
        for name in ("steps_per_second", "steps_to_400", "seconds_to_400"):
            ours, theirs = base.get(name), row.get(name)
            row[f"{name}_ratio"] = round(theirs / ours, 3) if ours and theirs else None


def show(summaries: dict[str, dict[str, Any]]) -> None:
    """The table; ratios in brackets are to Recollect."""
    print(f"\nMedians over seeds; (x): as a multiple of {BASE}'s\n")
    heads = ("steps/s", "steps to 400", "seconds to 400")
    print(
        f"{'contender':<22} {'version':>8} " + " ".join(f"{head:>22}" for head in heads) + f" {'reached':>8}"
    )
    for name, row in summaries.items():
        if "version" not in row:
            print(f"{name:<22} all {row['runs']} runs failed")
            continue
        cells = [
            _cell(row, "steps_per_second", "-"),
            _cell(row, "steps_to_400", f"> {row['cap']:,}"),
            _cell(row, "seconds_to_400", "-"),
        ]
        reached = f"{row['reached']}/{row['runs']}"
        print(f"{name:<22} {row['version']:>8} " + " ".join(f"{c:>22}" for c in cells) + f" {reached:>8}")


def _cell(row: dict[str, Any], name: str, missing: str) -> str:
    if row[name] is None:
        return missing
    ratio = row[f"{name}_ratio"]
    return f"{row[name]:,.0f}" + ("" if ratio is None else f" ({ratio:.2f}x)")


def measure(
    names: list[str],
    seeds: int,
    options: list[str],
    threads: int | None,
    timeout: float,
    say: Callable[[str], None],
) -> dict[str, list[dict[str, Any]]]:
    """All runs, seed by seed, so that a slow hour of the machine meets everybody."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    try:
        for seed in range(seeds):
            for name in names:
                load = round(os.getloadavg()[0], 2)
                own = ["--seed", str(seed), *options]
                if threads is not None and CONTENDERS[name].takes_threads:
                    own += ["--threads", str(threads)]
                row = run(CONTENDERS[name], own, timeout)
                last_words = row.pop("stderr", "")
                runs[name].append(row | {"seed": seed, "load_before": load})
                if "error" in row:
                    say(f"{name}, seed {seed}: FAILED, {row['error']}; its last words:\n{last_words}")
                else:
                    say(
                        f"{name}, seed {seed}: {row['steps_per_second']} steps/s, 400 after "
                        f"{row['steps_to_400']} steps and {row['seconds_to_400']} s"
                    )
    except KeyboardInterrupt:
        say("interrupted: what is done so far follows")
    return {name: rows for name, rows in runs.items() if rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1, help="runs of each contender")
    parser.add_argument(
        "--only", nargs="+", choices=list(CONTENDERS), metavar="NAME", help=", ".join(CONTENDERS)
    )
    parser.add_argument("--steps", type=int, default=200_000, help="the cap on env steps of a run")
    parser.add_argument("--threads", type=int, help="torch threads of all that run in one process")
    parser.add_argument("--timeout", type=float, default=900, help="seconds that a run may take")
    parser.add_argument("--quick", action="store_true", help="a few updates of each: does everything work?")
    parser.add_argument("--out", default=str(ROOT / "bench/results/compare.json"), help="write JSON here")
    args = parser.parse_args()

    names = []
    for name in args.only or CONTENDERS:
        contender = CONTENDERS[name]
        if contender.python.exists():
            names.append(name)
        else:
            print(f"{name}: skipped, there is no {contender.venv}; see bench/others/README.md")
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5:
        print(
            f"the machine is busy (load {os.getloadavg()[0]:.1f}): numbers will be too low, and unevenly so"
        )

    options = [*QUICK] if args.quick else ["--steps", str(args.steps)]
    runs = measure(
        names, args.seeds, options, args.threads, args.timeout, lambda text: print(text, flush=True)
    )
    cap = int(QUICK[1]) if args.quick else args.steps
    summaries = {name: summarise(rows, cap) for name, rows in runs.items()}
    add_ratios(summaries)
    show(summaries)
    common.write(
        args.out, "compare", {"options": options, "threads": args.threads, "summary": summaries, "runs": runs}
    )


if __name__ == "__main__":
    main()
