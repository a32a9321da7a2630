"""Which cores and policies learn which memory tasks, and at what cost.

    python bench/memory.py --tasks repeat-previous delayed-cue-100 --seeds 0 1 2 --jobs 2
    python bench/memory.py --tasks forage --policies fast --cores lstm none --seeds 0 1 2
    python bench/memory.py --table bench/results/memory

Shows S004-17 and S002-16 (in the small: 1M steps). Every run is a process of its own with one thread and
writes one JSON: the greedy returns over 100 episodes every 25,000 steps (less often where episodes are long),
when the bar was first reached (the run ends there, unless ``--soak``), speed, and the memory used over time.
Settings are the task's preset. A run that is there already is not repeated, so that a table may be filled in
several sittings.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import common

from recollect.config.core_choice import known


@dataclass(frozen=True)
class World:
    """A task at one size, and when it counts as solved."""

    env: str
    bar: float | None
    """The mean greedy return that solves it; None: as far as it gets."""
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """Beside the preset."""
    eval_every: int = 25_000
    """Env steps between two looks, so that those take a small part of the time."""


WORLDS = {
    "repeat-previous": World("repeat-previous", 0.9),
    "delayed-cue-100": World("delayed-cue", 0.99, {"cues": 4, "horizon": 100}),
    "delayed-cue-1000": World("delayed-cue", 0.99, {"cues": 4, "horizon": 1000}, eval_every=100_000),
    "recall-3": World("associative-recall", 0.9, {"pairs": 3}),
    "recall-5": World("associative-recall", 0.9, {"pairs": 5}),
    "t-maze-250": World("t-maze", 0.95, {"length": 250}, eval_every=50_000),
    "copy-3": World("copy", 0.9, {"length": 3, "delay": 10}),
    "forage": World("forage", None),
}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one agent and look at it on the way."""
    import torch

    import recollect as rc

    torch.set_num_threads(1)
    world, looks = WORLDS[job["task"]], []

    class Look(rc.Callback):
        def on_evaluation(self, training: Any, evaluation: Any) -> None:
            looks.append([training.steps, round(evaluation.mean, 4), resident()])
            if not job["soak"] and world.bar is not None and evaluation.mean >= world.bar:
                training.stop("solved")

    settings = dict(world.settings) | {"core": job["core"]}
    if job["core"] == "none":
        settings["recurrent_mode"] = "none"
    if job["policy"]:
        settings["policy"] = job["policy"]
    if job["num_envs"]:
        settings["num_envs"] = job["num_envs"]
    began = time.perf_counter()
    agent = rc.train(
        world.env,
        steps=job["steps"],
        seed=job["seed"],
        env_kwargs=world.options,
        threads=1,
        device=job["device"],
        eval_every=world.eval_every,
        eval_mode="greedy",
        max_seconds=job["seconds"],
        progress=False,
        callbacks=[Look()],
        **settings,
    )
    seconds = time.perf_counter() - began
    final = agent.evaluate(episodes=200, seed=7, eval_mode="greedy")
    reached = next((steps for steps, mean, _ in looks if world.bar is not None and mean >= world.bar), None)
    return job | {
        "return": round(final.mean, 4),
        "interval": [round(x, 4) for x in final.interval],
        "best": max([mean for _, mean, _ in looks], default=None),
        "reached": reached,
        "trained": agent.steps,
        "seconds_used": round(seconds, 1),
        "steps_per_s": round(agent.steps / seconds),
        "weights": sum(p.numel() for p in agent.policy.parameters()),
        "curve": looks,
    }


def resident() -> float:
    """The resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def random_return(task: str, episodes: int = 300) -> float:
    """What an agent that chooses at random gets."""
    import numpy as np

    from recollect.base import spaces
    from recollect.tasks import make_task

    world, rng = WORLDS[task], np.random.default_rng(0)
    env = make_task(world.env, episodes, **world.options)
    env.reset(0)
    total, alive = np.zeros(episodes), np.ones(episodes, bool)
    while alive.any():
        step = env.step(spaces.sample(env.action_space, episodes, rng))
        total += step.reward.numpy() * alive
        alive &= ~(step.terminated | step.truncated).numpy()
    return float(total.mean())


def name_of(job: dict[str, Any]) -> str:
    network = f"{job['policy']}-{job['core']}" if job["policy"] else job["core"]
    return f"{job['task']}.{network}.{job['seed']}{'.soak' if job['soak'] else ''}"


def run_apart(job: dict[str, Any], folder: Path, deadline: float) -> None:
    """One run in a process of its own, if there is time left for it."""
    path = folder / f"{name_of(job)}.json"
    left = deadline - time.time()
    if path.exists() or left < 30:
        return
    job = job | {"seconds": min(job["seconds"], left)}
    command = [sys.executable, __file__, "--run", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name_of(job)}: FAILED {done.stderr[-2000:]}", flush=True)
        return
    row = json.loads(done.stdout.splitlines()[-1])
    path.write_text(json.dumps({"benchmark": "memory", **common.context(), "result": row}) + "\n")
    print(
        f"{name_of(job):44} {row['return']:8.3f} after {row['trained']:>9,} steps, "
        f"reached {row['reached']}, {row['seconds_used']:.0f} s, {row['steps_per_s']} steps/s",
        flush=True,
    )


def collect(folder: Path, out: Path) -> None:
    """All runs of the folder as one file: what the pages show."""
    files = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    machines = sorted(
        {
            ", ".join(
                filter(None, [file["cpu"], f"{file['cores']} cores", file["gpu"], f"torch {file['torch']}"])
            )
            for file in files
        }
    )
    commits = sorted({file["commit"] for file in files})
    rows = [file["result"] for file in files]
    text = ",\n".join(json.dumps(row) for row in rows)  # one line a run
    head = json.dumps({"benchmark": "memory", "machines": machines, "commits": commits}, indent=1)
    out.write_text(f'{head[:-2]},\n "results": [\n{text}\n]}}\n')
    json.loads(out.read_text())
    print(f"written to {out}: {len(rows)} runs")


def table(folder: Path) -> None:
    """Every run that is there, task by task."""
    rows = [json.loads(path.read_text())["result"] for path in sorted(folder.glob("*.json"))]
    for task in dict.fromkeys(row["task"] for row in rows):
        print(f"\n{task} (random {random_return(task):.3g})")
        mine = [row for row in rows if row["task"] == task]
        for network in dict.fromkeys((row["policy"], row["core"]) for row in mine):
            runs = [row for row in mine if (row["policy"], row["core"]) == network]
            reached = "  ".join(
                f"{row['return']:.3f} ({_k(row['reached'])}/{_k(row['trained'])})" for row in runs
            )
            name = "-".join(part for part in network if part)
            print(f"  {name:28} {reached}   {sum(r['steps_per_s'] for r in runs) // len(runs)} steps/s")


def _k(steps: int | None) -> str:
    return "-" if steps is None else f"{steps // 1000}k"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=["repeat-previous", "delayed-cue-100"], choices=WORLDS)
    parser.add_argument("--cores", nargs="+", default=[name for name in known if name != "none"])
    parser.add_argument("--policies", nargs="+", default=[None])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--num-envs", type=int)
    parser.add_argument("--seconds", type=float, default=3600.0, help="the longest that one run may take")
    parser.add_argument(
        "--deadline", type=float, default=1e9, help="seconds after which no run begins or goes on"
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--soak", action="store_true", help="go on to the end, solved or not")
    parser.add_argument("--out", type=Path, default=Path("bench/results/memory"))
    parser.add_argument("--table", type=Path, help="only print the results in this folder")
    parser.add_argument(
        "--collect", type=Path, metavar="FILE", help="only join the runs in --out to one file"
    )
    parser.add_argument("--run", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(json.loads(args.run))))
        return
    if args.collect:
        collect(args.out, args.collect)
        return
    if args.table:
        table(args.table)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    shared = {name: getattr(args, name) for name in ("steps", "num_envs", "seconds", "device", "soak")}
    jobs = [
        {"task": task, "core": core, "policy": policy, "seed": seed} | shared
        for seed in args.seeds
        for task in args.tasks
        for policy in args.policies
        for core in args.cores
    ]
    deadline = time.time() + args.deadline
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(lambda job: run_apart(job, args.out, deadline), jobs))
    table(args.out)


if __name__ == "__main__":
    main()
