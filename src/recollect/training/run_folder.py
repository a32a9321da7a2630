"""Run folders: everything about a run in one place, readable while it goes on and after a crash.

=====================  =========================================================================
file                   what
=====================  =========================================================================
``run.json``           env, config, preset, versions, git commit, machine, command
``config.yaml``        the resolved config, ready for ``--config``
``metrics.jsonl``      one line an iteration; ``glossary.json`` says what each metric means
``evaluations.jsonl``  one line an evaluation
``events.jsonl``       starts, resumes, advice, checkpoints, the end
``status.json``        how far it is, and which checkpoint is the best
``checkpoints/``       the last few and the best by evaluation, one folder each (``storage.py``)
``lock``               held while a process trains; the system lets go of it when that process ends
=====================  =========================================================================

Nothing in a run is code, and reading one executes nothing.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from recollect.acting.evaluate import Evaluation
from recollect.base import files, own_files, provenance
from recollect.base.own_files import (
    CHECKPOINTS,
    UNFINISHED,
    WRITTEN_BESIDE,
    check_own,
    checked_status,
    is_leftover,
)
from recollect.config import toml_yaml
from recollect.config.plain import config_to_json
from recollect.errors import RecollectError, StorageError
from recollect.learning.learner_state import Learned
from recollect.policy.policy import Policy
from recollect.training import checkpoints
from recollect.training.metrics import GLOSSARY, History
from recollect.training.trainee import Trainee

FORMAT = 1


class Run:
    """A run folder. ``Run(path)`` reads one; ``create`` makes one; ``writing`` is for who trains."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._is_held = False
        if not self.is_run(self.path):
            near = [p.name for p in sorted(self.path.parent.glob("*")) if self.is_run(p)][:5]
            hint = f"; runs beside it: {', '.join(near)}" if near else ""
            raise RecollectError(f"{self.path} is no run: it has no run.json{hint}")
        self.description = files.read_json(self.path / "run.json")
        files.check_format(self.path / "run.json", self.description.get("format"), FORMAT)

    @staticmethod
    def is_run(path: str | Path) -> bool:
        """Whether the folder holds a run."""
        return (Path(path) / "run.json").is_file()

    @classmethod
    @contextmanager
    def creating(cls, path: str | Path, agent: Trainee, *, command: list[str] | None = None) -> Iterator[Run]:
        """A new run folder for ``agent``, locked as in ``writing``; refused if there is anything in it.

        What a run leaves that ended before its first checkpoint counts as nothing.
        """
        path = Path(path)
        _check_unused(path)
        with checkpoints.writing(f"the run folder {path} could not be made"):
            path.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            _check_unused(path, is_locked_here=True)  # again: another process may have been quicker
            run = cls._create(path, agent, command)
            run._is_held = True
            try:
                yield run
            finally:
                run._is_held = False

    @classmethod
    def _create(cls, path: Path, agent: Trainee, command: list[str] | None) -> Run:
        description = {
            "format": FORMAT,
            "name": path.name,
            "env": agent.env_name,
            "config": config_to_json(agent.config, agent.policy.config, custom_policy=agent.policy.is_custom),
            "preset": {name: _words(value) for name, value in agent.preset.items()},
            "versions": provenance.versions(),
            "git": provenance.git_commit(),
            "machine": provenance.machine(),
            "started": now(),
            "command": command,
        }
        with checkpoints.writing(f"the run folder {path} could not be made"):
            (path / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
            for stale in ("status.json", "metrics.jsonl", "evaluations.jsonl", "events.jsonl"):
                (path / stale).unlink(missing_ok=True)
        glossary = json.dumps(GLOSSARY, indent=2) + "\n"
        checkpoints.write_atomically(path / "glossary.json", glossary)
        config = replace(agent.config, policy=agent.policy.config)  # as it was built, also by a factory
        is_custom = type(agent.policy) is not Policy
        text = toml_yaml.config_text(config, agent.env_name, custom_policy=is_custom)
        checkpoints.write_atomically(path / "config.yaml", text)
        checkpoints.write_atomically(path / "run.json", json.dumps(description, indent=2, default=str) + "\n")
        return cls(path)

    @property
    def name(self) -> str:
        """Of the folder."""
        return self.path.resolve().name

    @property
    def status(self) -> dict[str, Any]:
        """How far it is: ``state``, ``reason``, ``steps``, ``seconds``, ``best`` and so on."""
        status = self._read_status()
        if status["state"] == "running" and not self.is_active:
            status = self._read_status()  # it may have ended in between
            if status["state"] == "running":
                status |= {"state": "killed", "reason": "its process is gone"}
        return status

    def _read_status(self) -> dict[str, Any]:
        file = self.path / "status.json"
        new = {"state": "new", "reason": None, "steps": 0, "best": None}
        return new | (checked_status(files.read_json(file), file) if os.path.lexists(file) else {})

    @property
    def is_active(self) -> bool:
        """Whether a process trains in it now."""
        return files.is_locked(self.path / "lock")

    @property
    def glossary(self) -> dict[str, str]:
        """What each metric means."""
        return files.read_json(self.path / "glossary.json")

    def metrics(self) -> list[dict[str, Any]]:
        """One row an iteration; what was NaN is None."""
        return list(self._rows("metrics.jsonl"))

    def evaluations(self) -> list[dict[str, Any]]:
        """One row an evaluation."""
        return list(self._rows("evaluations.jsonl"))

    def _rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Rows that say at which step they were made; of metrics all is a number or None."""
        file = self.path / name
        for row in files.read_lines(file):
            values = row.values() if name == "metrics.jsonl" else [row.get("mean")]
            is_whole = all(value is None or files.is_number(value) for value in values)
            if not is_whole or not files.is_number(row.get("steps")) or row["steps"] < 0:
                raise RecollectError(
                    f"{file} is damaged (a line has other values than numbers); take another copy"
                )
            yield row

    def events(self) -> list[dict[str, Any]]:
        """What happened, in order."""
        return list(files.read_lines(self.path / "events.jsonl"))

    def history(self) -> History:
        """The metrics as ``Agent.history`` keeps them."""
        history = History()
        for row in self._rows("metrics.jsonl"):
            history.add({name: math.nan if value is None else value for name, value in row.items()})
        return history

    def checkpoints(self) -> list[Path]:
        """All of them, oldest first."""
        folder = self.path / CHECKPOINTS
        found = folder.iterdir() if folder.is_dir() else ()
        return sorted(path for path in found if re.fullmatch("[0-9]{12}", path.name))

    def checkpoint(self, which: str | int = "best") -> Path:
        """The folder of a checkpoint: "best" by evaluation (the last if none was evaluated), "last", or
        its env steps."""
        found = self.checkpoints()
        if not found:
            raise RecollectError(
                f"{self.path} has no checkpoint yet. If it ended before the first, train into the same folder"
            )
        if which == "best":
            best = self.status["best"] or {}
            kept = {int(path.name) for path in found}
            which = best["steps"] if best.get("steps") in kept else "last"
        if which == "last":
            return found[-1]
        for path in found:
            if str(which).isdecimal() and int(path.name) == int(which):
                return path
        known = ", ".join(str(int(path.name)) for path in found)
        raise RecollectError(f"{self.path} has no checkpoint {which!r}: choose best, last, or one of {known}")

    # For the process that trains

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the run's lock: two processes that train in one folder would spoil it."""
        if self._is_held:  # by this process, further out
            yield
            return
        with _locked(self.path):
            for folder in (self.path / CHECKPOINTS).glob(".*"):  # of a process that was killed
                if UNFINISHED.fullmatch(folder.name):
                    own_files.remove(folder)
            for file in self.path.glob(".*"):
                if is_leftover(file.name) and not file.is_dir():
                    file.unlink(missing_ok=True)
            self._is_held = True
            try:
                yield
            finally:
                self._is_held = False

    def rewind(self, steps: int) -> None:
        """Drop what came after a checkpoint: it will be made again.

        Checkpoints first, the last one first of all: a process that is killed meanwhile leaves none
        without its metrics.
        """
        later = [path for path in reversed(self.checkpoints()) if int(path.name) > steps]
        for path in later:
            if not own_files.is_ours(path):
                holds = (
                    f"holds {', '.join(own_files.foreign_files(path)[:4])}"
                    if path.is_dir()
                    else "is no folder"
                )
                raise RecollectError(
                    f"going back to step {steps:,} would delete {path}, which "
                    f"{'is a link' if path.is_symlink() else holds}: move it out of the run first"
                )
        self.update_status(best=self._best_until(steps))
        for path in later:
            _remove(path)
        for name in ("metrics.jsonl", "evaluations.jsonl"):
            rows = [row for row in self._rows(name) if row["steps"] <= steps]
            checkpoints.write_atomically(self.path / name, "".join(json.dumps(row) + "\n" for row in rows))

    def _best_until(self, steps: int) -> dict[str, Any] | None:
        """The best evaluation whose checkpoint is there. The status may not know it yet: a process can be
        killed between the two."""
        kept = {int(path.name) for path in self.checkpoints()}
        known = [row for row in (self._read_status()["best"], *self.evaluations()) if row is not None]
        rows = [
            row
            for row in known
            if row["steps"] in kept and row["steps"] <= steps and row.get("mean") is not None
        ]
        best = max(rows, key=lambda row: (row["mean"], row["steps"]), default=None)
        return None if best is None else _best(best["steps"], best["mean"])

    def save(self, agent: Trainee, learned: Learned, *, seconds: float, mean: float | None = None) -> Path:
        """Write a checkpoint; ``mean``: it is the best so far, with this evaluation. Older ones go."""
        path = self.path / CHECKPOINTS / f"{learned.steps:012d}"
        if learned.trainer is not None:
            learned.trainer.numbers["seconds"] = seconds
        for name in ("metrics.jsonl", "evaluations.jsonl"):  # a power cut leaves no checkpoint without them
            if (self.path / name).is_file():
                with checkpoints.writing(f"{self.path / name} could not be written"):
                    checkpoints.sync(self.path / name)
        checkpoints.write(path, agent.policy, agent.config, agent.env_name, learned)
        best = {} if mean is None else {"best": _best(learned.steps, mean)}
        self.update_status(checkpoint=path.name, **best)
        status = self.status
        kept = {p.name for p in self.checkpoints()[-agent.config.keep_checkpoints :]}
        if status["best"] is not None:
            kept.add(status["best"]["checkpoint"])
        for old in self.checkpoints():
            if old.name not in kept and own_files.is_ours(old):
                with suppress(StorageError):  # then it goes next time
                    _remove(old)
        return path

    def add_evaluation(self, steps: int, evaluation: Evaluation) -> None:
        """Keep an evaluation that was made after the training; its checkpoint may be the best one."""
        row = {"steps": steps, "seconds": self.status.get("seconds", 0.0)} | evaluation.to_json()
        with self.writing():
            with checkpoints.writing(f"{self.path / 'evaluations.jsonl'} could not be written"):
                files.append_whole(self.path / "evaluations.jsonl", json.dumps(files.finite(row)) + "\n")
            self.update_status(best=self._best_until(steps))

    def is_better(self, mean: float) -> bool:
        """Whether an evaluation with this mean is the best of the run; of equals the later one is."""
        best = self._read_status()["best"]
        return math.isfinite(mean) and (best is None or mean >= best["mean"])

    def update_status(self, **changes: Any) -> None:
        """Write these parts of ``status`` anew."""
        text = json.dumps(self._read_status() | changes, indent=2) + "\n"
        checkpoints.write_atomically(self.path / "status.json", text)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    check_own(path)
    with checkpoints.writing(f"{path} cannot be locked"):
        handle = (path / "lock").open("a")
    with handle:
        if not files.lock(handle):
            raise RecollectError(
                f"{path} is in use by another process: wait for it, or end it (Ctrl-C saves)"
            )
        yield


def _check_unused(path: Path, *, is_locked_here: bool = False) -> None:
    if path.exists() and not _is_unused(path, is_locked_here):
        what = "a file" if not path.is_dir() else "not empty"
        if Run.is_run(path):
            what = "a run already: recollect resume goes on with it"
        raise RecollectError(f"{path} is {what}; choose another folder with run=... (--run)")


def _is_unused(path: Path, is_locked_here: bool) -> bool:
    """Whether the folder holds nothing, or only what a run leaves that ended before its first checkpoint."""
    if not path.is_dir():
        return False
    found = {entry.name for entry in path.iterdir() if not is_leftover(entry.name)} - {CHECKPOINTS, "lock"}
    # The glossary comes first: a config.yaml without it is the user's own.
    is_ours = not found or "glossary.json" in found
    if (
        not is_ours
        or found - {*WRITTEN_BESIDE, "events.jsonl"}
        or (not is_locked_here and files.is_locked(path / "lock"))
    ):
        return False
    metrics, folder = path / "metrics.jsonl", path / CHECKPOINTS
    if metrics.exists() and metrics.stat().st_size > 0:  # it has had checkpoints, and somebody removed them
        return False
    return not folder.exists() or all(entry.name.startswith(".") for entry in folder.iterdir())


def _remove(checkpoint: Path) -> None:
    """Out of sight first: nobody finds half a checkpoint, whenever this process is killed."""
    hidden = checkpoint.with_name(f".{checkpoint.name}-removed")
    with checkpoints.writing(f"{checkpoint} could not be removed"):
        own_files.remove(hidden)
        checkpoint.rename(hidden)
    own_files.remove(hidden)


def _best(steps: int, mean: float) -> dict[str, Any]:
    return {"checkpoint": f"{steps:012d}", "mean": mean, "steps": steps}


def _words(value: Any) -> Any:
    return value if checkpoints.is_json(value) else repr(value)


def now() -> str:
    """The time, as run folders write it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
