"""Recollect beside other libraries, on the same work in one run on one machine.

    python bench/compare.py [--world minigrid-memory] [--seeds 3] [--only recollect sb3-contrib]
        [--steps 1000000 sb3-contrib=300000] [--max-seconds 600 sb3-contrib=1800]

The work on each world is in bench/others/task.py. Measures env steps per second with learning included, and
env steps and seconds until the world is solved. Contenders run one after another, each in its own process
and its own virtual environment (bench/others/README.md says how to make them); one whose environment is not
there is skipped. An idle machine is needed: load spoils all numbers. On one with many cores, `--threads 1
--jobs 8` has eight of them run at a time. Results go to bench/results/compare.json for CartPole, to
compare_WORLD.json for the other worlds.
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
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import common
from compare_plan import BASE, CONTENDERS, GRACE_SECONDS, ROOT, Budgets, Contender, Plan, budget, contenders
from others import task

_running: set[subprocess.Popen] = set()


def run(contender: Contender, options: list[str], timeout: float | None) -> dict[str, Any]:
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
        _running.add(process)
        try:
            output, _ = process.communicate(timeout=timeout)
            error = f"exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            output, error = "", f"not done after {timeout:g} s"
        finally:
            _running.discard(process)
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


def summarise(runs: list[dict[str, Any]], cap: int, world: task.World) -> dict[str, Any]:
    """Medians over the seeds; a run that did not reach the target counts as longer than all others."""
    good = [row for row in runs if "error" not in row]
    if not good:
        return {"runs": len(runs), "failed": len(runs)}

    def median(name: str, missing: float = math.inf) -> float | None:
        middle = statistics.median(missing if row[name] is None else row[name] for row in good)
        return None if math.isinf(middle) else middle

    best = f"best_{world.last_return}"
    speeds = [row["steps_per_second"] for row in good if row["steps_per_second"] is not None]
    return {
        "version": good[0]["version"],
        "runs": len(runs),
        "failed": len(runs) - len(good),
        "steps_per_second": statistics.median(speeds) if speeds else None,
        "steps_per_second_range": [min(speeds), max(speeds)] if speeds else None,
        "reached": sum(row[world.steps_to_target] is not None for row in good),
        world.steps_to_target: median(world.steps_to_target),
        world.seconds_to_target: median(world.seconds_to_target),
        world.last_return: median(world.last_return, -math.inf),
        best: median(best, -math.inf),
        "steps": median("steps"),
        "cap": cap,
    }


def add_ratios(summaries: dict[str, dict[str, Any]], world: task.World) -> None:
    """Every number as a ratio to Recollect's; None where one of the two is missing."""
    base = summaries.get(BASE, {})
    for row in summaries.values():
        for name in ("steps_per_second", world.steps_to_target, world.seconds_to_target):
            ours, theirs = base.get(name), row.get(name)
            row[f"{name}_ratio"] = round(theirs / ours, 3) if ours and theirs else None


def show(summaries: dict[str, dict[str, Any]], world: task.World) -> None:
    """The table; ratios in brackets are to Recollect."""
    print(f"\nMedians over seeds; (x): as a multiple of {BASE}'s")
    print(f"best return: the highest mean of {world.episodes} episodes\n")
    heads = ("steps/s", f"steps to {world.target:g}", f"seconds to {world.target:g}")
    print(
        f"{'contender':<22} {'version':>8} "
        + " ".join(f"{head:>22}" for head in heads)
        + f" {'reached':>8} {'best return':>12}"
    )
    for name, row in summaries.items():
        if "version" not in row:
            print(f"{name:<22} all {row['runs']} runs failed")
            continue
        cells = [
            _cell(row, "steps_per_second", "-"),
            _cell(row, world.steps_to_target, f"> {min(row['cap'], row['steps']):,.0f}"),
            _cell(row, world.seconds_to_target, "-"),
        ]
        reached, best = f"{row['reached']}/{row['runs']}", row[f"best_{world.last_return}"]
        print(
            f"{name:<22} {row['version']:>8} "
            + " ".join(f"{c:>22}" for c in cells)
            + f" {reached:>8} {'-' if best is None else f'{best:.4g}':>12}"
        )


def _cell(row: dict[str, Any], name: str, missing: str) -> str:
    if row[name] is None:
        return missing
    ratio = row[f"{name}_ratio"]
    return f"{row[name]:,.0f}" + ("" if ratio is None else f" ({ratio:.2f}x)")


def measure(names: list[str], plan: Plan, say: Callable[[str], None]) -> dict[str, list[dict[str, Any]]]:
    """All runs, seed by seed, so that a slow hour of the machine affects all contenders."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with ThreadPoolExecutor(plan.jobs) as pool:
        todo = [
            (name, pool.submit(_measure_one, name, seed, plan, say))
            for seed in range(plan.seeds)
            for name in names
        ]
        try:
            for name, row in todo:
                runs[name].append(row.result())
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(_running):
                _end(process)
            say("interrupted: what is done so far follows")
    return {name: rows for name, rows in runs.items() if rows}


def _measure_one(name: str, seed: int, plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    world = plan.world
    load = round(os.getloadavg()[0], 2)
    row = run(CONTENDERS[name], ["--seed", str(seed), *plan.options(name)], plan.time_limit(name))
    last_words = row.pop("stderr", "")
    if "error" in row:
        say(f"{name}, seed {seed}: FAILED, {row['error']}; its last words:\n{last_words}")
    else:
        say(
            f"{name}, seed {seed}: {row['steps_per_second']} steps/s, {world.target:g} after "
            f"{row[world.steps_to_target]} steps and {row[world.seconds_to_target]} s, "
            f"return {row[world.last_return]}"
        )
    return row | {"seed": seed, "load_before": load}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", choices=list(task.WORLDS), default=task.DEFAULT_WORLD)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each contender")
    parser.add_argument(
        "--only", nargs="+", choices=list(CONTENDERS), metavar="NAME", help=", ".join(CONTENDERS)
    )
    limit = {"nargs": "+", "type": budget, "metavar": "N|NAME=N", "default": []}
    parser.add_argument(
        "--steps",
        **limit,
        help="the cap on env steps of a run, for all or for contenders whose name starts with NAME; by "
        "default the world's",
    )
    parser.add_argument(
        "--max-seconds",
        **limit,
        help="the cap on seconds of training of a run, checked after updates, in the same form; 600",
    )
    parser.add_argument("--threads", type=int, help="torch threads of all that run in one process")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time; one by default")
    parser.add_argument(
        "--timeout",
        type=float,
        help=f"seconds after which a run is killed and counts as failed; by default {GRACE_SECONDS} more "
        "than --max-seconds",
    )
    parser.add_argument("--quick", action="store_true", help="a few updates of each: does everything work?")
    parser.add_argument("--out", help="write JSON here; by default into bench/results")
    return parser.parse_args()


def _default_out(world_name: str) -> Path:
    suffix = "" if world_name == task.DEFAULT_WORLD else "_" + world_name.replace("-", "_")
    return ROOT / "bench/results" / f"compare{suffix}.json"


def main() -> None:
    args = _arguments()
    plan = Plan(
        world_name=args.world,
        seeds=args.seeds,
        steps=Budgets(args.steps),
        max_seconds=Budgets({"": 600.0} | dict(args.max_seconds)),
        threads=args.threads,
        jobs=args.jobs,
        timeout=args.timeout,
        is_quick=args.quick,
    )
    names = []
    for name in args.only or contenders(plan.world):
        contender = CONTENDERS[name]
        if contender.python.exists():
            names.append(name)
        else:
            print(f"{name}: skipped, there is no {contender.venv}; see bench/others/README.md")
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5:
        print(
            f"the machine is busy (load {os.getloadavg()[0]:.1f}): numbers will be too low, and unevenly so"
        )

    runs = measure(names, plan, lambda text: print(text, flush=True))
    summaries = {name: summarise(rows, plan.cap(name), plan.world) for name, rows in runs.items()}
    add_ratios(summaries, plan.world)
    show(summaries, plan.world)
    options = {name: plan.options(name) for name in runs}
    results = {"world": args.world, "options": options, "threads": args.threads, "jobs": args.jobs}
    common.write(
        args.out or _default_out(args.world), "compare", results | {"summary": summaries, "runs": runs}
    )


if __name__ == "__main__":
    main()
