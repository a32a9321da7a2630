"""R2D2 that lives on a GPU, beside PPO: env steps and optimiser steps per second, and where the time goes.

    python bench/gpu_replay.py --minutes 3 --out bench/results/gpu_replay.json

An LSTM of 128 on a built-in task, 4,096 rows. PPO makes 4 epochs of 4 minibatches from rollouts of 64 steps;
R2D2 collects rollouts of 20 steps and learns from sequences of 10 + 20 + 3 steps, 1,024 in an optimiser
step, at several replay ratios. Rounds alternate; every figure is the median of its rounds. The profile lists
the operations of R2D2's iteration by their time on the device, and the time in which the device idles.
"""

from __future__ import annotations

import statistics
from typing import Any

import gpu_common as gpu
import torch

TASK = "position-cartpole"
ROUNDS = 3
PPO = {"algo": "ppo", "rollout": 64, "chunk": 64, "epochs": 4, "minibatches": 4}
R2D2 = {"algo": "r2d2", "rollout": 20, "chunk": 20, "burn_in_steps": 10, "batch": 1024, "replay_warmup": 0}
CASES: dict[str, dict[str, Any]] = {
    "PPO": PPO,
    "R2D2, replay ratio 0.5": R2D2 | {"replay_ratio": 0.5},
    "R2D2, replay ratio 1": R2D2 | {"replay_ratio": 1.0},
    "R2D2, replay ratio 4": R2D2 | {"replay_ratio": 4.0},
}


def profile(trainer: Any, device: str) -> list[dict[str, Any]]:
    """The operations of two iterations by time on the device, the longest first."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as found:
        gpu.iterate(trainer, 2, device)
    kind = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    events = sorted(found.key_averages(), key=lambda event: -getattr(event, kind))
    total = sum(getattr(event, kind) for event in events)
    return [
        {
            "name": event.key[:80],
            "calls": event.count,
            "share": round(getattr(event, kind) / max(total, 1), 3),
        }
        for event in events[:15]
    ]


def main() -> None:
    parser = gpu.arguments(__doc__, "gpu_replay.json")
    args = parser.parse_args()
    deadline, book = gpu.Deadline(args.minutes), gpu.Book(args.out, "gpu_replay", args.commit)
    rows, hidden = (16, 16) if args.tiny else (4096, 128)
    agents = {}
    for name, settings in CASES.items():
        own = settings | ({"batch": 8} if args.tiny and "batch" in settings else {})
        if "batch" in own:
            own["replay_capacity"] = rows * 500
        agents[name] = gpu.make(
            TASK, device=args.device, num_envs=rows, core=gpu.core("lstm", hidden), precision="tf32", **own
        )
    trainers = {name: gpu.trainer_of(agent) for name, agent in agents.items()}
    found: dict[str, dict[str, list[float]]] = {name: {"steps": [], "gradients": []} for name in CASES}
    for trainer in trainers.values():
        trainer.begin(10**12)
        with trainer.working():
            gpu.iterate(trainer, 2 if args.tiny else 12, args.device)
    for _ in range(ROUNDS):
        for name, trainer in trainers.items():
            if deadline.is_over:
                break
            count = 2 if args.tiny else 20
            with trainer.working():
                before = trainer.steps
                made, seconds = 0.0, 0.0
                for _ in range(count):
                    began = gpu.now(args.device)
                    made += trainer.iterate().metrics["minibatches"]
                    seconds += gpu.now(args.device) - began
            found[name]["steps"].append((trainer.steps - before) / seconds)
            found[name]["gradients"].append(made / seconds)
    results: list[dict[str, Any]] = []
    for name, trainer in trainers.items():
        with trainer.working():
            split = gpu.parts(trainer, 3, args.device)
            where = profile(trainer, args.device) if name == "R2D2, replay ratio 1" else None
        results.append(
            {
                "name": name,
                "steps_per_s": round(statistics.median(found[name]["steps"])),
                "optimiser_steps_per_s": round(statistics.median(found[name]["gradients"]), 1),
                "parts_ms": {part: round(1e3 * value, 2) for part, value in split.items()},
                "profile": where,
            }
        )
        book.write(results)
    gpu.table(
        ["case", "steps/s", "optimiser steps/s", "acting ms", "update ms"],
        [
            [
                row["name"],
                f"{row['steps_per_s']:,}",
                f"{row['optimiser_steps_per_s']:,}",
                *(f"{row['parts_ms'].get(part, 0):.2f}" for part in ("acting", "update")),
            ]
            for row in results
        ],
    )
    for event in next(row["profile"] for row in results if row["profile"]):
        print(f"{event['share']:6.1%}  {event['calls']:6}  {event['name']}")
    for agent in agents.values():
        agent.close()


if __name__ == "__main__":
    main()
