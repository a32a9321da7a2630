"""Training: the loop around a trainer. It evaluates, saves, tells the callbacks, and knows when to stop."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from recollect.config.train import TrainConfig
from recollect.errors import (
    AlignmentError,
    ConfigError,
    DivergedError,
    EvaluationCancelledError,
    StorageError,
)
from recollect.training.callbacks import Callback, CallbackList, EpisodeEnd
from recollect.training.metrics import History
from recollect.training.recorder import Recorder
from recollect.training.run_folder import Run
from recollect.training.trainee import Trainee
from recollect.training.trainer import Trainer

CHECKPOINT_SECONDS = 60.0
"""Between two checkpoints, unless ``checkpoint_every`` says otherwise."""


class Training:
    """One stretch of training: from ``start`` to ``end`` env steps, or until somebody stops it.

    Callbacks get this object. What they may read: ``agent``, ``config``, ``run``, ``start``, ``end``,
    ``steps``, ``seconds``, ``metrics``, ``history``; what they may call: ``stop``.
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
    ):
        """``run``: opened for writing; ``seconds``: of the training before this one."""
        self.agent, self.run, self.opening = agent, run, opening
        self.history: History = agent.history
        self.metrics: dict[str, float] = {}
        self.reason: str | None = None
        """Why the training ended; None while it goes on."""
        self._trainer = trainer
        recorder = [] if run is None else [Recorder(run)]
        self._callbacks = CallbackList([*recorder, *callbacks])
        self._advisor = agent.advisor
        self.signal = 0
        """The number of the signal that interrupted the training, if one did."""
        self._asked: str | None = None
        self._asked_at = 0.0
        self._seconds_before = seconds
        self._began = time.monotonic()
        self._last_checkpoint: tuple[int, float] = (trainer.steps, self._began)
        self._saved_at: int | None = None
        """The steps of the checkpoint that holds everything up to now, once there is one."""
        if run is not None and any(int(path.name) == trainer.steps for path in run.checkpoints()):
            self._saved_at = trainer.steps
        self._is_disk_failing = False
        self._evaluated = self._last_evaluation()
        self._evaluate: Callable[[], Any] | None = None

    @property
    def config(self) -> TrainConfig:
        """The agent's."""
        return self.agent.config

    @property
    def start(self) -> int:
        """The env steps at which this leg of the training began."""
        return self._trainer.start

    @property
    def end(self) -> int:
        """The env steps at which it ends."""
        return self._trainer.end

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
        """Wall time of training so far, that before a resume included. No clock that can be set counts."""
        return self._seconds_before + time.monotonic() - self._began

    def stop(self, reason: str = "stopped") -> None:
        """End after this iteration: a checkpoint is written and the agent comes back as it is.

        ``on_end`` and the run's status tell ``"callback: REASON"``; the first who asks gives the reason.
        """
        self._asked = self._asked or f"callback: {reason}"

    def fit(self) -> dict[str, float]:
        """Train. Returns the last update's metrics; ``reason`` says why it ended."""
        started = False
        try:
            with self._signals(), self._trainer.working(), self._evaluating():
                started = True
                self._callbacks.tell("on_start", self)
                if self.run is not None and not self.run.checkpoints():
                    self.checkpoint()  # so that there is something to resume from, whatever happens
                if self.steps > self.start:  # resumed, perhaps after it was killed just before its end
                    self.reason = self._why_stop()
                while self.reason is None:
                    self._iterate()
                    self.reason = self._why_stop()
                self.checkpoint()
        except BaseException as error:
            if started:
                self._rescue(error)
            raise
        failed = self._tell_end(self.reason)
        if failed is not None:
            raise failed
        return self.metrics

    def checkpoint(self, *, is_best: float | None = None) -> None:
        """Write a checkpoint now, if there is a run folder; ``is_best``: it is the best, with this mean."""
        if self.run is None or (is_best is None and self._saved_at == self.steps):
            return  # where it is, it already has one
        path = self.run.save(self.agent, self._trainer.learned(live=True), seconds=self.seconds, mean=is_best)
        self._last_checkpoint, self._saved_at = (self.steps, time.monotonic()), self.steps
        self._is_disk_failing = False
        self._callbacks.tell("on_checkpoint", self, path)

    def bear(self, error: StorageError) -> None:
        """Go on although something could not be written. Told once, until a checkpoint can be written."""
        if not self._is_disk_failing:
            self._is_disk_failing = True
            self._callbacks.tell("on_advice", self, f"{error}. The run goes on and tries again later")

    def _iterate(self) -> None:
        try:
            iteration = self._trainer.iterate()
        except BaseException as error:
            # Half an iteration cannot be gone on with: what is saved now continues in new episodes.
            try:
                self._trainer.restart_episodes()
            except Exception as failed:  # the first error is the one to show
                error.add_note(f"after that, {type(failed).__name__}: {failed}")
            raise
        self.metrics = iteration.metrics
        self.history.add(iteration.metrics)
        for text in [*iteration.notes, *self._advisor.watch(iteration.metrics)]:
            self._callbacks.tell("on_advice", self, text)
        if self._callbacks.wants_episodes:
            ended = iteration.episodes
            for total, length in zip(ended.returns.tolist(), ended.lengths.tolist()):
                self._callbacks.tell("on_episode", self, EpisodeEnd(total, length))
        self._callbacks.tell("on_iteration", self, iteration.metrics)
        if self._evaluate is not None and self.steps - self._evaluated >= self.config.eval_every:
            self._evaluated = self.steps - self.steps % self.config.eval_every
            with suppress(EvaluationCancelledError):
                evaluation = self._evaluate()
                self._callbacks.tell("on_evaluation", self, evaluation)
                if self.run is not None and self.run.is_better(evaluation.mean):
                    self._try_checkpoint(is_best=evaluation.mean)
        if self._is_checkpoint_due():
            self._try_checkpoint()

    def _last_evaluation(self) -> int:
        """The multiple of ``eval_every`` that was evaluated last. One that failed is still due."""
        rows = [] if self.run is None else self.run.evaluations()
        steps = self.steps if self.run is None else rows[-1]["steps"] if rows else 0
        return steps - steps % max(1, self.config.eval_every)

    def _try_checkpoint(self, is_best: float | None = None) -> None:
        """A checkpoint on the way. A disk that is full for a while does not end the run."""
        try:
            self.checkpoint(is_best=is_best)
        except StorageError as error:
            self._last_checkpoint = (self.steps, time.monotonic())
            self.bear(error)

    def _is_checkpoint_due(self) -> bool:
        if self.run is None:
            return False
        steps, moment = self._last_checkpoint
        every = self.config.checkpoint_every
        if every is None:
            return time.monotonic() - moment >= CHECKPOINT_SECONDS
        return self.steps // every > steps // every

    @property
    def _is_time_up(self) -> bool:
        limit = self.config.max_seconds
        return limit is not None and self.seconds >= limit

    def _must_hurry(self) -> bool:
        """Whether an evaluation is to be given up: somebody wants the run to end, or its time is up."""
        return self._asked == "interrupt" or self._is_time_up

    def _why_stop(self) -> str | None:
        if self._asked is not None:
            return self._asked
        if self._trainer.is_solved:
            return "target"
        if self._trainer.is_at_end:
            return "steps"
        if self._is_time_up:
            return "time"
        return None

    def _rescue(self, error: BaseException) -> None:
        """After an error in mid-run: keep what was learned since the last checkpoint, and tell everybody."""
        is_sound = not isinstance(error, AlignmentError | DivergedError | StorageError | KeyboardInterrupt)
        self.reason = f"error: {error or type(error).__name__}"
        if isinstance(error, KeyboardInterrupt):
            self.reason = "interrupt"
        elif is_sound and self.steps > 0:
            try:
                self.checkpoint()
            except Exception as failed:  # the first error is the one to show
                error.add_note(f"after that, saving failed too: {type(failed).__name__}: {failed}")
        failed = self._tell_end(self.reason)
        if failed is not None:
            error.add_note(f"after that, on_end failed too: {type(failed).__name__}: {failed}")

    def _tell_end(self, reason: str) -> BaseException | None:
        """Tell all, whatever one of them does: a file is to be closed, a terminal to be set right."""
        first: BaseException | None = None
        for callback in self._callbacks:
            try:
                callback.on_end(self, reason)
            except BaseException as error:
                first = first or error
        return first

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """An env of its own for evaluations, so that training does not notice them."""
        if self.config.eval_every == 0:
            yield
            return
        if not self.agent.can_make_env:
            raise ConfigError(
                "eval_every needs an env that can be made a second time: give its name or a callable "
                "that makes it, not an env object"
            )
        env = self.agent.make_env(min(self.config.eval_episodes, 16))
        episodes = self.config.eval_episodes
        self._evaluate = lambda: self.agent.evaluate(episodes, env=env, cancelled=self._must_hurry)
        try:
            yield
        finally:
            self._evaluate = None
            env.close()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM ends the run after this iteration, a second Ctrl-C at once.

        Only with a run folder, where there is something to save to, and in the main thread, where
        Python allows it.
        """
        if self.run is None or threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self._asked == "interrupt":
                # Once is enough for a signal that comes twice, from a terminal and a wrapper.
                if number == signal.SIGINT and time.monotonic() - self._asked_at > 1:
                    raise KeyboardInterrupt
                return
            self._asked_at = time.monotonic()
            self._asked, self.signal = "interrupt", number  # stronger than any other reason
            if any(getattr(callback, "shows_signals", False) for callback in self._callbacks):
                return  # a live panel says it, and a line in between would tear it
            with suppress(OSError):  # nobody may be there to read it
                os.write(2, b"\nstopping after this update; Ctrl-C again ends at once\n")

        numbers = [signal.SIGINT, signal.SIGTERM]
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # no nohup
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
