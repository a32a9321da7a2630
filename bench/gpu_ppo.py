"""Env steps per second of PPO that lives on the GPU, learning included.

    python bench/gpu_ppo.py --quick
    python bench/gpu_ppo.py --minutes 8 --out bench/results/gpu_ppo.json

Rollouts of 64 steps, 4 epochs of 4 minibatches, an LSTM or GRU of 128, tasks that are computed on the
device. The first iterations compile and capture: their seconds are reported apart. Then at least 20
iterations are timed with the wall clock; the device is waited for at the two ends only. ``steps_per_s`` is
all their steps over all their time, ``median`` and ``quartiles`` are of single iterations. After that a few
more iterations, which wait at every border, say how the time is shared between acting and the update.

What a speed is compared with: our bars, what a JAX program reached with as many rows, and the ceilings,
which are acting alone and cuDNN's LSTM alone, trained on as many steps.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import gpu_common as gpu

ROLLOUT, EPOCHS, MINIBATCHES, HIDDEN = 64, 4, 4, 128
BARS = {16_384: 10e6, 4096: 4e6}
"""Steps per second that we want, by rows."""
JAX = {16_384: 3.9e6, 4096: 2.2e6}
"""Steps per second of a JAX program with as many rows on the same GPU."""
ACTING = 115e6
"""Steps per second of acting alone."""
TRAINING = {"bf16": 55e6, "tf32": 21.5e6, "fp32": 21.5e6}
"""Steps per second that cuDNN's LSTM trains on, one epoch."""
WARM, PARTS = 5, 5


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    task: str
    core: str
    rows: int
    precision: str
    graphs: bool = True

    @property
    def name(self) -> str:
        return f"{self.task} {self.core} {self.rows} {self.precision}{'' if self.graphs else ' no graphs'}"


def cases(quick: bool, tiny: bool) -> list[Case]:
    """The most important first, in case the time is short."""
    if tiny:
        return [
            Case("position-cartpole", "lstm", 16, "tf32"),
            Case("repeat-previous", "gru", 8, "bf16", graphs=False),
        ]
    poles, suits = "position-cartpole", "repeat-previous"
    first = [
        Case(poles, core, 16_384, precision) for precision in ("tf32", "bf16") for core in ("lstm", "gru")
    ]
    first += [Case(suits, "lstm", 16_384, "tf32"), Case(poles, "lstm", 4096, "tf32")]
    if quick:
        return first
    apart = [Case(poles, "lstm", 16_384, "fp32"), Case(poles, "lstm", 16_384, "tf32", graphs=False)]
    rest = [
        Case(task, core, rows, precision)
        for rows, task, core, precision in product(
            (4096, 16_384, 1024), (poles, suits), ("lstm", "gru"), ("tf32", "bf16")
        )
    ]
    return [*first, *apart, *(case for case in rest if case not in first)]


def measure(case: Case, args: Any, deadline: gpu.Deadline) -> dict[str, Any]:
    """Warm up, time, and look at the parts."""
    device = args.device
    rollout, hidden = (8, 16) if args.tiny else (ROLLOUT, HIDDEN)
    notes: list[str] = []
    began = time.perf_counter()
    agent = gpu.make(
        case.task,
        device=device,
        num_envs=case.rows,
        rollout=rollout,
        chunk=args.chunk if args.chunk < rollout else rollout,
        epochs=EPOCHS,
        minibatches=MINIBATCHES,
        core=gpu.core(case.core, hidden),
        precision=case.precision,
        graphs=case.graphs,
    )
    try:
        trainer = gpu.trainer_of(agent)
        trainer.begin(10**12)
        with trainer.working():
            warming = gpu.iterate(trainer, WARM, device, notes=notes)
            warm = time.perf_counter() - began
            before = trainer.steps
            count = 3 if args.tiny else args.iterations
            seconds = gpu.iterate(trainer, count, device, deadline=deadline, notes=notes)
            steps = (trainer.steps - before) / len(seconds)
            memory = gpu.gigabytes()
            split = gpu.parts(trainer, 2 if args.tiny else PARTS, device)
            counted = trainer.iterate().metrics
    finally:
        agent.close()
    speeds = sorted(steps / value for value in seconds)
    low, middle, high = statistics.quantiles(speeds, n=4) if len(speeds) > 1 else 3 * speeds
    row = asdict(case) | {
        "name": case.name,
        "warm_s": round(warm, 2),
        "start_s": counted.get("start_seconds"),
        "warm_iterations_s": [round(value, 3) for value in warming],
        "iterations": len(seconds),
        "steps_per_iteration": steps,
        "steps_per_s": round(len(seconds) * steps / sum(seconds)),
        "median": round(middle),
        "quartiles": [round(low), round(high)],
        "slowest": round(speeds[0]),
        "gpu_gb": memory,
        "parts_ms": {name: round(1e3 * value, 3) for name, value in split.items()},
        "speeds": {name: round(value) for name, value in counted.items() if name.startswith("speed/")},
        "notes": notes,
        "deviation": {name: value for name, value in counted.items() if name.startswith("deviation/")},
    }
    return row | compared(row, split, steps)


def compared(row: dict[str, Any], split: dict[str, float], steps: float) -> dict[str, Any]:
    """The speed, and those of its parts, as shares of bars and ceilings."""
    speed, rows = row["steps_per_s"], row["rows"]
    training = TRAINING[row["precision"]]
    both = 1 / (1 / ACTING + EPOCHS / training)
    found: dict[str, Any] = {"of_ceilings": round(speed / both, 3)}
    if rows in BARS:
        found |= {"of_bar": round(speed / BARS[rows], 3), "of_jax": round(speed / JAX[rows], 3)}
    if "acting" in split:
        acted = steps / split["acting"]
        found |= {"acting_steps_per_s": round(acted), "of_acting_ceiling": round(acted / ACTING, 3)}
    if "update" in split:
        trained = EPOCHS * steps / split["update"]
        found |= {
            "trained_steps_per_s_and_epoch": round(trained),
            "of_training_ceiling": round(trained / training, 3),
        }
    return found


def show(rows: list[dict[str, Any]]) -> None:
    """The table."""
    heads = ["case", "M steps/s", "median", "quartiles", "of bar", "of JAX", "of ceilings"]
    heads += ["acting M/s", "trained M/s", "warm s", "GB"]
    lines = []
    for row in rows:
        if "error" in row:
            lines.append([row["name"], "FAILED: " + row["error"][:60], *[""] * (len(heads) - 2)])
            continue
        lines.append(
            [
                row["name"],
                millions(row["steps_per_s"]),
                millions(row["median"]),
                " to ".join(millions(value) for value in row["quartiles"]),
                f"{row['of_bar']:.2f}" if "of_bar" in row else "-",
                f"{row['of_jax']:.2f}" if "of_jax" in row else "-",
                f"{row['of_ceilings']:.2f}",
                millions(row.get("acting_steps_per_s")),
                millions(row.get("trained_steps_per_s_and_epoch")),
                f"{row['warm_s']:.1f}",
                "-" if row["gpu_gb"] is None else f"{row['gpu_gb']['used']:.1f}",
            ]
        )
    gpu.table(heads, lines)


def millions(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e6:.2f}"


def main() -> None:
    parser = gpu.arguments(__doc__, "gpu_ppo.json")
    parser.add_argument("--iterations", type=int, default=24, help="that are timed, of each case")
    parser.add_argument("--chunk", type=int, default=ROLLOUT, help="steps that gradients flow through")
    parser.add_argument("--only", default="", help="only the cases whose name contains all these words")
    parser.add_argument("--begin", type=int, default=0, help="go on with this case, and keep what is there")
    args = parser.parse_args()
    deadline, book = gpu.Deadline(args.minutes), gpu.Book(args.out, "gpu_ppo", args.commit)
    chosen = [c for c in cases(args.quick, args.tiny) if set(args.only.split()) <= set(c.name.split())]
    rows: list[dict[str, Any]] = (book.read() or []) if args.begin else []
    for index, case in enumerate(chosen[args.begin :], args.begin):
        if deadline.is_over:
            print(f"no time left for {len(chosen) - index} cases, from {case.name} on")
            break
        if not (args.tiny or gpu.is_precision(case.precision)):
            print(f"{case.name}: there is no precision {case.precision}")
            continue
        print(case.name, end=": ", flush=True)
        row: dict[str, Any]
        try:
            row = measure(case, args, deadline)
        except Exception as error:
            row = asdict(case) | {"name": case.name, "error": gpu.failed(error)}
        print(f"{millions(row.get('steps_per_s'))} M steps/s", *row.get("notes", []), sep="\n  ", flush=True)
        rows.append(row)
        book.write(rows)
        if "CUDA error" in row.get("error", ""):  # nothing works in this process any more
            raise SystemExit(anew(args, index + 1, deadline))
        gpu.clear()
    show(rows)


def anew(args: Any, begin: int, deadline: gpu.Deadline) -> int:
    """Go on with the next case in a fresh process."""
    command = [sys.executable, *sys.argv, "--begin", str(begin), "--minutes", f"{deadline.left / 60:.2f}"]
    return subprocess.call(command)


if __name__ == "__main__":
    main()
