"""What every core learns on the GPU where memory must reach far, and whether a healthy run is ever stopped.

    python bench/gpu_memory.py --jobs 10 --minutes 9
    python bench/gpu_memory.py --tasks cue-1000 --cores mamba mlstm mingru --precisions fp32 bf16
    python bench/gpu_memory.py --table          # the tables of docs/cores.md, from the stored results

Shows S004-17: a delayed cue over 1000 steps. The cores that are good at a task run with three seeds, the
others with one, each until a greedy evaluation of 256 episodes and a second one on others reach the bar, or
to the limit of steps or seconds. Several runs share the GPU, so that seconds are an upper bound of what a run
takes alone; they count training only, without evaluations and without the first iteration, in which kernels
are compiled. All runs keep the default tolerance: every deviation above it is replayed in float64, and
``stopped`` would hold the error. ``--replay`` also replays rollouts of the trained weights in every precision
and several lengths, whatever they deviate by; ``rollouts`` holds what part of the limits they use.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import gpu_common as gpu
import torch

from recollect.acting.actor import Actor
from recollect.algos.catalog import make_learner
from recollect.config.core_choice import known, reaching
from recollect.config.ppo import PPOConfig
from recollect.errors import RecollectError
from recollect.learning import deviation_evidence, diagnostics
from recollect.learning.deviation_check import Record
from recollect.tasks import make_task

EPISODES, EVALUATE_EVERY = 256, 3.0
PRECISIONS, LENGTHS = ("fp32", "tf32", "bf16"), (32, 256, 1002)


@dataclass(frozen=True)
class Goal:
    """A task, when it is solved, and the settings of all cores."""

    env: str
    options: dict[str, Any]
    bar: float
    settings: dict[str, Any]
    good: tuple[str, ...]
    """The cores that get three seeds."""
    worth_a_look: float
    """The training return from which on greedy evaluations are made."""
    steps: int = 20_000_000


STEADY = {
    "recurrent_mode": "full",
    "num_envs": 512,
    "minibatches": 8,
    "epochs": 4,
    "learning_rate_schedule": "constant",
    "entropy_schedule": "constant",
    "gauge_every": 0,
}
CUE = STEADY | {"learning_rate": 1e-3, "gamma": 0.9, "gae_lambda": 0.8, "entropy": 0.1}
AT_ONCE = STEADY | {"learning_rate": 2e-3, "gamma": 0.5, "gae_lambda": 0.5, "entropy": 0.003}
MAZE = STEADY | {"learning_rate": 1e-3, "gamma": 0.99, "gae_lambda": 0.95, "entropy": 0.03}
MEDIUM = {"size": "medium"}
GOALS = {
    "cue-1000": Goal(
        "delayed-cue", {"cues": 4, "horizon": 1000}, 0.99, CUE, ("mlstm", "mamba", "lru", "rtu"), 0.7
    ),
    "cue-1000-8": Goal("delayed-cue", {"cues": 8, "horizon": 1000}, 0.99, CUE, ("mlstm",), 0.7),
    "previous-32": Goal("repeat-previous", MEDIUM, 0.9, AT_ONCE, ("window", "lru", "rtu", "lstm"), 0.8),
    "first-416": Goal("repeat-first", MEDIUM, 0.9, AT_ONCE, ("mingru", "gru", "mamba", "lstm"), 0.8),
    "t-maze-250": Goal("t-maze", {"length": 250}, 0.95, MAZE, ("lstm", "gru", "mlstm", "slstm"), 0.4),
}
EXAMINE = deviation_evidence.examine
TINY = {"num_envs": 8, "minibatches": 2, "epochs": 1}


def jobs(args: Any) -> list[dict[str, Any]]:
    """The good cores first, so that what time cuts off is the rest."""
    found = []
    for task in args.tasks:
        goal = GOALS[task]
        for core in args.cores or (goal.good if len(goal.good) == 1 else known):
            if core == "none":
                continue
            seeds = args.seeds if core in goal.good else args.seeds[:1]
            for precision in args.precisions:
                found += [
                    {"task": task, "core": core, "seed": seed, "precision": precision} for seed in seeds
                ]
    found.sort(key=lambda job: job["core"] not in GOALS[job["task"]].good)
    extra = {"device": args.device, "tiny": args.tiny, "seconds": args.seconds, "replay": args.replay}
    return [job | extra for job in found]


class Replays:
    """Counts the replays of a run, and keeps the largest excess over what rounding explains."""

    def __init__(self) -> None:
        self.count, self.excess = 0, 0.0
        deviation_evidence.examine = self

    def __call__(self, *args: Any, **kwargs: Any) -> list[deviation_evidence.Finding]:
        findings = EXAMINE(*args, **kwargs)
        self.count, self.excess = self.count + 1, max([self.excess, *(found.excess for found in findings)])
        return findings


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train until it is solved, or to a limit."""
    goal, device, replays = GOALS[job["task"]], job["device"], Replays()
    torch.set_num_threads(2)
    task = make_task(goal.env, 1, **goal.options)
    given = goal.settings | {"rollout": task.max_episode_steps, "core": reaching(job["core"], task.horizon)}
    given |= {"precision": job["precision"], "seed": job["seed"]} | (TINY if job["tiny"] else {})
    episodes, limit = (8, 2 * task.max_episode_steps * 8) if job["tiny"] else (EPISODES, goal.steps)
    agent = gpu.make(goal.env, device=device, env_kwargs=goal.options, target_episodes=512, **given)
    trainer = gpu.trainer_of(agent)
    trainer.begin(limit)
    seconds, looked, solved, stopped, best = 0.0, 0.0, None, None, -torch.inf
    deviation = 0.0
    with trainer.working():
        while not trainer.is_at_end and seconds < job["seconds"] and time.time() < job["deadline"]:
            started, is_first = gpu.now(device), trainer.steps == 0
            try:
                metrics = trainer.iterate().metrics
            except RecollectError as error:
                stopped = f"{type(error).__name__}: {error}"
                break
            seconds += 0.0 if is_first else gpu.now(device) - started
            deviation = max(deviation, metrics.get("deviation/log_prob", 0.0))
            best = max(best, metrics.get("return", best))
            is_good = metrics.get("return", -torch.inf) >= goal.worth_a_look
            if is_good and seconds - looked >= EVALUATE_EVERY:
                looked = seconds
                seeds = (10**6 + trainer.steps, 2 * 10**6 + trainer.steps)
                if all(_greedy(agent, episodes, seed) >= goal.bar for seed in seeds):
                    solved = round(seconds, 1)
                    break
    found = rollouts(agent, goal, device) if job["replay"] and not stopped else None
    return job | {
        "rollouts": found,
        "solved_after_s": solved,
        "seconds": round(seconds, 1),
        "steps": trainer.steps,
        "return": round(_greedy(agent, episodes, 3 * 10**6), 4),
        "best_in_training": round(best, 4),
        "updates": trainer.learner.updates,
        "deviation": deviation,
        "replays": replays.count,
        "excess": round(replays.excess, 3),
        "stopped": stopped,
    }


def rollouts(agent: Any, goal: Goal, device: str) -> dict[str, float | str]:
    """What part of its limits a replay of a rollout of the trained weights uses: below 1 it is rounding."""
    found: dict[str, float | str] = {}
    for precision, length in product(PRECISIONS, LENGTHS):
        policy, replays = copy.deepcopy(agent.policy), Replays()
        policy.config = replace(policy.config, precision=precision)
        env = make_task(goal.env, 64, device, cues=goal.options["cues"], horizon=length - 2)
        actor = Actor(env, policy, rollout=length, state_steps=(0,), seed=7)
        learner = make_learner(policy, PPOConfig(rollout=length, recurrent_mode="full"))
        record = Record(actor.collect(), {}, 0)
        sizes = {"value/max": record.rollout.record["value"].abs().max()}
        numbers = diagnostics.read(learner.deviation_check.deviation(record) | sizes)
        try:
            learner.deviation_check.settle(numbers, record)
            found[f"{precision}-{length}"] = round(replays.excess, 3)
        except RecollectError as error:
            found[f"{precision}-{length}"] = str(error)
    return found


def _greedy(agent: Any, episodes: int, seed: int) -> float:
    return agent.evaluate(episodes, num_envs=episodes, seed=seed).mean


def run_apart(job: dict[str, Any], deadline: gpu.Deadline) -> dict[str, Any]:
    """One run in a process of its own."""
    if deadline.left < 30:
        return job | {"error": "no time was left"}
    command = [sys.executable, __file__, "--run", json.dumps(job | {"deadline": deadline.at - 15})]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadline.left, check=False)
    except subprocess.TimeoutExpired:
        return job | {"error": "it did not end within its time"}
    if done.returncode:
        return job | {"error": done.stderr[-1500:]}
    return json.loads(done.stdout.splitlines()[-1])


def outcome(row: dict[str, Any]) -> str:
    """One run in a few words."""
    if "error" in row or row["stopped"]:
        return f"FAILED: {(row.get('error') or row['stopped'])[-300:]}"
    how = "not solved" if row["solved_after_s"] is None else f"solved after {row['solved_after_s']} s"
    return (
        f"{how}, {row['steps'] / 1e6:.1f}M steps, {row['return']} ({row['seconds']} s), deviation "
        f"{row['deviation']:.1e}, {row['replays']} replays, excess {row['excess']}"
    )


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: cores by tasks; one entry a seed, bold where the bar was reached."""
    tasks = [task for task in GOALS if any(row["task"] == task for row in rows)]
    lines = [
        "| core | " + " | ".join(f"`{task}`" for task in tasks) + " |",
        "|" + " --- |" * (len(tasks) + 1),
    ]
    for core in known:
        cells = []
        for task in tasks:
            mine = [row for row in rows if (row["task"], row["core"]) == (task, core) and "error" not in row]
            cells.append("<br>".join(_cell(row) for row in sorted(mine, key=lambda row: row["seed"])) or "–")
        if set(cells) != {"–"}:
            lines.append(f"| `{core}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    text = f"{row['return']:.2f} ({row['steps'] / 1e6:.1f}M, {row['seconds']:.0f} s)"
    return f"**{text}**" if row["solved_after_s"] is not None else text


def main() -> None:
    parser = gpu.arguments(__doc__, "gpu_memory.json")
    parser.add_argument("--tasks", nargs="+", choices=GOALS, default=list(GOALS))
    parser.add_argument("--cores", nargs="+", choices=list(known), default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--precisions", nargs="+", default=["tf32"])
    parser.add_argument("--jobs", type=int, default=10, help="processes side by side")
    parser.add_argument("--seconds", type=float, default=90.0, help="the longest that one run may train")
    parser.add_argument("--replay", action="store_true", help="replay rollouts of the trained weights, too")
    parser.add_argument("--table", action="store_true", help="print what was measured as Markdown")
    parser.add_argument("--run", help="a job, in a process of its own")
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(json.loads(args.run))))
        return
    book, lock = gpu.Book(args.out, "gpu_memory", args.commit), threading.Lock()
    rows: list[dict[str, Any]] = book.read() or []
    if args.table:
        print(table([row for row in rows if row["precision"] == "tf32"]))
        return
    deadline = gpu.Deadline(args.minutes)

    def one(job: dict[str, Any]) -> None:
        row = run_apart(job, deadline) | {"side_by_side": args.jobs}
        with lock:
            rows.append({name: value for name, value in row.items() if name not in ("tiny", "deadline")})
            book.write(rows)
            print(
                f"{job['task']} {job['core']} {job['precision']} seed {job['seed']}: {outcome(row)}",
                flush=True,
            )

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(one, jobs(args)))


if __name__ == "__main__":
    main()
