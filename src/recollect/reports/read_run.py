"""Reads a run's folder in any state: complete, damaged, failed or still running."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from recollect.base.files import LARGEST, opened, read_whole
from recollect.base.formatting import plural
from recollect.base.tolerances import TOLERANCES, on_device, tolerance
from recollect.cores.build_from_spec import make_core
from recollect.errors import RecollectError
from recollect.policy.meta_device import without_memory
from recollect.reports.thinning import Row, in_order, mapping, number
from recollect.training.run_folder import Run


@dataclass(frozen=True, slots=True)
class Folder:
    """The contents of a run's files; missing files are empty."""

    path: Path
    description: Row
    """run.json"""
    status: Row
    """status.json"""
    metrics: list[Row]
    """Ordered by steps."""
    evaluations: list[Row]
    """Ordered by steps."""
    events: list[Row]
    glossary: dict[str, str]
    problems: list[str] = field(default_factory=list)
    """One sentence on each file that could not be read."""

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self.description.get("name") or self.path.name)

    @property
    def env(self) -> str | None:
        """The env's name or id, if it has one."""
        env = self.description.get("env")
        return env if isinstance(env, str) else None

    @property
    def config(self) -> Row:
        """The config in run.json."""
        return mapping(self.description.get("config"))

    @property
    def env_kwargs(self) -> Row:
        """The options of the env."""
        return mapping(self.config.get("env_kwargs"))

    @property
    def algo(self) -> Row:
        """The settings of the algorithm, with the tolerance resolved."""
        algo, network = mapping(self.config.get("algo")), mapping(self.config.get("policy"))
        if algo.get("tolerance", 0) is None:  # not set: it follows from the precision and the core
            precision = on_device(str(network.get("precision")), str(self.config.get("device")))
            if precision in TOLERANCES:
                rounding = rounding_of(json.dumps(network.get("core")))
                return algo | {"tolerance": tolerance(None, precision, rounding)}
        return algo

    @property
    def preset(self) -> Row:
        """The settings that the task's preset chose."""
        return mapping(self.description.get("preset"))

    @property
    def steps(self) -> int:
        """Env steps, from the status or else the last row of metrics."""
        last = self.metrics[-1]["steps"] if self.metrics else 0
        made = number(self.status.get("steps"))
        return int(made if made > 0 else last)


def read_folder(path: Path) -> Folder:
    """Read the files that a report needs; only run.json must exist and be undamaged."""
    if not Run.is_run(path):
        raise RecollectError(_no_run(path))
    run = Run(path)
    problems: list[str] = []
    unreadable = "{} cannot be read: it is damaged, or was being written."
    glossary = read_json(path / "glossary.json")
    if glossary is None and (path / "glossary.json").exists():
        problems.append(unreadable.format("glossary.json"))
    try:
        status = run.status
    except RecollectError:
        problems.append(unreadable.format("status.json"))
        status = read_json(path / "status.json") or {}
    return Folder(
        path=path,
        description=run.description,
        status=status,
        metrics=in_order(_lines(path / "metrics.jsonl", problems)),
        evaluations=in_order(_lines(path / "evaluations.jsonl", problems)),
        events=_lines(path / "events.jsonl", problems),
        glossary={name: line for name, line in (glossary or {}).items() if isinstance(line, str)},
        problems=problems,
    )


def read_json(path: Path) -> Row | None:
    """The object in a JSON file; None if the file is missing or invalid, or holds something else."""
    try:
        data = json.loads(read_whole(path))
    except (RecollectError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


@cache
def rounding_of(core: str) -> float:
    """The factor on the tolerance for this core, from its JSON in run.json; 1 for an unknown core.

    The core is built for it, because a stack's factor depends on its parts.
    """
    try:
        with torch.random.fork_rng(devices=[]), without_memory(10**8):
            return make_core(json.loads(core), 1).rounding
    except Exception:  # a user's core, or a damaged file
        return 1.0


def _lines(path: Path, problems: list[str]) -> list[Row]:
    """The readable objects of a JSONL file; ``Run`` would reject a damaged file.

    An incomplete last line is not a problem: the run may be writing it.
    """
    if not path.exists():
        return []
    rows, bad = [], 0
    try:
        with opened(path) as handle:
            while line := handle.readline(LARGEST + 1):
                if len(line) > LARGEST:
                    bad += 1
                    break
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    bad += bool(line.strip()) and line.endswith(b"\n")
                    continue
                if isinstance(row, dict):
                    rows.append(row)
    except RecollectError as error:
        problems.append(f"{error}.")
    if bad:
        problems.append(f"Left out of {path.name}: {plural(bad, 'line')} that cannot be read.")
    return rows


def _no_run(path: Path) -> str:
    if not path.exists():
        return f"{path} does not exist: give the folder of a run, such as runs/delayed-cue-1"
    inside = sorted(p.parent.name for p in path.glob("*/run.json")) if path.is_dir() else []
    hint = f"; it holds runs, such as {path / inside[0]}: name one or several of them" if inside else ""
    return f"{path} is not a run: it has no run.json{hint or '. `recollect train` writes such folders'}"
