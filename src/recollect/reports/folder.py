"""Reads a run's folder as it is: whole, half written, failed or still running."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from recollect.base.files import LARGEST, opened, read_whole
from recollect.base.numbers import plural
from recollect.base.tolerances import TOLERANCES, on_device, tolerance
from recollect.cores.make import make_core
from recollect.errors import RecollectError
from recollect.policy.meta import without_memory
from recollect.reports.thinning import in_order, number
from recollect.training.run_folder import Run

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Folder:
    """What the files of a run say; whatever is missing is empty."""

    path: Path
    description: Row
    """run.json"""
    status: Row
    """status.json"""
    metrics: list[Row]
    """In order of steps."""
    evaluations: list[Row]
    """In order of steps."""
    events: list[Row]
    glossary: dict[str, str]
    problems: list[str] = field(default_factory=list)
    """What could not be read, one sentence each."""

    @property
    def name(self) -> str:
        """As people call the run."""
        return str(self.description.get("name") or self.path.name)

    @property
    def env(self) -> str | None:
        """The env's name or id, if it has one."""
        env = self.description.get("env")
        return env if isinstance(env, str) else None

    @property
    def config(self) -> Row:
        """The config as in run.json."""
        config = self.description.get("config")
        return config if isinstance(config, dict) else {}

    @property
    def env_kwargs(self) -> Row:
        """The options of the env."""
        kwargs = self.config.get("env_kwargs")
        return kwargs if isinstance(kwargs, dict) else {}

    @property
    def algo(self) -> Row:
        """The settings of the algorithm."""
        algo, policy = self.config.get("algo", self.config.get("ppo")), self.config.get("policy")
        if not isinstance(algo, dict):
            return {}
        if algo.get("tolerance", 0) is None:  # not set: that of the precision and the core
            network = policy if isinstance(policy, dict) else {}
            precision = on_device(str(network.get("precision")), str(self.config.get("device")))
            if precision in TOLERANCES:
                rounding = rounding_of(json.dumps(network.get("core")))
                return algo | {"tolerance": tolerance(None, precision, rounding)}
        return algo

    @property
    def preset(self) -> Row:
        """The settings that were chosen for the task beside the user's own."""
        preset = self.description.get("preset")
        return preset if isinstance(preset, dict) else {}

    @property
    def steps(self) -> int:
        """Env steps made, by the status or else the last row of metrics."""
        last = self.metrics[-1]["steps"] if self.metrics else 0
        made = number(self.status.get("steps"))
        return int(made if made > 0 else last)


def read_folder(path: Path) -> Folder:
    """Read everything that a report needs from a run's folder; only run.json must be there and whole."""
    if not Run.is_run(path):
        raise RecollectError(_no_run(path))
    run = Run(path)
    problems: list[str] = []
    glossary = _object(path / "glossary.json", problems)
    return Folder(
        path=path,
        description=run.description,
        status=_status(run, problems),
        metrics=in_order(_lines(path / "metrics.jsonl", problems)),
        evaluations=in_order(_lines(path / "evaluations.jsonl", problems)),
        events=_lines(path / "events.jsonl", problems),
        glossary={name: line for name, line in glossary.items() if isinstance(line, str)},
        problems=problems,
    )


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if it is not there or is no JSON."""
    try:
        return json.loads(read_whole(path))
    except (RecollectError, ValueError, RecursionError):
        return None


@cache
def rounding_of(core: str) -> float:
    """How much wider the tolerance of this core is, from its JSON in run.json; 1 if it is not known here.

    The core is made for it, because one that holds others rounds as they do.
    """
    try:
        with torch.random.fork_rng(devices=[]), without_memory(10**8):
            return make_core(json.loads(core), 1).rounding
    except Exception:  # a core of the user's, or damage
        return 1.0


def _status(run: Run, problems: list[str]) -> Row:
    try:
        return run.status
    except RecollectError:
        problems.append("status.json cannot be read: it is damaged, or was being written.")
        left = read_json(run.path / "status.json")  # a report shows what is left of it
        return left if isinstance(left, dict) else {}


def _object(path: Path, problems: list[str]) -> Row:
    if not path.exists():
        return {}
    data = read_json(path)
    if isinstance(data, dict):
        return data
    problems.append(f"{path.name} cannot be read: it is damaged, or was being written.")
    return {}


def _lines(path: Path, problems: list[str]) -> list[Row]:
    """The objects of a JSONL file. Half a line at its end is no problem: the run may be going on.

    ``Run`` refuses a damaged file; a report shows what is left of it.
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
    return f"{path} is no run: there is no run.json in it{hint or '. A run is what `recollect train` writes'}"
