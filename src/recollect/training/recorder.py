"""The callback that appends metrics, evaluations and events to a run folder, and updates its status."""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.base import files
from recollect.errors import StorageError
from recollect.training.callbacks import Callback
from recollect.training.run_folder import Run, now

if TYPE_CHECKING:
    from recollect.acting.evaluate import Evaluation
    from recollect.training.run_loop import Training


STATUS_SECONDS = 2.0
"""Seconds between two updates of ``status.json`` while nothing else changes it."""


class Recorder(Callback):
    """Writes the JSONL files and ``status.json`` of a run; ``Run.save`` writes its checkpoints.

    Lines that cannot be written, because the disk is full for example, are buffered and tried again.
    """

    LIMIT = 10_000
    """Buffered lines of one file above which the run stops."""

    def __init__(self, run: Run):
        self._run = run
        self._waiting: dict[str, list[str]] = {}
        self._status_at = 0.0
        """Seconds of training at the last update of the status."""

    def on_start(self, training: Training) -> None:
        """Log the start or resume, and set the status to running."""
        kind = "start" if training.steps == 0 else "resume"
        self._event(training, kind, f"{kind} at step {training.steps}, to step {training.end}")
        self._status(training, "running")

    def on_iteration(self, training: Training, metrics: dict[str, float]) -> None:
        """Append a line of metrics, and now and then update the status."""
        self._append(training, "metrics.jsonl", metrics | {"seconds": round(training.seconds, 3)})
        if training.seconds - self._status_at >= STATUS_SECONDS:
            try:
                self._status(training, "running")
            except StorageError as error:
                training.continue_without_disk(error)

    def on_evaluation(self, training: Training, evaluation: Evaluation) -> None:
        """Append a line for the evaluation."""
        row = {"steps": training.steps, "seconds": round(training.seconds, 3)} | evaluation.to_json()
        self._append(training, "evaluations.jsonl", row)

    def on_advice(self, training: Training, text: str) -> None:
        """Log the advice."""
        self._event(training, "advice", text)

    def on_warning(self, training: Training, text: str) -> None:
        """Log the warning."""
        self._event(training, "warning", text)

    def on_checkpoint(self, training: Training, path: Path) -> None:
        """Log the checkpoint, write all buffered lines, update the status."""
        self._event(training, "checkpoint", path.name)
        self._flush(training, *self._waiting)
        self._status(training, "running")

    def on_end(self, training: Training, reason: str) -> None:
        """Log the reason, write all buffered lines, and set the final status."""
        is_error = reason.startswith("error")
        state = "failed" if is_error else "finished" if reason in ("steps", "target") else "stopped"
        with suppress(StorageError) if is_error else nullcontext():  # the first error is the one to show
            try:
                self._event(training, "error" if is_error else "stop", reason)
                self._flush(training, *self._waiting)
            finally:
                self._status(training, state, reason)

    def _status(self, training: Training, state: str, reason: str | None = None) -> None:
        counts = {name: getattr(training, name) for name in ("steps", "start", "end", "updates", "episodes")}
        self._status_at = training.seconds
        seconds = round(self._status_at, 3)
        self._run.update_status(state=state, reason=reason, **counts, seconds=seconds)

    def _event(self, training: Training, kind: str, text: str) -> None:
        row = {"steps": training.steps, "seconds": round(training.seconds, 3), "time": now()}
        self._append(training, "events.jsonl", row | {"kind": kind, "text": text})

    def _append(self, training: Training, name: str, row: dict[str, Any]) -> None:
        self._waiting.setdefault(name, []).append(json.dumps(files.finite(row)) + "\n")
        self._flush(training, name)

    def _flush(self, training: Training, *names: str) -> None:
        """Write the buffered lines of these files."""
        for name in names:
            waiting = self._waiting[name]
            if not waiting:
                continue
            try:
                with files.writing(f"{self._run.path / name} could not be written"):
                    files.append_whole(self._run.path / name, "".join(waiting))
                waiting.clear()
            except StorageError as error:
                if len(waiting) >= self.LIMIT:
                    raise
                training.continue_without_disk(error)
