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
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect import about, config_files, plain, storage
from recollect.callbacks import Callback
from recollect.errors import RecollectError, StorageError
from recollect.metrics import GLOSSARY, History
from recollect.policy.policy import Policy

if TYPE_CHECKING:
    from recollect.agent import Agent
    from recollect.evaluate import Evaluation
    from recollect.storage import Learned
    from recollect.training import Training

FORMAT = 1
CHECKPOINTS = "checkpoints"


class Run:
    """A run folder. ``Run(path)`` reads one; ``create`` makes one; ``writing`` is for who trains."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.is_run(self.path):
            near = [p.name for p in sorted(self.path.parent.glob("*")) if self.is_run(p)][:5]
            hint = f"; runs beside it: {', '.join(near)}" if near else ""
            raise RecollectError(f"{self.path} is no run: it has no run.json{hint}")
        self.description = _read_json(self.path / "run.json")
        if self.description.get("format") != FORMAT:
            raise RecollectError(
                f"{self.path / 'run.json'} has format {self.description.get('format')}, this Recollect reads "
                f"{FORMAT}: update Recollect"
            )

    @staticmethod
    def is_run(path: str | Path) -> bool:
        """Whether the folder holds a run."""
        return (Path(path) / "run.json").is_file()

    @classmethod
    def create(cls, path: str | Path, agent: Agent, *, command: list[str] | None = None) -> Run:
        """A new run folder for ``agent``; refused if there is anything in it already."""
        path = Path(path)
        if path.exists() and (path.is_file() or any(path.iterdir())):
            what = "a run already: recollect resume goes on with it" if cls.is_run(path) else "not empty"
            raise RecollectError(f"{path} is {what}; choose another folder with run=... (--run)")
        description = {
            "format": FORMAT,
            "name": path.name,
            "env": agent.env_name,
            "config": plain.config_to_json(agent.config, agent.policy),
            "preset": {name: _words(value) for name, value in agent.preset.items()},
            "versions": about.versions(),
            "git": about.git_commit(),
            "machine": about.machine(),
            "started": _now(),
            "command": command,
        }
        with storage.writing(f"the run folder {path} could not be made"):
            (path / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        glossary = json.dumps(GLOSSARY, indent=2) + "\n"
        storage.write_atomically(path / "glossary.json", glossary)
        is_custom = type(agent.policy) is not Policy
        config_files.write_config(path / "config.yaml", agent.config, agent.env_name, custom_policy=is_custom)
        storage.write_atomically(path / "run.json", json.dumps(description, indent=2, default=str) + "\n")
        return cls(path)

    @property
    def name(self) -> str:
        """Of the folder."""
        return self.path.resolve().name

    @property
    def status(self) -> dict[str, Any]:
        """How far it is: ``state``, ``reason``, ``steps``, ``seconds``, ``best`` and so on."""
        file = self.path / "status.json"
        status = _read_json(file) if file.is_file() else {"state": "new", "steps": 0, "best": None}
        if status["state"] == "running" and not self.is_active:
            status |= {"state": "killed", "reason": "its process is gone"}
        return status

    @property
    def is_active(self) -> bool:
        """Whether a process trains in it now."""
        file = self.path / "lock"
        if not file.is_file():
            return False
        with file.open() as handle:
            return not _try_lock(handle)

    @property
    def glossary(self) -> dict[str, str]:
        """What each metric means."""
        return _read_json(self.path / "glossary.json")

    def metrics(self) -> list[dict[str, Any]]:
        """One row an iteration; what was NaN is None."""
        return list(_lines(self.path / "metrics.jsonl"))

    def evaluations(self) -> list[dict[str, Any]]:
        """One row an evaluation."""
        return list(_lines(self.path / "evaluations.jsonl"))

    def events(self) -> list[dict[str, Any]]:
        """What happened, in order."""
        return list(_lines(self.path / "events.jsonl"))

    def history(self) -> History:
        """The metrics as ``Agent.history`` keeps them."""
        history = History()
        for row in _lines(self.path / "metrics.jsonl"):
            history.add({name: math.nan if value is None else value for name, value in row.items()})
        return history

    def checkpoints(self) -> list[Path]:
        """All of them, oldest first."""
        folder = self.path / CHECKPOINTS
        found = folder.iterdir() if folder.is_dir() else ()
        return sorted(path for path in found if re.fullmatch(r"\d{12}", path.name))

    def checkpoint(self, which: str | int = "best") -> Path:
        """The folder of a checkpoint: "best" by evaluation (the last if none was evaluated), "last", or
        its env steps."""
        found = self.checkpoints()
        if not found:
            raise RecollectError(f"{self.path} has no checkpoint yet")
        if which == "best":
            best = self.status.get("best")
            which = "last" if best is None else int(best["checkpoint"])
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
        with storage.writing(f"{self.path} cannot be locked"):
            handle = (self.path / "lock").open("a")
        with handle:
            if not _try_lock(handle):
                raise RecollectError(
                    f"{self.path} is in use by another process: wait for it, or end it (Ctrl-C saves)"
                )
            for leftover in (self.path / CHECKPOINTS).glob(".*"):  # of a process that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            yield

    def rewind(self, steps: int) -> None:
        """Drop the metrics and evaluations after a checkpoint: they will be made again."""
        for name in ("metrics.jsonl", "evaluations.jsonl"):
            rows = [row for row in _lines(self.path / name) if row["steps"] <= steps]
            storage.write_atomically(self.path / name, "".join(json.dumps(row) + "\n" for row in rows))
        best = self.status.get("best")
        if best is not None and best["steps"] > steps:
            self._update_status(best=None)
        for path in self.checkpoints():
            if int(path.name) > steps:
                shutil.rmtree(path)

    def save(self, agent: Agent, learned: Learned, *, seconds: float, mean: float | None = None) -> Path:
        """Write a checkpoint; ``mean``: it is the best so far, with this evaluation. Older ones go."""
        path = self.path / CHECKPOINTS / f"{learned.steps:012d}"
        if learned.trainer is not None:
            learned.trainer.numbers["seconds"] = seconds
        storage.write(path, agent.policy, agent.config, agent.env_name, learned)
        best = (
            {} if mean is None else {"best": {"checkpoint": path.name, "mean": mean, "steps": learned.steps}}
        )
        self._update_status(checkpoint=path.name, **best)
        status = self.status
        kept = {p.name for p in self.checkpoints()[-agent.config.keep_checkpoints :]}
        if status["best"] is not None:
            kept.add(status["best"]["checkpoint"])
        for old in self.checkpoints():
            if old.name not in kept:
                shutil.rmtree(old, ignore_errors=True)
        return path

    def add_evaluation(self, steps: int, evaluation: Evaluation) -> None:
        """Keep an evaluation that was made after the training."""
        row = {"steps": steps, "seconds": self.status.get("seconds", 0.0)} | evaluation.to_json()
        with storage.writing(f"{self.path / 'evaluations.jsonl'} could not be written"):
            _append_whole(self.path / "evaluations.jsonl", json.dumps(row) + "\n")

    def is_better(self, mean: float) -> bool:
        """Whether an evaluation with this mean is the best of the run."""
        best = self.status.get("best")
        return best is None or mean > best["mean"]

    def _update_status(self, **changes: Any) -> None:
        text = json.dumps(self.status | changes, indent=2) + "\n"
        storage.write_atomically(self.path / "status.json", text)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


class Recorder(Callback):
    """Writes what happens into the run folder. Lines that the disk does not take wait for the next."""

    LIMIT = 10_000
    """Lines that may wait before the run is stopped."""

    def __init__(self, run: Run):
        self._run = run
        self._waiting: dict[str, list[str]] = {}
        self._has_warned = False

    def on_start(self, training: Training) -> None:
        """The run is now running."""
        kind = "start" if training.steps == 0 else "resume"
        self._event(training, kind, f"{kind} at step {training.steps}, to step {training.end}")
        self._status(training, "running")
        if not self._run.checkpoints():
            training.checkpoint()  # so that there is something to resume from, whatever happens

    def on_iteration(self, training: Training, metrics: dict[str, float]) -> None:
        """One line of metrics."""
        self._append(training, "metrics.jsonl", metrics | {"seconds": round(training.seconds, 3)})

    def on_evaluation(self, training: Training, evaluation: Evaluation) -> None:
        """One line of an evaluation."""
        row = {"steps": training.steps, "seconds": round(training.seconds, 3)} | evaluation.to_json()
        self._append(training, "evaluations.jsonl", row)

    def on_advice(self, training: Training, text: str) -> None:
        """An event."""
        self._event(training, "advice", text)

    def on_checkpoint(self, training: Training, path: Path) -> None:
        """An event, and how far we are."""
        self._event(training, "checkpoint", path.name)
        self._status(training, "running")

    def on_end(self, training: Training, reason: str) -> None:
        """Why it ended."""
        is_error = reason.startswith("error")
        state = "failed" if is_error else "finished" if reason in ("steps", "target") else "stopped"
        try:
            self._event(training, "error" if is_error else "stop", reason)
            self._status(training, state, reason)
        except StorageError:
            if not is_error:  # else the first error is the one to show
                raise

    def _status(self, training: Training, state: str, reason: str | None = None) -> None:
        self._run._update_status(
            state=state,
            reason=reason,
            steps=training.steps,
            end=training.end,
            updates=training.updates,
            episodes=training.episodes,
            seconds=round(training.seconds, 3),
        )

    def _event(self, training: Training, kind: str, text: str) -> None:
        row = {"steps": training.steps, "seconds": round(training.seconds, 3), "time": _now()}
        self._append(training, "events.jsonl", row | {"kind": kind, "text": text})

    def _append(self, training: Training, name: str, row: dict[str, Any]) -> None:
        waiting = self._waiting.setdefault(name, [])
        waiting.append(json.dumps({key: _finite(value) for key, value in row.items()}) + "\n")
        try:
            with storage.writing(f"{self._run.path / name} could not be written"):
                _append_whole(self._run.path / name, "".join(waiting))
            waiting.clear()
        except StorageError as error:
            if len(waiting) >= self.LIMIT:
                raise
            if not self._has_warned:
                self._has_warned = True
                for callback in training.listeners:
                    if callback is not self:
                        callback.on_advice(training, f"{error}. The run goes on and tries again later")


def _append_whole(file: Path, text: str) -> None:
    """Append all of the text or nothing of it: half a line would spoil the file for the next."""
    with file.open("ab", buffering=0) as handle:
        size = handle.tell()
        try:
            data = text.encode()
            if handle.write(data) != len(data):
                raise OSError(28, "No space left on device")
        except OSError:
            handle.truncate(size)
            raise


def _lines(file: Path) -> Iterable[dict[str, Any]]:
    """The objects of a JSONL file; half a line at its end, of a process that was killed, is left out."""
    if not file.is_file():
        return
    with file.open() as handle:
        for line in handle:
            if not line.endswith("\n"):
                return
            try:
                yield json.loads(line)
            except ValueError:
                raise RecollectError(f"{file} is damaged: {line[:60]!r} is no JSON") from None


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text())
    except (ValueError, OSError) as error:
        raise RecollectError(f"{file} is damaged ({error}): take another copy of the run") from None


def _finite(value: Any) -> Any:
    """JSON knows neither NaN nor Inf."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _words(value: Any) -> Any:
    return value if storage.is_json(value) else repr(value)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _try_lock(handle: Any) -> bool:
    """Lock the open file for this process, or say that another holds it."""
    try:
        import fcntl  # not on Windows, where nobody is kept out
    except ImportError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
