"""What all displays share: they are told of events, and never break the run that they show."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from recollect.display.state import Clock, State
from recollect.training.callbacks import Callback

if TYPE_CHECKING:
    from recollect.acting.evaluate import Evaluation
    from recollect.training.run_loop import Training


class QuietPipe(Console):
    """A console that says that its reader is gone, where Rich's own ends the whole program."""

    def on_broken_pipe(self) -> None:
        """Called by Rich inside an ``except BrokenPipeError``."""
        raise BrokenPipeError("the reader of this output is gone")


def standard_error() -> Console:
    """The console that displays write to."""
    return QuietPipe(stderr=True)


class Display(Callback):
    """A callback that shows a run. Subclasses override ``start``, ``iterated`` and the like.

    If showing fails, for instance because the reader of a pipe is gone, the display falls silent and
    the run goes on.
    """

    state: State
    """What is known of the training; there after ``on_start``."""

    def __init__(self, clock: Clock = time.monotonic):
        self.clock = clock
        self.is_active = False
        """From ``on_start`` to ``on_end``, unless showing failed."""

    @property
    def shows_signals(self) -> bool:
        """Whether it says by itself that a signal has come: who else writes would spoil what is drawn."""
        return False

    def on_start(self, training: Training) -> None:
        """Say what is about to be trained."""
        self.is_active = True
        self._attempt(self._begin, training)

    def on_iteration(self, training: Training, metrics: dict[str, float]) -> None:
        """Show the metrics if it is time to."""
        self._attempt(self._iterate, metrics)

    def on_evaluation(self, training: Training, evaluation: Evaluation) -> None:
        """Show the evaluation."""
        self._attempt(self._evaluate, evaluation)

    def on_advice(self, training: Training, text: str) -> None:
        """Show the advice."""
        self._attempt(self._advise, text)

    def on_checkpoint(self, training: Training, path: Path) -> None:
        """Show where the checkpoint is."""
        self._attempt(self._save, path)

    def on_end(self, training: Training, reason: str) -> None:
        """Say how it ended, and what can be done next."""
        self._attempt(self.ended, reason)
        self.is_active = False

    def start(self) -> None:
        """The training is about to begin."""

    def iterated(self) -> None:
        """``state`` has new metrics. Comes every few milliseconds: do nothing unless it is time."""

    def evaluated(self) -> None:
        """``state`` has a new evaluation."""

    def advised(self, text: str) -> None:
        """``state`` has new advice."""

    def saved(self, path: Path) -> None:
        """A checkpoint was written."""

    def ended(self, reason: str) -> None:
        """The training is over."""

    def abandon(self, error: BaseException) -> None:
        """Leave the output as it was: this went wrong, and nothing more will be shown."""

    def _begin(self, training: Training) -> None:
        self.state = State(training, self.clock)
        self.start()

    def _iterate(self, metrics: dict[str, float]) -> None:
        self.state.iterated(metrics)
        self.iterated()

    def _advise(self, text: str) -> None:
        self.state.advice.append(text)
        self.advised(text)

    def _save(self, path: Path) -> None:
        self.state.checkpoint = self.state.steps
        self.saved(path)

    def _evaluate(self, evaluation: Evaluation) -> None:
        self.state.evaluated(evaluation)
        self.evaluated()

    def _attempt(self, show: Callable[..., None], *args: Any) -> None:
        if not self.is_active:  # another callback's ``on_start`` may cause events before ours
            return
        try:
            show(*args)
        except (Exception, SystemExit) as error:  # SystemExit is Rich's answer to a closed pipe
            self.is_active = False
            with suppress(Exception, SystemExit):  # the same again, if the output is gone
                self.abandon(error)
            if not isinstance(error, OSError | UnicodeError | SystemExit) and not _is_closed(error):
                warnings.warn(
                    f"the display failed ({type(error).__name__}: {error}) and shows nothing more; the run "
                    "goes on. This is a bug of Recollect: progress=False avoids it",
                    RuntimeWarning,
                    stacklevel=2,
                )


class Quiet(Callback):
    """Shows nothing."""


def _is_closed(error: BaseException) -> bool:
    """Python's own error for a file object that was closed."""
    return isinstance(error, ValueError) and "closed file" in str(error)
