"""Recommended settings: from the hardware or, for one env, from short measured trainings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from recollect.doctor.records import Case, Choice, Cpu, Gpu, Speed

SECONDS = 3.0
"""Seconds of one speed measurement."""
TASK = "position-cartpole"
"""The env if none is named."""
NUM_ENVS = 16
"""The default number of env slots."""
WORTH = 1.15
"""Speed-up over one process from which another runtime is recommended."""


def cores_of(cpu: Cpu) -> int:
    """Cores that a training may use, limited by a container's quota."""
    return cpu.usable if cpu.quota is None else max(1, min(cpu.usable, int(cpu.quota)))


def actors_for(cores: int) -> tuple[int, int]:
    """Actors in processes, one per core except the learner's, and env slots divisible by them."""
    if cores - 1 > NUM_ENVS:
        return cores - 1, 4 * (cores - 1)
    return max(n for n in (1, 2, 4, 8, NUM_ENVS) if n <= max(1, cores - 1)), NUM_ENVS


def workers_for(cores: int) -> dict[str, Any]:
    """Settings for env workers: two actors, each with workers for half of the cores."""
    return {"actors": 2, "env_workers": max(1, min(cores, NUM_ENVS) // 2)}


def choose(cpu: Cpu, gpus: Sequence[Gpu], ray: str | None = None) -> Choice:
    """Recommend settings from the hardware. The default is the CPU, because the networks are small."""
    cores = cores_of(cpu)
    flags = "" if cores == cpu.usable else f"--threads {cores}"
    actors, num_envs = actors_for(cores)
    more = f" --num-envs {num_envs}" if num_envs != NUM_ENVS else ""
    cases = [
        (
            True,
            "a built-in task, or a fast env",
            flags or "nothing to set",
            "one process steps all rows together, and the learner uses every core",
        ),
        (
            cores > 1,
            "a slow env (0.2 ms a step or more)",
            _flags(workers_for(cores)),
            "all cores step envs, half of the slots while the policy acts on the other half",
        ),
        (
            cores > 3,
            "a large policy, or many cores",
            f"--runtime processes --actors {actors}{more} --mode async",
            "one core learns while actors run on all others; the lag is bounded",
        ),
        (
            len(gpus) > 0,
            "a built-in task, or a large network",
            "--device cuda --num-envs 1024",
            "everything stays on the GPU, which needs many rows: with few rows the CPU is faster",
        ),
        (
            len(gpus) > 1,
            "a network that fills a GPU",
            f"--device cuda --learners {len(gpus)}",
            "each GPU learns from a shard of the rows; gradients are averaged",
        ),
        (
            ray is not None,
            "more machines than this one",
            "--runtime ray --ray-address auto",
            "the same actors, on a running Ray cluster",
        ),
    ]
    return Choice("cpu", cores, "inline", flags, [Case(*case) for applies, *case in cases if applies])


def try_out(env: str, cores: int, seconds: float = SECONDS) -> list[Speed]:
    """Measure the training speed on ``env`` with each runtime that could be faster here, inline first."""
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
    """Recommend the fastest of ``tried``, if it beats the inline runtime by ``WORTH``."""
    inline, best = tried[0], max(tried, key=lambda speed: speed.steps_per_second)
    gain = best.steps_per_second / inline.steps_per_second
    if best.flags and gain >= WORTH:
        flags = " ".join(filter(None, (choice.flags, best.flags)))
        runtime = "processes" if "--runtime processes" in best.flags else "inline"
        case = Case(inline.task, flags, f"measured {gain:.1f} times as fast as one process")
        return replace(choice, runtime=runtime, flags=flags, cases=[case])
    why = f"nothing was clearly faster; in one process the env takes {inline.env:.0%} of the time"
    if len(tried) == 1:
        why = "with one core, one process is fastest"
    return replace(choice, cases=[Case(inline.task, choice.flags or "nothing to set", why)])


def measure_speed(seconds: float = SECONDS, env: str = TASK, **settings: Any) -> Speed:
    """Train on ``env`` for about ``seconds``, after a warm-up update."""
    from recollect.agent import Agent
    from recollect.config.train import TrainConfig

    steps, seconds_in = 0, dict.fromkeys(("total", "env", "act", "learn"), 0.0)
    with Agent.create(env, TrainConfig().override(**settings)) as agent:
        agent.train(steps=1, progress=False)
        end, before, updates = time.monotonic() + seconds, agent.steps, 0
        while updates == 0 or time.monotonic() < end:
            metrics = agent.train(steps=1, progress=False)
            count = agent.steps - before
            before, updates = agent.steps, updates + 1
            steps += count
            for part in seconds_in:
                seconds_in[part] += count / metrics[f"speed/{part}"]
    total = seconds_in.pop("total")
    shares = {part: spent / total for part, spent in seconds_in.items()}
    return Speed(env, steps / total, **shares, updates=updates, flags=_flags(settings))


def _flags(settings: dict[str, Any]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in settings.items())
