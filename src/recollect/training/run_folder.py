"""Run folders: all files of a run, readable while it trains and after a crash.

=====================  ===============================================================  ======================
file                   contents                                                         written by
=====================  ===============================================================  ======================
``run.json``           env, config, preset, versions, git commit, machine, command      ``creating``
``config.yaml``        the resolved config, ready for ``--config``                      ``creating``
``glossary.json``      one line on each metric                                          ``creating``
``metrics.jsonl``      one line per iteration                                           ``Recorder``
``evaluations.jsonl``  one line per evaluation                                          ``Recorder``
``events.jsonl``       starts, resumes, advice, warnings, checkpoints, the end          ``Recorder``
``traceback.txt``      the whole traceback of each error that ended the run             ``Agent``
``status.json``        state, env steps, seconds, the best checkpoint                   ``Recorder``, ``save``
``checkpoints/``       the last few and the best (``training/checkpoints.py``)          ``save``
``lock``               held by the training process, released by the system at its end  ``writing``
=====================  ===============================================================  ======================

Reading a run executes no code.
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
from recollect.base import files, provenance, run_files, tracebacks
from recollect.base.run_files import (
    CHECKPOINTS,
    LEFTOVER,
    UNFINISHED,
    WRITTEN_BESIDE,
    check_own,
    checked_status,
)
from recollect.config import toml_yaml
from recollect.config.serialise import config_to_json
from recollect.errors import RecollectError, StorageError
from recollect.learning.learner_state import Learned
from recollect.training import checkpoints
from recollect.training.agent_protocol import Trainee
from recollect.training.evaluation_rows import in_mode, mode_of
from recollect.training.metrics import GLOSSARY, History

FORMAT = 1


class Run:
    """A run folder. ``Run(path)`` reads one, ``creating`` makes one, ``writing`` locks one for training."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._is_held = False
        if not self.is_run(self.path):
            near = [p.name for p in sorted(self.path.parent.glob("*")) if self.is_run(p)][:5]
            hint = f"; runs beside it: {', '.join(near)}" if near else ""
            raise RecollectError(f"{self.path} is not a run: it has no run.json{hint}")
        self.description = files.read_json(self.path / "run.json")
        files.check_format(self.path / "run.json", self.description.get("format"), FORMAT)

    @staticmethod
    def is_run(path: str | Path) -> bool:
        """Whether the folder holds a run."""
        return (Path(path) / "run.json").is_file()

    @classmethod
    @contextmanager
    def creating(cls, path: str | Path, agent: Trainee, *, command: list[str] | None = None) -> Iterator[Run]:
        """Make a run folder for ``agent`` and lock it as ``writing`` does.

        The folder must be empty, except for files of a run that ended before its first checkpoint.
        """
        path = Path(path)
        _check_unused(path)
        with files.writing(f"the run folder {path} could not be made"):
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
            "config": config_to_json(agent.config, agent.network.config, made_by=agent.network.made_by),
            "preset": {k: v if checkpoints.is_json(v) else repr(v) for k, v in agent.preset.items()},
            "versions": provenance.versions(),
            "git": provenance.git_commit(),
            "machine": provenance.machine(),
            "started": now(),
            "command": command,
        }
        with files.writing(f"the run folder {path} could not be made"):
            (path / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
            lines = ("metrics.jsonl", "evaluations.jsonl", "events.jsonl")
            for stale in ("status.json", *lines, tracebacks.FILE):
                (path / stale).unlink(missing_ok=True)
        files.write_atomically(path / "glossary.json", json.dumps(GLOSSARY, indent=2) + "\n")
        config = replace(agent.config, policy=agent.network.config)  # as it was built, also by a factory
        text = toml_yaml.config_text(config, agent.env_name, made_by=agent.network.made_by)
        files.write_atomically(path / "config.yaml", text)
        files.write_atomically(path / "run.json", json.dumps(description, indent=2, default=str) + "\n")
        return cls(path)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def status(self) -> dict[str, Any]:
        """The contents of status.json: ``state``, ``reason``, ``steps``, ``seconds``, ``best`` and so on."""
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
        """Whether a process is training in this folder now."""
        return files.is_locked(self.path / "lock")

    @property
    def glossary(self) -> dict[str, str]:
        """One line on each metric, by name."""
        return files.read_json(self.path / "glossary.json")

    def metrics(self) -> list[dict[str, Any]]:
        """One row per iteration; NaN is None."""
        return list(self._rows("metrics.jsonl"))

    def evaluations(self) -> list[dict[str, Any]]:
        """One row per evaluation."""
        return list(self._rows("evaluations.jsonl"))

    def _rows(self, name: str) -> Iterator[dict[str, Any]]:
        """The rows of a file, validated: ``steps`` is a count, every metric a number or None."""
        file = self.path / name
        for row in files.read_lines(file):
            values = row.values() if name == "metrics.jsonl" else [row.get("mean")]
            is_whole = all(value is None or files.is_number(value) for value in values)
            if not is_whole or not files.is_number(row.get("steps")) or row["steps"] < 0:
                raise RecollectError(
                    f"{file} is damaged (a value is not a number): take another copy of the run"
                )
            yield row

    def events(self) -> list[dict[str, Any]]:
        """The events, oldest first."""
        return list(files.read_lines(self.path / "events.jsonl"))

    def history(self) -> History:
        """The metrics as ``Agent.history`` holds them."""
        history = History()
        for row in self._rows("metrics.jsonl"):
            history.add({name: math.nan if value is None else value for name, value in row.items()})
        return history

    def checkpoints(self) -> list[Path]:
        """The folders of all checkpoints, oldest first."""
        folder = self.path / CHECKPOINTS
        found = folder.iterdir() if folder.is_dir() else ()
        return sorted(path for path in found if re.fullmatch("[0-9]{12}", path.name))

    def checkpoint(self, which: str | int = "best") -> Path:
        """The folder of one checkpoint.

        ``which`` is "best" by evaluation (the last if none was evaluated), "last", or its env steps.
        """
        found = {int(path.name): path for path in self.checkpoints()}
        if not found:
            raise RecollectError(
                f"{self.path} has no checkpoint yet. If the run ended before its first one, train into the "
                "same folder again"
            )
        if which == "best":
            best = (self.status["best"] or {}).get("steps")
            which = best if best in found else "last"
        if which == "last":
            return found[max(found)]
        if str(which).isdecimal() and int(which) in found:
            return found[int(which)]
        known = ", ".join(map(str, found))
        raise RecollectError(f"{self.path} has no checkpoint {which!r}: choose best, last, or one of {known}")

    # For the process that trains

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the run's lock, so that only one process trains in the folder; remove unfinished files."""
        if self._is_held:  # by a caller in this process
            yield
            return
        with _locked(self.path):
            for folder in (self.path / CHECKPOINTS).glob(".*"):  # left by a killed process
                if UNFINISHED.fullmatch(folder.name):
                    run_files.remove(folder)
            for file in self.path.glob(".*"):
                if LEFTOVER.fullmatch(file.name) and not file.is_dir():
                    file.unlink(missing_ok=True)
            self._is_held = True
            try:
                yield
            finally:
                self._is_held = False

    def rewind(self, steps: int) -> None:
        """Delete the checkpoints, metrics and evaluations after ``steps``, from where training resumes.

        The latest checkpoint goes first and metrics go last: if the process is killed in between, every
        remaining checkpoint still has its metrics.
        """
        later = [path for path in reversed(self.checkpoints()) if int(path.name) > steps]
        for path in later:
            if not run_files.is_ours(path):
                foreign = run_files.foreign_files(path) if path.is_dir() else []
                holds = f"holds {', '.join(foreign[:4])}" if path.is_dir() else "is not a folder"
                raise RecollectError(
                    f"going back to step {steps:,} would delete {path}, which "
                    f"{'is a link' if path.is_symlink() else holds}: move it out of the run first"
                )
        self.update_status(best=self._best_until(steps), steps=steps)
        for path in later:
            _remove(path)
        for name in ("metrics.jsonl", "evaluations.jsonl"):
            rows = [row for row in self._rows(name) if row["steps"] <= steps]
            files.write_atomically(self.path / name, "".join(json.dumps(row) + "\n" for row in rows))

    def _best_until(self, steps: int) -> dict[str, Any] | None:
        """The best evaluation up to ``steps`` whose checkpoint exists, of those with the latest mode.

        Evaluations count too, since a process can be killed between an evaluation and its status update.
        """
        kept = {int(path.name) for path in self.checkpoints() if int(path.name) <= steps}
        known = [row for row in (self._read_status()["best"], *self.evaluations()) if row]
        mode = mode_of(known[-1]) if known else "greedy"
        rows = [row for row in (in_mode(row, mode) for row in known) if row and row["steps"] in kept]
        scored = [row for row in rows if files.is_number(row.get("mean"))]
        best = max(scored, key=lambda row: (row["mean"], row["steps"]), default=None)
        return None if best is None else _best(best["steps"], best["mean"], mode)

    def save(
        self, agent: Trainee, learned: Learned, *, seconds: float, best: Evaluation | None = None
    ) -> Path:
        """Write a checkpoint and delete old ones; ``best``: its evaluation, if it is the best so far."""
        path = self.path / CHECKPOINTS / f"{learned.steps:012d}"
        if learned.trainer is not None:
            learned.trainer.numbers["seconds"] = seconds
        for name in ("metrics.jsonl", "evaluations.jsonl"):  # a checkpoint never outlives its metrics
            if (self.path / name).is_file():
                with files.writing(f"{self.path / name} could not be written"):
                    files.sync(self.path / name)
        checkpoints.write(path, agent.network, agent.config, agent.env_name, learned)
        new = {} if best is None else {"best": _best(learned.steps, best.mean, best.mode)}
        self.update_status(checkpoint=path.name, **new)
        status = self.status
        kept = {p.name for p in self.checkpoints()[-agent.config.keep_checkpoints :]}
        if status["best"] is not None:
            kept.add(status["best"]["checkpoint"])
        for old in self.checkpoints():
            if old.name not in kept and run_files.is_ours(old):
                with suppress(StorageError):  # retried at the next checkpoint
                    _remove(old)
        return path

    def add_evaluation(self, steps: int, evaluation: Evaluation) -> None:
        """Append an evaluation made after training, and update the best checkpoint."""
        row = {"steps": steps, "seconds": self.status.get("seconds", 0.0)} | evaluation.to_json()
        with self.writing():
            with files.writing(f"{self.path / 'evaluations.jsonl'} could not be written"):
                files.append_whole(self.path / "evaluations.jsonl", json.dumps(files.finite(row)) + "\n")
            self.update_status(best=self._best_until(steps))

    def is_better(self, mean: float, mode: str = "greedy") -> bool:
        """Whether an evaluation with this mean is the best so far; a tie goes to the later one.

        Greedy and sampled evaluations are not compared: the first of another ``mode`` is the best.
        """
        best = self._read_status()["best"]
        return math.isfinite(mean) and (best is None or mode_of(best) != mode or mean >= best["mean"])

    def update_status(self, **changes: Any) -> None:
        """Change these fields of ``status.json``."""
        text = json.dumps(self._read_status() | changes, indent=2) + "\n"
        files.write_atomically(self.path / "status.json", text)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    check_own(path)
    in_use = f"{path} is in use by another process: wait for it, or end it (Ctrl-C saves)"
    with files.locked(path / "lock", in_use):
        yield


def _check_unused(path: Path, *, is_locked_here: bool = False) -> None:
    if path.exists() and not _is_unused(path, is_locked_here):
        what = "a file" if not path.is_dir() else "not empty"
        if Run.is_run(path):
            what = "a run already: continue it with recollect resume"
        raise RecollectError(f"{path} is {what}; choose another folder with run=... (--run)")


def _is_unused(path: Path, is_locked_here: bool) -> bool:
    """Whether the folder is empty, or holds only files of a run that ended before its first checkpoint."""
    if not path.is_dir():
        return False
    found = {entry.name for entry in path.iterdir() if not LEFTOVER.fullmatch(entry.name)}
    found -= {CHECKPOINTS, "league", "lock"}
    # A run writes the glossary first, so a config.yaml without a glossary is the user's.
    is_ours = not found or "glossary.json" in found
    if (
        not is_ours
        or found - {*WRITTEN_BESIDE, "events.jsonl", tracebacks.FILE}
        or (not is_locked_here and files.is_locked(path / "lock"))
    ):
        return False
    metrics, folder = path / "metrics.jsonl", path / CHECKPOINTS
    if metrics.exists() and metrics.stat().st_size > 0:  # its checkpoints were removed
        return False
    return not folder.exists() or all(entry.name.startswith(".") for entry in folder.iterdir())


def _remove(checkpoint: Path) -> None:
    """Rename, then delete: if this process is killed, no half-deleted checkpoint is left."""
    hidden = checkpoint.with_name(f".{checkpoint.name}-removed")
    with files.writing(f"{checkpoint} could not be removed"):
        run_files.remove(hidden)
        checkpoint.rename(hidden)
    run_files.remove(hidden)


def _best(steps: int, mean: float, mode: str) -> dict[str, Any]:
    return {"checkpoint": f"{steps:012d}", "mean": mean, "steps": steps, "mode": mode}


def now() -> str:
    """The current time in UTC, as run folders write it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
