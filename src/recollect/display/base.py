"""The base class of displays: it handles events and failures of the output."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from recollect.display.state import Clock, State
from recollect.training.callbacks import Callback

if TYPE_CHECKING:
    from recollect.acting.evaluate import Evaluation
    from recollect.training.run_loop import Training


class QuietPipe(Console):
    """A console that raises BrokenPipeError when its reader has closed; Rich's own ends the program."""

    def on_broken_pipe(self) -> None:
        """Called by Rich inside an ``except BrokenPipeError``."""
        raise BrokenPipeError("the reader of this output has closed")


def standard_error() -> Console:
    """The console that displays write to."""
    return QuietPipe(stderr=True)


def can_redraw(console: Console) -> bool:
    """Whether output can be redrawn in place: a real terminal, not a file with forced colours (CI)."""
    is_live = console.is_terminal and console.is_interactive and not console.is_dumb_terminal
    return is_live and console.file.isatty()


class Display(Callback):
    """A callback that displays a run. Subclasses override ``start``, ``draw`` and the like.

    If the output fails, for instance because a pipe was closed, the display stops and the run continues.
    """

    state: State
    """The data to display; set in ``on_start``."""
    every = 0.0
    """Minimum seconds between two drawings."""

    def __init__(self, clock: Clock = time.monotonic):
        self.clock = clock
        self.is_active = False
        """True from ``on_start`` to ``on_end``, unless the output failed."""
        self.drawn_at = 0.0

    @property
    def shows_signals(self) -> bool:
        """Whether the display itself shows that a signal was received, so that nothing else is printed."""
        return False

    def on_start(self, training: Training) -> None:
        """Show env, core and run."""
        self.is_active = True
        self._attempt(lambda: self._begin(training), self.start)

    def on_iteration(self, training: Training, metrics: dict[str, float]) -> None:
        """Show the metrics, at a limited rate."""
        self._attempt(lambda: self.state.iterated(metrics), self.iterated)

    def on_evaluation(self, training: Training, evaluation: Evaluation) -> None:
        """Show the evaluation."""
        self._attempt(lambda: self.state.evaluated(evaluation), self.evaluated)

    def on_advice(self, training: Training, text: str) -> None:
        """Show the advice."""
        self._attempt(lambda: self.state.notices.append(text), lambda: self.advised(text))

    def on_warning(self, training: Training, text: str) -> None:
        """Show the warning."""
        self._attempt(lambda: self.state.notices.append(text), lambda: self.warned(text))

    def on_checkpoint(self, training: Training, path: Path) -> None:
        """Show the checkpoint's path."""
        self._attempt(lambda: self.state.saved(), lambda: self.saved(path))

    def on_end(self, training: Training, reason: str) -> None:
        """Show the result and the next commands."""
        self._attempt(lambda: self.ended(reason))
        self.is_active = False

    def start(self) -> None:
        """Called before training."""

    def iterated(self) -> None:
        """``state`` has new metrics, perhaps every few milliseconds. Draw, at a limited rate."""
        if self.clock() - self.drawn_at >= self.every:
            self.draw()

    def evaluated(self) -> None:
        """``state`` has a new evaluation. Draw, at a limited rate."""
        self.iterated()

    def draw(self) -> None:
        """Show ``state``. Subclasses extend this method by their output."""
        self.drawn_at = self.clock()
        self.state.mark()

    def advised(self, text: str) -> None:
        """``state`` has new advice."""

    def warned(self, text: str) -> None:
        """``state`` has a new warning."""

    def saved(self, path: Path) -> None:
        """A checkpoint was written."""

    def ended(self, reason: str) -> None:
        """Training has ended."""

    def abandon(self, error: BaseException) -> None:
        """Restore the output after an error; nothing more will be shown."""

    def _begin(self, training: Training) -> None:
        self.state = State(training, self.clock)

    def _attempt(self, *actions: Callable[[], object]) -> None:
        if not self.is_active:  # another callback's ``on_start`` may cause events before ours
            return
        try:
            for action in actions:
                action()
        except (Exception, SystemExit) as error:  # SystemExit is Rich's answer to a closed pipe
            self.is_active = False
            with suppress(Exception, SystemExit):  # a closed output fails again
                self.abandon(error)
            is_closed = isinstance(error, ValueError) and "closed file" in str(error)
            if not is_closed and not isinstance(error, OSError | UnicodeError | SystemExit):
                warnings.warn(
                    f"the display failed ({type(error).__name__}: {error}); the run continues without it. "
                    "This is a bug in Recollect: progress=False avoids it",
                    RuntimeWarning,
                    stacklevel=2,
                )
