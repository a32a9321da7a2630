"""What a training would best use here: by what the machine has, or, for one env, by trying it out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from recollect.doctor.records import Case, Choice, Cpu, Gpu, Speed

SECONDS = 3.0
"""How long a speed is measured."""
TASK = "position-cartpole"
"""What is trained if no env is named."""
NUM_ENVS = 16
"""Env slots of a training that sets nothing."""
WORTH = 1.15
"""How much faster than everything in one process another runtime must be to be chosen."""


def cores_of(cpu: Cpu) -> int:
    """Cores' worth of time that a training may use."""
    return cpu.usable if cpu.quota is None else max(1, min(cpu.usable, int(cpu.quota)))


def actors_for(cores: int) -> tuple[int, int]:
    """Actors in processes, and env slots that can be split over them: all cores but the learner's."""
    if cores - 1 > NUM_ENVS:
        return cores - 1, 4 * (cores - 1)
    return max(n for n in (1, 2, 4, 8, NUM_ENVS) if n <= max(1, cores - 1)), NUM_ENVS


def workers_for(cores: int) -> dict[str, Any]:
    """Two halves of the slots, each with workers for half of the cores."""
    return {"actors": 2, "env_workers": max(1, min(cores, NUM_ENVS) // 2)}


def choose(cpu: Cpu, gpus: Sequence[Gpu], ray: str | None = None) -> Choice:
    """By what the machine has. A GPU is not the first choice: the networks are small."""
    cores = cores_of(cpu)
    threads = [] if cores == cpu.usable else [f"--threads {cores}"]
    cases = [
        Case(
            "a built-in task, or a fast env",
            " ".join(threads) or "nothing to set",
            "one process steps all rows together, and the learner uses every core",
        )
    ]
    if cores > 1:
        cases.append(
            Case(
                "a slow env (0.2 ms a step or more)",
                _flags(workers_for(cores)),
                "its slots are stepped on all cores, half of them while the policy acts on the others",
            )
        )
    if cores > 3:
        actors, num_envs = actors_for(cores)
        more = f" --num-envs {num_envs}" if num_envs != NUM_ENVS else ""
        cases.append(
            Case(
                "a large policy, or many cores",
                f"--runtime processes --actors {actors}{more} --mode async",
                "an actor on every core but one, which learns meanwhile; the lag stays bounded",
            )
        )
    if gpus:
        cases.append(
            Case(
                "a built-in task, or a large network",
                "--device cuda --num-envs 1024",
                "everything stays on the GPU, which needs many rows: with few the CPU is faster",
            )
        )
    if len(gpus) > 1:
        cases.append(
            Case(
                "a network that fills a GPU",
                f"--device cuda --learners {len(gpus)}",
                "each GPU learns from its share of the rows, and all make the same step",
            )
        )
    if ray is not None:
        cases.append(
            Case(
                "more machines than this one",
                "--runtime ray --ray-address auto",
                "the same actors, on a Ray cluster that runs already",
            )
        )
    return Choice("cpu", cores, "inline", " ".join(threads), cases=cases)


def try_out(env: str, cores: int, seconds: float = SECONDS) -> list[Speed]:
    """Train on ``env`` for a few seconds with each of the runtimes that could pay here, inline first."""
    from recollect.envs.factory import makes_batches, resolved

    tried: list[dict[str, Any]] = [{}]
    if cores > 1:
        actors, num_envs = actors_for(cores)
        slots = {} if num_envs == NUM_ENVS else {"num_envs": num_envs}
        if not makes_batches(resolved(env)):
            tried.append(workers_for(cores))
        tried.append({"runtime": "processes", "actors": max(2, actors), **slots, "mode": "async"})
    return [measure_speed(seconds, env=env, **settings) for settings in tried]


def choose_by(choice: Choice, tried: Sequence[Speed]) -> Choice:
    """The fastest of those that were tried, if it is worth it."""
    inline, best = tried[0], max(tried, key=lambda speed: speed.steps_per_second)
    gain = best.steps_per_second / inline.steps_per_second
    if best.flags and gain >= WORTH:
        flags = " ".join(filter(None, (choice.flags, best.flags)))
        runtime = "processes" if "--runtime processes" in best.flags else "inline"
        case = Case(inline.task, flags, f"{gain:.1f} times as fast as one process, as measured just now")
        return replace(choice, runtime=runtime, flags=flags, cases=[case])
    why = f"nothing was clearly faster; in one process the env takes {inline.env:.0%} of the time"
    if len(tried) == 1:
        why = "with one core there is nothing to share"
    return replace(choice, cases=[Case(inline.task, choice.flags or "nothing to set", why)])


def measure_speed(seconds: float = SECONDS, env: str = TASK, **settings: Any) -> Speed:
    """Train on ``env`` for about ``seconds``, after an update to warm up."""
    from recollect.agent import Agent
    from recollect.config.train import TrainConfig

    totals = {"steps": 0.0, "total": 0.0, "env": 0.0, "act": 0.0, "learn": 0.0}
    with Agent.create(env, TrainConfig().override(**settings)) as agent:
        agent.train(steps=1, progress=False)
        end, before, updates = time.monotonic() + seconds, agent.steps, 0
        while updates == 0 or time.monotonic() < end:
            metrics = agent.train(steps=1, progress=False)
            count = agent.steps - before
            before, updates = agent.steps, updates + 1
            totals["steps"] += count
            for part in ("total", "env", "act", "learn"):
                totals[part] += count / metrics[f"speed/{part}"]
    shares = {part: totals[part] / totals["total"] for part in ("env", "act", "learn")}
    speed = totals["steps"] / totals["total"]
    return Speed(env, speed, **shares, updates=updates, flags=_flags(settings))


def _flags(settings: dict[str, Any]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in settings.items())
