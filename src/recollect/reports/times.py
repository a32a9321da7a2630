"""Time shares of a run: the learner's by stage, and those of actors in other processes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recollect.display.state import ACTOR_PARTS
from recollect.reports.read_run import Folder
from recollect.reports.thinning import Row, column, curve, json_numbers, number, rounded

BARS = 120
"""Maximum columns of the time by stage."""
CURVES = {"slowest": "actors/slowest", "fastest": "actors/fastest", "lag": "lag", "lag_max": "lag/max"}


def gather_speed(folder: Folder) -> Row | None:
    """Steps per second, and the learner's time by stage.

    ``speed/x`` is steps per second of time spent in x, so its inverse is time per step. With actors in other
    processes, env and act are not stages of the learner.
    """
    rows = [row for row in folder.metrics if number(row.get("speed/total")) > 0]
    if not rows:
        return None
    names = dict.fromkeys(n for row in rows for n in row if n.startswith("speed/") and n != "speed/total")
    steps = _steps(rows)
    total = steps / column(rows, "speed/total")
    is_elsewhere = np.isfinite(column(rows, "speed/wait"))
    times = {}
    for name in names:
        speed, stage = column(rows, name), name.removeprefix("speed/")
        is_stage = (speed > 0) & ~(is_elsewhere & (stage in ("env", "act")))
        if is_stage.any():
            times[stage] = np.where(is_stage, steps / np.where(is_stage, speed, 1.0), 0.0)
    times["other"] = np.clip(total - sum(times.values()), 0.0, None)
    return {
        "total": curve(rows, column(rows, "speed/total")),
        "mean": rounded(float(steps.sum() / total.sum()), 4),
        **_bands(rows, times),
    }


def gather_runtime(folder: Folder) -> Row | None:
    """Time shares, speeds and lag of actors in other processes; None if there were none."""
    rows = [row for row in folder.metrics if number(row.get("time/env")) >= 0]
    if not rows:
        return None
    config = folder.config
    seconds = _steps(rows) / np.where(column(rows, "speed/total") > 0, column(rows, "speed/total"), 1.0)
    times = {part: np.nan_to_num(column(rows, f"time/{part}")) * seconds for part in ACTOR_PARTS}
    wait = column(rows, "speed/wait")
    waited = np.where(wait > 0, _steps(rows) / np.where(wait > 0, wait, 1.0), 0.0)
    return {
        **{name: config.get(name) for name in ("runtime", "mode", "actors", "env_workers", "learners")},
        **_bands(rows, times),
        **{name: curve(rows, column(rows, metric)) for name, metric in CURVES.items()},
        "waited": rounded(float(waited.sum() / max(seconds.sum(), 1e-9)), 4),
        "restarts": int(np.nan_to_num(column(rows, "restarts")).max()),
    }


def _steps(rows: list[Row]) -> np.ndarray:
    """Env steps of each update [N]."""
    return np.diff(column(rows, "steps"), prepend=0.0).clip(min=1.0)


def _bands(rows: list[Row], times: Mapping[str, np.ndarray]) -> Row:
    """The shares of ``times`` [N] over the whole run, and in at most ``BARS`` intervals."""
    edges = np.unique(np.linspace(0, len(rows), min(BARS, len(rows)) + 1).astype(int))
    whole = np.sum(list(times.values()))
    sums = {name: np.add.reduceat(time, edges[:-1]) for name, time in times.items()}
    per_bucket = np.sum(list(sums.values()), axis=0)
    ends = [rows[i - 1] for i in edges[1:]]
    return {
        "stages": list(times),
        "overall": [rounded(float(time.sum() / whole), 4) for time in times.values()],
        "steps": json_numbers(column(ends, "steps"), 12),
        "seconds": json_numbers(column(ends, "seconds"), 6),
        "shares": [json_numbers(sums[name] / per_bucket, 3) for name in times],
    }
