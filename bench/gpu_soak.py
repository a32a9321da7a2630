"""Long runs on the GPU: every core on a memory task, and every token policy on forage (S002-16).

    python bench/gpu_soak.py --minutes 9
    python bench/gpu_soak.py --only window latent --seconds 300

10M steps each. Asked of a run: that no metric and no weight is ever NaN or infinite; that the GPU's memory
after a tenth of it is the most that it takes; that the training return does not collapse: the mean over the
last tenth is at least 90% of the best tenth. Several runs share the GPU, each a process of its own, so
that the speeds here are no measure of what one run reaches alone. A run that its time limit ends says how far
it came, and counts as not finished.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gpu_common as gpu
import torch

from recollect.config.core_choice import known
from recollect.config.policy import POLICIES

LARGE_POLICIES = ("latent_attn_med", "latent_attn_small")
STEPS, ROWS, ROLLOUT = 10_000_000, 4096, 32
CUE = {"task": "delayed-cue", "options": {"cues": 4, "horizon": 10}, "settings": {}}
FORAGE = {"task": "forage", "options": {}, "settings": {"gamma": 0.97, "entropy": 0.005}}
PARTS = {"latent_attn_tiny": 2, "fast": 2, "window": 2}
"""``accumulate`` of what takes much memory: several share one GPU."""
LARGE = {"num_envs": 1024, "epochs": 1, "minibatches": 8}
"""Settings of the large networks, for which an epoch takes long: as many optimiser steps on fewer rows."""
WINDOWS = 10
MAY_BE_NAN = ("state/drift",)
"""Metrics that are NaN where there is nothing to measure."""


def jobs(args: Any) -> list[dict[str, Any]]:
    """The long ones first, so that no process is left alone at the end."""
    tokens = [FORAGE | {"name": f"forage {name}", "policy": name, "core": "lstm"} for name in POLICIES]
    tokens.sort(key=lambda job: job["policy"] not in LARGE_POLICIES)
    cores = [CUE | {"name": f"delayed-cue {name}", "policy": None, "core": name} for name in known]
    cores.sort(key=lambda job: job["core"] not in ("window", "pmm", "stack", "mamba_gru", "mlstm", "mamba"))
    chosen = [*tokens, *cores]
    if args.only:
        chosen = [job for job in chosen if any(word in job["name"] for word in args.only)]
    elif args.quick or args.tiny:
        chosen = [
            job for job in chosen if job["policy"] in ("fast",) or job["core"] in ("gru", "none", "lru")
        ]
        chosen = chosen[:1] + [job for job in chosen[1:] if not job["policy"]]
    sizes = {"steps": STEPS, "rows": args.rows, "rollout": ROLLOUT, "device": args.device}
    if args.tiny:
        sizes |= {"steps": 4096, "rows": 16, "rollout": 16}
    return [job | sizes for job in chosen]


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one agent to the end, or to its deadline, and watch it."""
    device, began = job["device"], time.perf_counter()
    torch.set_num_threads(2)
    settings: dict[str, Any] = dict(job["settings"]) | {"core": job["core"], "num_envs": job["rows"]}
    if job["policy"]:
        settings["policy"] = job["policy"]
    if job["policy"] in LARGE_POLICIES:
        settings |= LARGE | {"num_envs": min(job["rows"], LARGE["num_envs"])}
    if job["core"] == "none":
        settings["recurrent_mode"] = "none"
    agent = gpu.make(
        job["task"],
        device=device,
        env_kwargs=job["options"],
        rollout=job["rollout"],
        chunk=job["rollout"],
        accumulate=PARTS.get(job["policy"] or job["core"], 1),
        target_episodes=1000,
        learning_rate=2e-3,
        **settings,
    )
    trainer = gpu.trainer_of(agent)
    trainer.begin(job["steps"])
    returns: list[list[float]] = []
    early, wrong, problem = None, "", ""
    first, started, begun = 0.0, time.perf_counter(), 0
    notes: list[str] = []
    with trainer.working():
        while not trainer.is_at_end and time.time() < job["deadline"]:
            try:
                iteration = trainer.iterate()
            except Exception as error:
                problem = gpu.failed(error)
                break
            if not first:
                gpu.sync(device)
                first, started, begun = time.perf_counter() - began, time.perf_counter(), trainer.steps
            notes += iteration.warnings
            metrics = iteration.metrics
            bad = [n for n, value in metrics.items() if n not in MAY_BE_NAN and not math.isfinite(value)]
            if bad and not wrong:
                wrong = f"{', '.join(bad)} at step {trainer.steps:,}"
            if "return" in metrics:
                returns.append([metrics["steps"], metrics["return"]])
            if early is None and trainer.steps >= job["steps"] / 10:
                early = gpu.gigabytes()
        gpu.sync(device)
    seconds = time.perf_counter() - started
    is_finite = all(bool(p.isfinite().all()) for p in agent.policy.parameters()) if not problem else None
    found = {
        "trained": trainer.steps,
        "is_finished": trainer.is_at_end,
        "error": problem or None,
        "not_finite": wrong or None,
        "are_weights_finite": is_finite,
        "gpu_gb_early": early,
        "gpu_gb_late": gpu.gigabytes(),
        "first_iteration_s": round(first, 1),
        "seconds": round(seconds, 1),
        "steps_per_s": round((trainer.steps - begun) / seconds),
        "notes": notes[:5],
    }
    return job | found | windows(returns, job["steps"])


def windows(returns: list[list[float]], steps: int) -> dict[str, Any]:
    """The mean return in every tenth of the planned steps, as far as it came."""
    parts: list[list[float]] = [[] for _ in range(WINDOWS)]
    for at, value in returns:
        parts[min(WINDOWS - 1, int(WINDOWS * (at - 1) / steps))].append(value)
    means = [sum(part) / len(part) for part in parts if part]
    if not means:
        return {"windows": [], "final": None, "best": None, "final_of_best": None}
    final, best = means[-1], max(means)
    return {
        "windows": [round(mean, 4) for mean in means],
        "final": round(final, 4),
        "best": round(best, 4),
        "final_of_best": round(final / best, 4) if best > 0 else None,
    }


def verdict(row: dict[str, Any]) -> str:
    """What is wrong with a run; "ok" if nothing is."""
    if row.get("error"):
        return f"FAILED: {row['error'][-80:]}"
    wrong = []
    if not row["is_finished"]:
        wrong.append(f"ended at {row['trained'] / 1e6:.1f}M by its time limit")
    if row["not_finite"] or not row["are_weights_finite"]:
        wrong.append(f"NOT FINITE: {row['not_finite']}")
    early, late = row["gpu_gb_early"], row["gpu_gb_late"]
    if early and late and late["used"] > 1.02 * early["used"]:
        wrong.append("MEMORY GREW")
    if row["final_of_best"] is not None and row["final_of_best"] < 0.9:
        wrong.append("COLLAPSED")
    return "; ".join(wrong) or "ok"


def run_apart(job: dict[str, Any], args: Any, deadline: gpu.Deadline) -> dict[str, Any]:
    """One run in a process of its own."""
    if deadline.left < 20 and not args.tiny:
        return job | {"error": "no time was left", "trained": 0, "final_of_best": None}
    until = min(deadline.at - 5, time.time() + args.seconds)
    command = [sys.executable, __file__, "--run", json.dumps(job | {"deadline": until})]
    # Beyond its deadline it may still compile its first iteration: that is cut off.
    try:
        limit = max(30.0, until - time.time() + 30)
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return job | {"error": "it did not end within its time", "trained": 0, "final_of_best": None}
    if done.returncode:
        return job | {"error": done.stderr[-2000:], "trained": 0, "final_of_best": None}
    return json.loads(done.stdout.splitlines()[-1])


def show(rows: list[dict[str, Any]]) -> None:
    """One line a run."""
    lines = []
    for row in rows:
        early, late = row.get("gpu_gb_early"), row.get("gpu_gb_late")
        lines.append(
            [
                row["name"],
                f"{row['trained'] / 1e6:.2f}M",
                f"{row.get('steps_per_s', 0) / 1e6:.3f}",
                "-" if row.get("final") is None else f"{row['final']:.3f}",
                "-" if row.get("best") is None else f"{row['best']:.3f}",
                "-" if row["final_of_best"] is None else f"{row['final_of_best']:.2f}",
                f"{early['used']:.2f} to {late['used']:.2f}" if early and late else "-",
                verdict(row),
            ]
        )
    gpu.table(["run", "steps", "M steps/s", "final", "best", "of best", "GPU GB", "verdict"], lines)


def main() -> None:
    parser = gpu.arguments(__doc__, "gpu_soak.json")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--only", nargs="+", default=[], help="runs whose name contains one of these")
    parser.add_argument("--jobs", type=int, default=6, help="processes side by side")
    parser.add_argument("--seconds", type=float, default=200.0, help="the longest that one run may take")
    parser.add_argument("--run", help="a job, in a process of its own")
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(json.loads(args.run))))
        return
    deadline, book, lock = (
        gpu.Deadline(args.minutes),
        gpu.Book(args.out, "gpu_soak", args.commit),
        threading.Lock(),
    )
    rows: list[dict[str, Any]] = []

    def one(job: dict[str, Any]) -> None:
        row = run_apart(job, args, deadline)
        with lock:
            rows.append(row | {"verdict": verdict(row)})
            book.write(rows)
            print(f"{row['name']}: {verdict(row)}", flush=True)

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(one, jobs(args)))
    show(rows)


if __name__ == "__main__":
    main()
