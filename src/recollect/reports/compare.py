"""Gathers the data of a comparison of runs: groups of repetitions, curves, tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recollect.base.formatting import plural, setting
from recollect.config.serialise import flatten
from recollect.reports.configs import asked, default_values, differences, experiment, label
from recollect.reports.data import header
from recollect.reports.read_run import Folder
from recollect.reports.statistics import Band, Curve, bootstrap_interval, common_band, iqm
from recollect.reports.task_facts import known_task, levels
from recollect.reports.thinning import Row, column, json_numbers, rounded, thin
from recollect.training.evaluation_rows import in_mode

SINGLE = 160
"""Maximum points of a single run's curve."""
ENV = "env"
"""The env's key among the settings that runs may differ in."""


@dataclass(frozen=True, slots=True)
class Group:
    """Repetitions: runs that differ only in the seed and other incidental settings."""

    label: str
    world: str
    """The env with its options; each world has its own axis."""
    folders: list[Folder]


def gather_comparison(folders: Sequence[Folder]) -> Row:
    """The data of a comparison, with repetitions grouped."""
    mode, notes = common_mode(folders), _mode_notes(folders)
    if mode is not None:
        folders = [_in_mode(folder, mode) for folder in folders]
    groups, names = make_groups(folders)
    worlds = list(dict.fromkeys(group.world for group in groups))
    return {
        "kind": "comparison",
        "mode": mode,
        "groups": [_group(group) for group in groups],
        "panels": [_panel(world, groups) for world in worlds],
        "overall": _overall(groups, len(worlds)),
        "runs": [
            header(folder) | {"group": i, "short": folder.path.name}
            for i, group in enumerate(groups)
            for folder in group.folders
        ],
        "differences": _difference_table(groups, names),
        "problems": [f"{folder.name}: {text}" for folder in folders for text in folder.problems] + notes,
    }


def common_mode(folders: Sequence[Folder]) -> str | None:
    """The actions, greedy or else sampled, that the last evaluation of every run measured; None if none."""
    last = [folder.evaluations[-1] for folder in folders if folder.evaluations]
    modes = ("greedy", "sampled")
    return next((mode for mode in modes if all(in_mode(row, mode) is not None for row in last)), None)


def _in_mode(folder: Folder, mode: str) -> Folder:
    """The folder with the evaluations of these actions only."""
    rows = (in_mode(row, mode) for row in folder.evaluations)
    return replace(folder, evaluations=[row for row in rows if row is not None])


def _mode_notes(folders: Sequence[Folder]) -> list[str]:
    """Sentences on evaluations that do not compare, and on greedy actions that differ from sampled ones."""
    notes = []
    if common_mode(folders) is None:
        notes.append(
            "Some runs were evaluated with greedy actions only, others with sampled ones only, which do not "
            "compare: train them with the same eval_mode."
        )
    last = [(folder.name, folder.evaluations[-1]) for folder in folders if folder.evaluations]
    if apart := [name for name, row in last if isinstance(row.get("difference"), str)]:
        shown = ", ".join(apart[:3]) + (f" and {len(apart) - 3} more" if len(apart) > 3 else "")
        notes.append(
            f"Greedy and sampled actions differ by more than chance in {len(apart)} of "
            f"{plural(len(folders), 'run')} ({shown}): the report of each says what it means."
        )
    return notes


def make_groups(folders: Sequence[Folder]) -> tuple[list[Group], list[str]]:
    """Groups of repetitions, and the settings in which the groups differ.

    A group's label lists the settings in which it differs from others of its world, or is the run's name if
    there are no repetitions. Settings that the user did not choose, such as the defaults of another
    algorithm, are left out, unless they are needed to tell the groups apart.
    """
    configs = [_settings(folder) for folder in folders]
    found: dict[Any, list[int]] = {}
    for i, config in enumerate(configs):
        found.setdefault(experiment(config), []).append(i)
    groups = []
    for members in found.values():
        first = folders[members[0]]
        beside = [i for i, folder in enumerate(folders) if _world(folder) == _world(first)]
        names = differences([configs[i] for i in beside])
        chosen = {name for i in beside for name in asked(folders[i].config, folders[i].preset)}
        short = [name for name in names if name in chosen]
        if len({label(configs[i], short) for i in beside}) < len({label(configs[i], names) for i in beside}):
            short = names
        text = label(configs[members[0]], short) or first.env or "all runs"
        groups.append(Group(text, _world(first), [folders[i] for i in members]))
    names = [group.folders[0].path.name for group in groups]
    if len(groups) == len(folders) > 1 and len(set(names)) == len(names):
        # No repetitions: label runs by their names.
        groups = [replace(group, label=name) for group, name in zip(groups, names)]
    return groups, differences(configs)


def _settings(folder: Folder) -> Row:
    return {ENV: folder.env} | flatten(folder.config)


def _world(folder: Folder) -> str:
    options = ", ".join(f"{name}={setting(value)}" for name, value in sorted(folder.env_kwargs.items()))
    return f"{folder.env or 'env'}{f' ({options})' if options else ''}"


def _group(group: Group) -> Row:
    scores = final_scores(group.folders)
    return {
        "label": group.label,
        "world": group.world,
        "runs": len(group.folders),
        "evaluated": len(scores),
        **_summary(scores),
    }


def final_scores(folders: Sequence[Folder]) -> list[float]:
    """The mean return of each run's last evaluation, for runs that have one."""
    values = [column(folder.evaluations[-1:], "mean") for folder in folders if folder.evaluations]
    return [float(value[0]) for value in values if np.isfinite(value[0])]


def _summary(scores: Sequence[float], strata: Sequence[str] | None = None) -> Row:
    middle = float(iqm(scores)) if scores else None
    bounds = bootstrap_interval(scores, strata=strata) if len(scores) > 1 else (np.nan, np.nan)
    low, high = map(float, bounds)
    return {"iqm": rounded(middle, 4), "low": rounded(low, 4), "high": rounded(high, 4)}


def _panel(world: str, groups: Sequence[Group]) -> Row:
    """The curves of one world: a band per group and a faint line per run."""
    members = [(i, group) for i, group in enumerate(groups) if group.world == world]
    return {
        "world": world,
        "levels": {name: rounded(level) for name, level in _levels(members[0][1]).items()},
        "returns": [_lines(i, group, "returns") for i, group in members],
        "evaluations": [_lines(i, group, "evaluations") for i, group in members],
    }


def _lines(index: int, group: Group, kind: str) -> Row:
    curves = [_curve(folder, kind) for folder in group.folders]
    singles = [
        {
            "name": folder.name,
            "steps": json_numbers(c.steps[kept], 12),
            "values": json_numbers(c.values[kept], 4),
        }
        for folder, c in zip(group.folders, curves)
        for kept in [thin(c.values, SINGLE)]
        if len(c.steps)
    ]
    return {"group": index, "singles": singles, "band": _band(common_band(curves))}


def _curve(folder: Folder, kind: str) -> Curve:
    rows = folder.metrics if kind == "returns" else folder.evaluations
    steps, values = column(rows, "steps"), column(rows, "return" if kind == "returns" else "mean")
    known = np.isfinite(values)
    return Curve(steps[known], values[known])


def _band(band: Band | None) -> Row | None:
    if band is None:
        return None
    return {
        "steps": json_numbers(band.steps, 8),
        "values": json_numbers(band.middle, 4),
        "low": json_numbers(band.low, 4),
        "high": json_numbers(band.high, 4),
    }


def _overall(groups: Sequence[Group], worlds: int) -> list[Row]:
    """Normalised scores over several worlds, for settings used in more than one of them.

    A score is 0 for the best memoryless policy and 1 for the best policy; the bootstrap resamples runs
    within their world.
    """
    if worlds < 2:
        return []
    found = _tried_alike(groups, (_asked, _asked_of_preset, _exact))
    names = differences([settings for settings, _ in found])
    rows = []
    for settings, members in found:
        found_scores = [(score, group.world) for group in members for score in _normalised(group)]
        scores, strata = [score for score, _ in found_scores], [world for _, world in found_scores]
        if len(set(strata)) > 1:
            shown = default_values(members[0].folders[0].config) | settings
            row = {"label": label(shown, names) or "all runs", "runs": len(scores)}
            rows.append(row | _summary(scores, strata))
    return rows


def _tried_alike(
    groups: Sequence[Group], views: Sequence[Callable[[Group], Row]]
) -> list[tuple[Row, list[Group]]]:
    """Groups with equal settings in the first view, each with these settings.

    If a result holds two groups of one world, which differ, it is split by the next view.
    """
    view, *finer = views
    found: dict[Any, list[Group]] = {}
    for group in groups:
        found.setdefault(experiment(view(group)), []).append(group)
    rows = []
    for members in found.values():
        is_mixed = len({group.world for group in members}) < len(members)
        rows += _tried_alike(members, finer) if is_mixed and finer else [(view(members[0]), members)]
    return rows


def _asked(group: Group) -> Row:
    """The settings without those of the preset, which differ from task to task by design."""
    first = group.folders[0]
    return _without_world(asked(first.config, first.preset))


def _asked_of_preset(group: Group) -> Row:
    return _asked(group) | {"preset": "on" if group.folders[0].preset else "off"}


def _exact(group: Group) -> Row:
    return _without_world(_settings(group.folders[0]))


def _without_world(settings: Row) -> Row:
    return {k: v for k, v in settings.items() if k != ENV and not k.startswith("env_kwargs")}


def _levels(group: Group) -> dict[str, float | None]:
    first = group.folders[0]
    return levels(known_task(first.env, first.env_kwargs))


def _normalised(group: Group) -> list[float]:
    best, memoryless = _levels(group).values()
    if best is None or memoryless is None or best == memoryless:
        return []
    return [(score - memoryless) / (best - memoryless) for score in final_scores(group.folders)]


def _difference_table(groups: Sequence[Group], names: Sequence[str]) -> Row:
    """One row per setting in which groups differ, with its value in every group."""
    settings = [_settings(group.folders[0]) for group in groups]
    shown = [[setting(s[name]) if name in s else "–" for s in settings] for name in names]
    return {"rows": [{"name": name, "values": values} for name, values in zip(names, shown)]}
