"""What writes a run's folder while it trains: metrics, evaluations, events, and how far it is."""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.base import files
from recollect.errors import StorageError
from recollect.training import checkpoints
from recollect.training.callbacks import Callback
from recollect.training.run_folder import Run, now

if TYPE_CHECKING:
    from recollect.acting.evaluate import Evaluation
    from recollect.training.run_loop import Training


class Recorder(Callback):
    """Writes what happens into the run folder. Lines that the disk does not take wait for the next."""

    LIMIT = 10_000
    """Lines that may wait before the run is stopped."""

    def __init__(self, run: Run):
        self._run = run
        self._waiting: dict[str, list[str]] = {}

    def on_start(self, training: Training) -> None:
        """The run is now running."""
        kind = "start" if training.steps == 0 else "resume"
        self._event(training, kind, f"{kind} at step {training.steps}, to step {training.end}")
        self._status(training, "running")

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
        self._flush(training, *self._waiting)
        self._status(training, "running")

    def on_end(self, training: Training, reason: str) -> None:
        """Why it ended."""
        is_error = reason.startswith("error")
        state = "failed" if is_error else "finished" if reason in ("steps", "target") else "stopped"
        with suppress(StorageError) if is_error else nullcontext():  # the first error is the one to show
            try:
                self._event(training, "error" if is_error else "stop", reason)
                self._flush(training, *self._waiting)
            finally:
                self._status(training, state, reason)

    def _status(self, training: Training, state: str, reason: str | None = None) -> None:
        self._run.update_status(
            state=state,
            reason=reason,
            steps=training.steps,
            start=training.start,
            end=training.end,
            updates=training.updates,
            episodes=training.episodes,
            seconds=round(training.seconds, 3),
        )

    def _event(self, training: Training, kind: str, text: str) -> None:
        row = {"steps": training.steps, "seconds": round(training.seconds, 3), "time": now()}
        self._append(training, "events.jsonl", row | {"kind": kind, "text": text})

    def _append(self, training: Training, name: str, row: dict[str, Any]) -> None:
        self._waiting.setdefault(name, []).append(json.dumps(files.finite(row)) + "\n")
        self._flush(training, name)

    def _flush(self, training: Training, *names: str) -> None:
        """Write what waits."""
        for name in names:
            waiting = self._waiting[name]
            if not waiting:
                continue
            try:
                with checkpoints.writing(f"{self._run.path / name} could not be written"):
                    files.append_whole(self._run.path / name, "".join(waiting))
                waiting.clear()
            except StorageError as error:
                if len(waiting) >= self.LIMIT:
                    raise
                training.bear(error)
