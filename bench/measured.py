"""One run of training, measured after it has warmed up."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import recollect as rc

TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
SHARES = ("time/env", "time/policy", "time/transport", "time/learner")


class Meter(rc.Callback):
    """Looks at the clocks after every update: the wall's, this process's, and those of its actors."""

    def __init__(self, warm: int):
        self._warm, self._began = warm, time.perf_counter()
        self._rows: list[tuple[float, float, list[float], dict[str, float]]] = []
        self._first = 0.0

    def on_iteration(self, training: Any, metrics: dict[str, float]) -> None:
        """After an update."""
        now = time.perf_counter()
        self._first = self._first or now - self._began
        pids = getattr(training._trainer.collector, "pids", [])
        self._rows.append((now, time.process_time(), [cpu_seconds(pid) for pid in pids], metrics))

    @property
    def result(self) -> dict[str, Any]:
        """Speeds and shares over all updates but the first few."""
        rows = self._rows[self._warm - 1 :]
        (began, cpu, actors, first), (ended, cpu_end, actors_end, last) = rows[0], rows[-1]
        updates, steps = len(rows) - 1, last["steps"] - first["steps"]
        found = {
            "steps_per_s": round(steps / (ended - began), 1),
            "first_update_after_s": round(self._first, 2),
            "updates": updates,
            "seconds_per_update": round((ended - began) / updates, 5),
            "learner_cpu_per_update": round((cpu_end - cpu) / updates, 5),
            "actors_cpu_per_update": round((sum(actors_end) - sum(actors)) / updates, 5),
            "lag": round(statistics.fmean(row[3]["lag"] for row in rows), 3),
            "lag_max": max(row[3]["lag/max"] for row in rows),
        }
        for name in ("learn", "wait", "env", "act"):
            if f"speed/{name}" in last:
                # From steps per second back to seconds.
                each = [row[3]["speed/total"] / row[3][f"speed/{name}"] for row in rows[1:]]
                found[f"{name}_share"] = round(statistics.fmean(each), 4)
        return found | {
            name: round(statistics.fmean(r[3][name] for r in rows), 4) for name in SHARES if name in last
        }


def run(env: Any, *, updates: int, warm: int = 3, **settings: Any) -> dict[str, Any]:
    """Train for so many updates and say how fast it went after the first ``warm``."""
    batch = settings.get("num_envs", 16) * settings.get("rollout", 128)
    meter = Meter(warm)
    agent = rc.train(env, steps=(updates + warm) * batch, progress=False, callbacks=[meter], **settings)
    agent.close()
    return meter.result


def cpu_seconds(pid: int) -> float:
    """What a process has used of the cores so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK


def middle(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The repetition with the median speed, and the spread of all."""
    ordered = sorted(results, key=lambda result: result["steps_per_s"])
    speeds = [result["steps_per_s"] for result in ordered]
    return ordered[len(ordered) // 2] | {"all_steps_per_s": speeds}


def busy(seconds: float = 2.0) -> float:
    """The share of the cores' time that others take now. Figures taken beside others say little."""

    def read() -> tuple[int, int]:
        ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(ticks), ticks[3] + ticks[4]  # all, and idle

    total, idle = read()
    time.sleep(seconds)
    total_end, idle_end = read()
    return round(1 - (idle_end - idle) / max(1, total_end - total), 3)
