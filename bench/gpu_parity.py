"""Does an agent learn the same on a GPU as on a CPU?

    python bench/gpu_parity.py --minutes 6

Three memory tasks with the settings of their presets and seeds 0, 1 and 2, on both devices, and the greedy
return over 200 episodes at the end. The two draw other random numbers, so that single runs differ; what
must not differ is where they end. The difference of the two means is compared with the spread over
seeds: it is within it if it is at most twice the standard error of a difference, or 2% of the task's scale,
whichever is larger, since three seeds that all solve a task have no spread. ``mean_on_the_way`` is the
mean of the training return over the whole run, which says how fast it was learned.

Runs on the CPU are processes of their own, with two threads each, beside those on the GPU, which follow one
another in this process.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import gpu_common as gpu

import recollect as rc


@dataclass(frozen=True)
class Work:
    """A task and how long it is trained."""

    steps: int
    scale: float
    """From a bad to the best return."""
    options: dict[str, Any] = field(default_factory=dict)


TASKS = {
    "repeat-previous": Work(300_000, 1.5),
    "delayed-cue": Work(100_000, 0.75, {"cues": 4, "horizon": 10}),
    "position-cartpole": Work(150_000, 480.0),
}
EPISODES = 200


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one agent and evaluate it."""
    work, began = TASKS[job["task"]], time.perf_counter()
    settings = {"precision": job["precision"]} if job["precision"] else {}
    agent = rc.train(
        job["task"],
        steps=job["steps"],
        seed=job["seed"],
        device=job["device"],
        env_kwargs=work.options,
        threads=2,
        progress=False,
        max_seconds=job["seconds"],
        **settings,
    )
    seconds = time.perf_counter() - began
    final = agent.evaluate(job["episodes"], eval_mode="greedy", num_envs=job["episodes"])
    _, returns = agent.history.column("return")
    trained = agent.steps
    agent.close()
    return job | {
        "trained": trained,
        "return": round(final.mean, 4),
        "interval": [round(value, 4) for value in final.interval],
        "mean_on_the_way": round(statistics.fmean(returns), 4) if returns else None,
        "seconds_used": round(seconds, 1),
    }


def run_apart(job: dict[str, Any], deadline: gpu.Deadline) -> dict[str, Any]:
    """The same in a process that sees no GPU."""
    if deadline.left < 5:
        return job | {"error": "no time was left"}
    command = [sys.executable, __file__, "--run", json.dumps(job | {"seconds": deadline.left})]
    blind = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, capture_output=True, text=True, env=blind, check=False)
    if done.returncode:
        return job | {"error": done.stderr[-2000:]}
    return json.loads(done.stdout.splitlines()[-1])


def run_here(job: dict[str, Any], deadline: gpu.Deadline) -> dict[str, Any]:
    """The same in this process."""
    if deadline.left < 5:
        return job | {"error": "no time was left"}
    try:
        found = run(job | {"seconds": deadline.left})
    except Exception as error:
        found = job | {"error": gpu.failed(error)}
    gpu.clear()
    return found


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every task and precision of the GPU: both means, their difference, and whether it is chance."""
    found = []
    for task, work in TASKS.items():
        done = [row for row in rows if row["task"] == task and row.get("trained", 0) >= row["steps"]]
        here = [row["return"] for row in done if row["where"] == "cpu"]
        names = dict.fromkeys(row["precision"] for row in done if row["where"] == "gpu")
        for precision in names:
            there = [row["return"] for row in done if row["where"] == "gpu" and row["precision"] == precision]
            if len(here) < 2 or len(there) < 2:
                continue
            error = (statistics.variance(here) / len(here) + statistics.variance(there) / len(there)) ** 0.5
            difference = statistics.fmean(there) - statistics.fmean(here)
            allowed = max(2 * error, 0.02 * work.scale)
            found.append(
                {
                    "task": task,
                    "precision": precision or "default",
                    "cpu": [round(value, 4) for value in here],
                    "gpu": [round(value, 4) for value in there],
                    "difference": round(difference, 4),
                    "standard_error": round(error, 4),
                    "allowed": round(allowed, 4),
                    "is_within": abs(difference) <= allowed,
                }
            )
    return found


def show(rows: list[dict[str, Any]], results: list[dict[str, Any]]) -> None:
    """Every run, then what they amount to."""
    gpu.table(
        ["run", "where", "precision", "return", "on the way", "s"],
        [
            [
                f"{row['task']}, seed {row['seed']}",
                row["where"],
                row["precision"] or "default",
                str(row.get("return", row.get("error", "")[-60:])),
                str(row.get("mean_on_the_way", "")),
                str(row.get("seconds_used", "")),
            ]
            for row in rows
        ],
    )
    print()
    gpu.table(
        ["task", "precision", "CPU", "GPU", "difference", "allowed", "within"],
        [
            [
                row["task"],
                row["precision"],
                f"{statistics.fmean(row['cpu']):.3f}",
                f"{statistics.fmean(row['gpu']):.3f}",
                f"{row['difference']:+.4f}",
                f"{row['allowed']:.4f}",
                "yes" if row["is_within"] else "NO",
            ]
            for row in results
        ],
    )


def main() -> None:
    parser = gpu.arguments(__doc__, "gpu_parity.json")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--precisions", nargs="+", default=[""], help="of the GPU; '' is its default")
    parser.add_argument("--jobs", type=int, default=6, help="runs on the CPU at a time")
    parser.add_argument("--run", help="a job, in a process of its own")
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(json.loads(args.run))))
        return
    deadline, book = gpu.Deadline(args.minutes), gpu.Book(args.out, "gpu_parity", args.commit)
    seeds = args.seeds[:2] if args.quick or args.tiny else args.seeds
    rows: list[dict[str, Any]] = []
    waiting: list[Future[dict[str, Any]]] = []

    def jobs(where: str, precision: str) -> list[dict[str, Any]]:
        sizes = {"episodes": 20 if args.tiny else EPISODES}
        return [
            {"task": task, "seed": seed, "where": where, "precision": precision, "seconds": 0.0, **sizes}
            | {"device": "cpu" if where == "cpu" else args.device}
            | {"steps": 4096 if args.tiny else TASKS[task].steps}
            for task in args.tasks
            for seed in seeds
        ]

    def keep() -> None:
        book.write({"summary": summary(rows), "runs": rows})

    with ThreadPoolExecutor(args.jobs) as pool:
        waiting = [pool.submit(run_apart, job, deadline) for job in jobs("cpu", "")]
        for precision in args.precisions:
            for job in jobs("gpu", precision):
                rows.append(run_here(job, deadline))
                print(job["task"], job["seed"], precision, rows[-1].get("return", "FAILED"), flush=True)
                keep()
        for one in waiting:
            rows.append(one.result())
            keep()
    show(rows, summary(rows))


if __name__ == "__main__":
    main()
