"""Gathers the data of one run's report as JSON; ``assets`` holds its layout."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from recollect.base.formatting import plural
from recollect.display.closing_summary import REASONS
from recollect.learning.diagnostics import DEVIATION, size_names
from recollect.reports.configs import config_rows
from recollect.reports.episodes import read_episodes
from recollect.reports.league import gather_league
from recollect.reports.play_episodes import is_outdated, outdated_episodes, read_lengths
from recollect.reports.read_run import Folder
from recollect.reports.task_facts import action_words, known_task, levels, memory_lengths
from recollect.reports.thinning import Row, column, curve, json_numbers, mapping, number, rounded
from recollect.reports.times import gather_runtime, gather_speed
from recollect.tasks import Task
from recollect.training.evaluation_rows import in_mode, mode_of
from recollect.training.gauges import GAUGES, Judged, deviation_gauge, judge
from recollect.training.metrics import meaning
from recollect.training.return_trend import ReturnTrend

SMALL = 240
"""Maximum points of a small curve."""
EVENTS = 400
"""Maximum events shown."""


def gather_run(folder: Folder, notes: list[str]) -> Row:
    """The data of one run's report; ``notes``: sentences on what could not be played."""
    task = known_task(folder.env, folder.env_kwargs)
    gauges, others = _diagnostics(folder)
    outdated = outdated_episodes(folder)
    episodes, problems = read_episodes(folder.path / "episodes", outdated)
    if outdated:
        problems.append("Episodes of checkpoints that a resume has since deleted are left out.")
    return {
        "kind": "run",
        "run": header(folder),
        "levels": {name: rounded(level) for name, level in levels(task).items()},
        "returns": curve(folder.metrics, column(folder.metrics, "return")),
        "evaluations": evaluations(folder),
        "league": gather_league(folder.path, folder.steps),
        "gauges": gauges,
        "others": others,
        "episodes": episodes,
        "actions": action_words(task),
        "episode_notes": problems + ([] if episodes else notes),
        "lengths": _lengths(folder),
        "length_notes": _length_notes(task, notes),
        "speed": gather_speed(folder),
        "runtime": gather_runtime(folder),
        "events": _events(folder),
        "advice": _advice(folder, gauges),
        "config": config_rows(folder.config, folder.preset),
        "problems": folder.problems,
    }


def header(folder: Folder) -> Row:
    """Name, env, state and results of a run."""
    about, status = folder.description, folder.status
    last = folder.metrics[-1] if folder.metrics else {}
    returns = column(folder.metrics, "return")
    returns = returns[np.isfinite(returns)]
    reason = str(status.get("reason") or "")
    return {
        "name": folder.name,
        "env": folder.env,
        "env_kwargs": folder.env_kwargs,
        "state": str(status.get("state") or "unknown"),
        "reason": REASONS.get(reason, ("", reason.removeprefix("error: ")))[1],
        "planned": _whole(status.get("end")) or _whole(folder.config.get("steps")),
        "steps": folder.steps,
        "updates": _whole(status.get("updates", last.get("updates"))),
        "episodes": _whole(status.get("episodes", last.get("episodes"))),
        "seconds": rounded(number(status.get("seconds", last.get("seconds")))),
        "return": rounded(float(returns[-1]), 4) if len(returns) else None,
        "evaluation": _final_evaluation(folder),
        "best": _best(status.get("best")),
        "seed": folder.config.get("seed"),
        "versions": mapping(about.get("versions")),
        "git": mapping(about.get("git")) or None,
        "machine": mapping(about.get("machine")),
        "started": about.get("started"),
        "command": about.get("command") if isinstance(about.get("command"), list) else None,
    }


def evaluations(folder: Folder) -> Row:
    """The evaluations over the run, each with its interval and its actions.

    ``sampled``: the sampled figures of greedy evaluations (``eval_mode`` "both"); None if there are none.
    """
    rows = folder.evaluations
    both = [row for row in (in_mode(row, "sampled") for row in rows if mode_of(row) == "greedy") if row]
    return {
        **_evaluated(rows),
        "modes": [mode_of(row) for row in rows],
        "sampled": _evaluated(both) if both else None,
    }


def _evaluated(rows: list[Row]) -> Row:
    bounds = [_interval(row) for row in rows]
    return {
        "steps": json_numbers(column(rows, "steps"), 12),
        "seconds": json_numbers(column(rows, "seconds"), 6),
        "values": json_numbers(column(rows, "mean")),
        "low": json_numbers([low for low, _ in bounds]),
        "high": json_numbers([high for _, high in bounds]),
    }


def _interval(row: Row) -> tuple[float, float]:
    bounds = row.get("interval")
    if isinstance(bounds, list) and len(bounds) == 2:
        return number(bounds[0]), number(bounds[1])
    return math.nan, math.nan


def _final_evaluation(folder: Folder) -> Row | None:
    if not folder.evaluations:
        return None
    row = folder.evaluations[-1]
    both = in_mode(row, "sampled") if mode_of(row) == "greedy" else None
    difference = row.get("difference")
    return {
        **_figures(row),
        "steps": _whole(row.get("steps")),
        "mode": mode_of(row),
        "sampled": None if both is None else _figures(both),
        "difference": difference if isinstance(difference, str) else None,
    }


def _figures(row: Row) -> Row:
    """Mean, interval and number of episodes of an evaluation."""
    low, high = _interval(row)
    returns = row.get("returns")
    return {
        "mean": rounded(number(row.get("mean")), 4),
        "low": rounded(low, 4),
        "high": rounded(high, 4),
        "episodes": len(returns) if isinstance(returns, list) else None,
    }


def _best(best: Any) -> Row | None:
    if not isinstance(best, dict):
        return None
    mean = rounded(number(best.get("mean")), 4)
    return {"mean": mean, "steps": _whole(best.get("steps")), "mode": mode_of(best)}


def _whole(value: Any) -> int | None:
    value = number(value)
    return None if math.isnan(value) else int(value)


def _diagnostics(folder: Folder) -> tuple[list[Row], list[Row]]:
    """The judged gauges for which the run has values, and all other metrics."""
    rows = folder.metrics
    gauges, trend = [], ReturnTrend(1)
    for row in rows:
        trend.add({name: number(row.get(name)) for name in ("episodes", "return", "return_spread")})
    names = dict.fromkeys(name for row in rows for name in row)
    fields = [name.removeprefix(DEVIATION) for name in names if name.startswith(DEVIATION)]
    shown = dict.fromkeys([*map(deviation_gauge, fields), *GAUGES])
    for gauge in shown:
        values = _in_units(rows, gauge.name) if gauge.name.startswith(DEVIATION) else column(rows, gauge.name)
        judged = judge(gauge, values, folder.algo, is_settled=trend.is_settled)
        if judged.verdict != "missing":
            gauges.append(_drawn(judged) | _metric(folder, gauge.name, values))
    drawn = {gauge.name for gauge in shown} | {"steps", "seconds", "updates", "episodes", "return"}
    left = [name for name in names if name not in drawn and not name.startswith(("speed/", "time/"))]
    columns = {name: column(rows, name) for name in left}
    return gauges, [_metric(folder, name, x) for name, x in columns.items() if np.isfinite(x).any()]


def _metric(folder: Folder, name: str, values: np.ndarray) -> Row:
    """The curve of one metric, with its glossary line."""
    rows, known = folder.metrics, np.isfinite(values)
    line = meaning(name, folder.glossary) or meaning(name)
    if name.startswith(DEVIATION) and _sizes(rows, name):
        line += ", in units of their size"
    is_sparse = bool(known.sum() < 0.6 * len(known))
    if is_sparse:  # measured only in some updates: gaps are not drawn
        rows, values = list(itertools.compress(rows, known)), values[known]
    return {"name": name, "line": line, "sparse": is_sparse, **curve(rows, values, SMALL)}


def _drawn(judged: Judged) -> Row:
    gauge = judged.gauge
    return {
        "low": gauge.low if judged.high is not None or gauge.below else None,
        "high": judged.high,
        "strict": gauge.strict,
        "warn_low": bool(gauge.below),
        "limit": judged.line,
        "limit_name": gauge.setting,
        "log": gauge.log,
        "verdict": judged.verdict,
        "share": rounded(judged.share, 2),
        "advice": judged.advice,
        "words": gauge.words,
    }


def _advice(folder: Folder, gauges: list[Row]) -> str:
    """The number of warnings and pieces of advice, and the gauges that are out of their ranges."""
    kinds = [event.get("kind") for event in folder.events]
    warnings, pieces = kinds.count("warning"), kinds.count("advice")
    before = f"{plural(warnings, 'warning')}. " if warnings else ""
    given = f"{plural(pieces, 'piece')} of advice during the run, each given once" if pieces else ""
    outside = [gauge["name"] for gauge in gauges if gauge["advice"]]
    verb = "is" if len(outside) == 1 else "are"
    judged = f"{', '.join(outside)} {verb} out of range, with advice under Gauges" if outside else ""
    if not pieces and not outside:
        return before + ("No advice: no gauge is out of its range." if gauges else "No advice yet.")
    return f"{before}{'; '.join(filter(None, (given, judged)))}."


def _in_units(rows: list[Row], name: str) -> np.ndarray:
    """The deviation of a field over its size, if that is above 1, as in the check that stops a run."""
    sizes = [np.abs(column(rows, size)) for size in _sizes(rows, name)]
    return column(rows, name) / np.fmax.reduce([*sizes, np.ones(len(rows))])


def _sizes(rows: list[Row], name: str) -> list[str]:
    """The metrics that give the size of a field, of those that the run has; none for log-probs."""
    return [size for size in size_names(name.removeprefix(DEVIATION)) if any(size in row for row in rows)]


def _lengths(folder: Folder) -> Row | None:
    data = read_lengths(folder)
    if not data["points"] or is_outdated(folder, data):
        return None
    names = ("length", "mean", "low", "high", "best", "memoryless")
    points = [p for p in data["points"] if isinstance(p, dict) and not math.isnan(number(p.get("length")))]
    return {
        **{name: json_numbers(column(points, name)) for name in names},
        "option": str(data.get("option", "length")),
        **{name: data.get(name) for name in ("trained", "episodes", "checkpoint_steps")},
        "mode": mode_of(data),
    }


def _length_notes(task: Task | None, notes: list[str]) -> list[str]:
    """The reason that success by memory length is missing, for a task with such an option."""
    if task is None or not memory_lengths(task)[2]:
        return []
    return notes or ["This was not measured: run recollect report without --no-play."]


def _events(folder: Folder) -> list[Row]:
    """The events, oldest first; above ``EVENTS``, checkpoints and then the oldest are dropped."""
    events = [
        {
            "steps": _whole(event.get("steps")),
            "seconds": rounded(number(event.get("seconds"))),
            "time": event.get("time") if isinstance(event.get("time"), str) else None,
            "kind": str(event.get("kind", "")),
            "text": REASONS.get(text := str(event.get("text", "")), ("", text))[1],
        }
        for event in folder.events
    ]
    if len(events) > EVENTS:
        events = [event for event in events if event["kind"] != "checkpoint"][-EVENTS:]
    return events
