"""The training loop: iterates a trainer, evaluates, saves checkpoints, calls callbacks, stops."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import torch

from recollect.acting.evaluate import Evaluation
from recollect.base import interrupts, tree
from recollect.config.train import TrainConfig
from recollect.errors import (
    AlignmentError,
    ChildError,
    ConfigError,
    DivergedError,
    EvaluationCancelledError,
    StorageError,
)
from recollect.training.agent_protocol import Trainee
from recollect.training.callbacks import Callback, CallbackList, EpisodeEnd
from recollect.training.metrics import History
from recollect.training.recorded_episodes import record_episodes
from recollect.training.recorder import Recorder
from recollect.training.run_folder import Run
from recollect.training.trainer import Trainer

CHECKPOINT_SECONDS = 60.0
"""Seconds between two checkpoints, unless ``checkpoint_every`` is set."""
FIRST_CHECKPOINT_SECONDS = 10.0
"""Seconds from the start or resume to the first checkpoint: a run killed early keeps most of its training."""


class Training:
    """One training from ``start`` to ``end`` env steps, unless it is stopped earlier.

    Callbacks receive this object. They may read ``agent``, ``config``, ``run``, ``start``, ``end``,
    ``steps``, ``seconds``, ``metrics`` and ``history``, and call ``stop``.
    """

    def __init__(
        self,
        agent: Trainee,
        trainer: Trainer,
        *,
        callbacks: Iterable[Callback | Callable[..., Any]] = (),
        run: Run | None = None,
        seconds: float = 0.0,
        opening: str = "",
        notes: Sequence[str] = (),
    ):
        """``run``: locked; ``seconds``: duration of earlier training; ``opening``: text for displays;
        ``notes``: advice for the start.
        """
        self.agent, self.run, self.opening = agent, run, opening
        self.config: TrainConfig = agent.config
        """The agent's config."""
        self.start: int = trainer.start
        """Env steps at which this training started."""
        self.end: int = trainer.end
        """Env steps at which it ends."""
        self.history: History = agent.history
        self.metrics: dict[str, float] = {}
        self.reason: str | None = None
        """Why the training ended; None while it runs."""
        self._trainer, self._notes = trainer, notes
        recorder = [] if run is None else [Recorder(run)]
        self._callbacks = CallbackList([*recorder, *callbacks])
        self._advisor = agent.advisor
        self._advisor.begin(agent.history, self.start, self.end)
        self.signal = 0
        """The number of the signal that interrupted the training; 0 if none did."""
        self._stop_reason: str | None = None
        self._interrupted_at = 0.0
        self._seconds_before = seconds
        self._began = time.monotonic()
        self._resumed_at: int = trainer.steps
        self._last_checkpoint: tuple[int, float] = (trainer.steps, self._began)
        self._saved_at: int | None = None
        """Env steps of the last checkpoint."""
        if run is not None and any(int(path.name) == trainer.steps for path in run.checkpoints()):
            self._saved_at = trainer.steps
        self._is_disk_failing = False
        rows = [] if run is None else run.evaluations()
        evaluated = trainer.steps if run is None else rows[-1]["steps"] if rows else 0
        self._evaluated = evaluated - evaluated % max(1, self.config.eval_every)
        """The multiple of ``eval_every`` that was evaluated last; a failed evaluation is still due."""
        self._evaluate: Callable[[], Evaluation] | None = None

    @property
    def steps(self) -> int:
        """Env steps so far."""
        return self._trainer.steps

    @property
    def updates(self) -> int:
        """Rollouts learned from so far."""
        return self._trainer.learner.updates

    @property
    def episodes(self) -> int:
        """Episodes finished so far."""
        return self._trainer.episodes.count

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of training, those before a resume included (monotonic clock)."""
        return self._seconds_before + time.monotonic() - self._began

    def adjust(self, **settings: Any) -> None:
        """Change settings of the envs or players, beside those of the curriculum, at their next resets."""
        self._trainer.own_settings = self._trainer.own_settings | settings

    def weights(self) -> dict[str, torch.Tensor]:
        """Copies of the present weights and statistics."""
        self._trainer.learned(live=False)  # learner processes finish their updates
        return tree.clone(dict(self.agent.network.state_dict()))

    def warn(self, text: str) -> None:
        """Show a warning."""
        self._callbacks.call("on_warning", self, text)

    def stop(self, reason: str = "stopped") -> None:
        """Stop after this iteration, with a checkpoint.

        ``on_end`` and the run's status get ``"callback: REASON"``, with the reason of the first call.
        """
        self._stop_reason = self._stop_reason or f"callback: {reason}"

    def fit(self) -> dict[str, float]:
        """Train. Returns the last update's metrics and sets ``reason``."""
        started = False
        try:
            with self._signals(), self._trainer.working(), self._evaluating():
                started = True
                self._callbacks.call("on_start", self)
                for text in self._notes:
                    self._callbacks.call("on_advice", self, text)
                if self.run is not None and not self.run.checkpoints():
                    self.checkpoint()  # so that even a run that fails early can be resumed
                if self.steps > self.start:  # a resumed run may have been killed just before its end
                    self.reason = self._why_stop()
                while self.reason is None:
                    self._iterate()
                    self.reason = self._why_stop()
                self.checkpoint()
                self._record_episodes()
        except BaseException as error:
            if started:
                self._save_after(error)
            raise
        failed = self._call_on_end(self.reason)
        if failed is not None:
            raise failed
        return self.metrics

    def checkpoint(self, *, best: Evaluation | None = None) -> None:
        """Write a checkpoint, if there is a run folder and it has none at this step.

        ``best``: the checkpoint is the best so far, by this evaluation.
        """
        if self.run is None or (best is None and self._saved_at == self.steps):
            return
        learned = self._trainer.learned(live=True)
        path = self.run.save(self.agent, learned, seconds=self.seconds, best=best)
        self._last_checkpoint, self._saved_at = (self.steps, time.monotonic()), self.steps
        self._is_disk_failing = False
        self._callbacks.call("on_checkpoint", self, path)

    def _record_episodes(self) -> None:
        """Record episodes for the report, which cannot make an env that is the user's code."""
        if self.run is None or self._is_interrupted:
            return
        failure = record_episodes(self.agent, self.run, cancelled=lambda: self._is_interrupted)
        if failure is not None:
            self._callbacks.call("on_advice", self, failure)

    def continue_without_disk(self, error: StorageError) -> None:
        """Continue after a failed write; warn once, until a checkpoint can be written again."""
        if not self._is_disk_failing:
            self._is_disk_failing = True
            self._callbacks.call("on_warning", self, f"{error}. The run continues and will retry")

    def _iterate(self) -> None:
        try:
            iteration = self._trainer.iterate()
        except BaseException as error:
            # An interrupted iteration cannot be resumed: a checkpoint saved now starts new episodes.
            try:
                self._trainer.restart_episodes()
            except Exception as failed:  # the first error is the one to show
                error.add_note(f"after that, {type(failed).__name__}: {failed}")
            raise
        self.metrics = iteration.metrics
        self.history.add(iteration.metrics)
        for text in iteration.warnings:
            self._callbacks.call("on_warning", self, text)
        for text in self._advisor.watch(iteration.metrics):
            self._callbacks.call("on_advice", self, text)
        if self._callbacks.wants_episodes:
            ended = iteration.episodes
            for total, length in zip(ended.returns.tolist(), ended.lengths.tolist()):
                self._callbacks.call("on_episode", self, EpisodeEnd(total, length))
        self._callbacks.call("on_iteration", self, iteration.metrics)
        if self._evaluate is not None and self.steps - self._evaluated >= self.config.eval_every:
            self._evaluated = self.steps - self.steps % self.config.eval_every
            with suppress(EvaluationCancelledError):
                evaluation = self._evaluate()
                self._callbacks.call("on_evaluation", self, evaluation)
                for text in self._advisor.compare(evaluation):
                    self._callbacks.call("on_advice", self, text)
                if self.run is not None and self.run.is_better(evaluation.mean, evaluation.mode):
                    self._try_checkpoint(best=evaluation)
        if self.run is not None and self._is_checkpoint_due():
            self._try_checkpoint()

    def _try_checkpoint(self, best: Evaluation | None = None) -> None:
        """Write a checkpoint; a full disk does not end the run."""
        try:
            self.checkpoint(best=best)
        except StorageError as error:
            self._last_checkpoint = (self.steps, time.monotonic())
            self.continue_without_disk(error)

    def _is_checkpoint_due(self) -> bool:
        (steps, moment), every = self._last_checkpoint, self.config.checkpoint_every
        if every is None:
            wait = FIRST_CHECKPOINT_SECONDS if steps == self._resumed_at else CHECKPOINT_SECONDS
            return time.monotonic() - moment >= wait
        return self.steps // every > steps // every

    @property
    def _is_interrupted(self) -> bool:
        return self._stop_reason == "interrupt"

    @property
    def _is_time_up(self) -> bool:
        limit = self.config.max_seconds
        return limit is not None and self.seconds >= limit

    def _why_stop(self) -> str | None:
        trainer = self._trainer
        reasons = {"target": trainer.is_solved, "steps": trainer.is_at_end, "time": self._is_time_up}
        return self._stop_reason or next((reason for reason, holds in reasons.items() if holds), None)

    def _save_after(self, error: BaseException) -> None:
        """After an error: save a checkpoint, if the weights are sound, and call ``on_end``."""
        is_sound = not isinstance(error, AlignmentError | DivergedError | StorageError | KeyboardInterrupt)
        text = (error.summary if isinstance(error, ChildError) else "") or str(error)
        self.reason = f"error: {text or type(error).__name__}"
        if isinstance(error, KeyboardInterrupt):
            self.reason = "interrupt"
        elif is_sound and self.steps > 0:
            try:
                self.checkpoint()
            except Exception as failed:  # the first error is the one to show
                error.add_note(f"after that, saving failed too: {type(failed).__name__}: {failed}")
        failed = self._call_on_end(self.reason)
        if failed is not None:
            error.add_note(f"after that, on_end failed too: {type(failed).__name__}: {failed}")

    def _call_on_end(self, reason: str) -> BaseException | None:
        """Call every ``on_end``, even if one raises, since they close files. Returns the first error."""
        first: BaseException | None = None
        for callback in self._callbacks.all:
            try:
                callback.on_end(self, reason)
            except BaseException as error:
                first = first or error
        return first

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Open a separate env for evaluations, so that they do not affect training."""
        if self.config.eval_every == 0:
            yield
            return
        if not self.agent.can_make_env:
            raise ConfigError(
                "eval_every needs a second instance of the env: give the env's name or a callable that "
                "makes it, not an env instance"
            )
        env = self.agent.make_env(min(self.config.eval_episodes, 16))
        episodes = self.config.eval_episodes
        self._evaluate = lambda: self.agent.evaluate(
            episodes, env=env, cancelled=lambda: self._is_interrupted or self._is_time_up
        )
        try:
            yield
        finally:
            self._evaluate = None
            env.close()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop after this iteration on the first Ctrl-C or SIGTERM, at once on a second Ctrl-C.

        Only with a run folder to save to.
        """
        if self.run is None:
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self._stop_reason == "interrupt":
                # A terminal and a wrapper may both send the first signal: ignore a second one within 1 s.
                if number == signal.SIGINT and time.monotonic() - self._interrupted_at > 1:
                    raise KeyboardInterrupt
                return
            self._interrupted_at = time.monotonic()
            self._stop_reason, self.signal = "interrupt", number  # overrides any other reason
            if any(getattr(callback, "shows_signals", False) for callback in self._callbacks.all):
                return  # the live panel shows it; a printed line would garble the panel
            with suppress(OSError):  # stderr may be closed
                os.write(2, b"\nstopping after this update; Ctrl-C again ends at once\n")

        with interrupts.handled(handle):
            yield
