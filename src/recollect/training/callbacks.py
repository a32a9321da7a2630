"""Callbacks: hooks into a training, which can also stop it.

::

    class Print(rc.Callback):
        def on_evaluation(self, training, evaluation):
            print(training.steps, evaluation)
            if evaluation.mean > 0.95:
                training.stop("good enough")

    rc.train("t-maze", eval_every=20_000, callbacks=[Print()])

A plain function counts as ``on_iteration``: ``callbacks=[lambda training, metrics: ...]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.base.formatting import digits
from recollect.errors import ConfigError, nearest
from recollect.training.metrics import GLOSSARY

if TYPE_CHECKING:
    from recollect.acting.evaluate import Evaluation
    from recollect.training.run_loop import Training


@dataclass(frozen=True, slots=True)
class EpisodeEnd:
    """A training episode that has just ended."""

    return_: float
    """Sum of its raw rewards."""
    length: int
    """Its valid steps."""


class Callback:
    """Base class: override the events you need. All methods run in the training process."""

    def on_start(self, training: Training) -> None:
        """Before the first iteration."""

    def on_iteration(self, training: Training, metrics: dict[str, float]) -> None:
        """After every update."""

    def on_episode(self, training: Training, episode: EpisodeEnd) -> None:
        """After each episode, in order of time, before ``on_iteration`` of its rollout."""

    def on_evaluation(self, training: Training, evaluation: Evaluation) -> None:
        """After an evaluation (``eval_every``)."""

    def on_advice(self, training: Training, text: str) -> None:
        """Advice on settings, because of unhealthy metrics; each piece comes once."""

    def on_warning(self, training: Training, text: str) -> None:
        """Something went wrong and the run goes on: an actor died and was restarted, the disk is full."""

    def on_checkpoint(self, training: Training, path: Path) -> None:
        """After a checkpoint was written to ``path``."""

    def on_end(self, training: Training, reason: str) -> None:
        """After the last iteration, also after an error (``"error: ..."``)."""


class Function(Callback):
    """A plain function as ``on_iteration``."""

    def __init__(self, function: Callable[[Training, dict[str, float]], Any]):
        self.function = function

    def on_iteration(self, training: Training, metrics: dict[str, float]) -> None:
        """Call the function."""
        self.function(training, metrics)


class EarlyStopping(Callback):
    """Stop when a metric has not improved for ``patience`` env steps.

    Args:
        metric: a name from the glossary such as "return", or "evaluation" for the mean of each evaluation
            (with ``eval_mode`` "both" the greedy one).
        patience: env steps without improvement before the run stops.
        min_delta: smallest change that counts as an improvement.
        mode: "max" if higher is better, "min" if lower is.
    """

    def __init__(
        self, metric: str = "return", *, patience: int, min_delta: float = 0.0, mode: str = "max"
    ) -> None:
        if metric not in GLOSSARY and metric != "evaluation":
            known = [*GLOSSARY, "evaluation"]
            raise ConfigError(
                f"EarlyStopping: there is no metric {metric!r}{nearest(metric, known)}; "
                "recollect.training.metrics.GLOSSARY lists them all"
            )
        if mode not in ("max", "min"):
            raise ConfigError(f"EarlyStopping: mode is {mode!r}: choose 'max' or 'min'")
        if patience < 1 or min_delta < 0:
            raise ConfigError("EarlyStopping: patience must be at least 1 and min_delta not negative")
        self.metric, self.patience, self.min_delta = metric, patience, min_delta
        self._sign = 1 if mode == "max" else -1
        self._best: float | None = None
        self._best_steps = 0

    def on_start(self, training: Training) -> None:
        """Reset the count; raise ConfigError if the metric will never be measured."""
        if self.metric == "evaluation" and training.config.eval_every == 0:
            raise ConfigError("EarlyStopping on evaluations needs evaluations: set eval_every")
        self._best, self._best_steps = None, training.steps

    def on_iteration(self, training: Training, metrics: dict[str, float]) -> None:
        """Check the metric, if this update measured it."""
        if self.metric in metrics:
            self._check(training, metrics[self.metric])

    def on_evaluation(self, training: Training, evaluation: Evaluation) -> None:
        """Check the mean return."""
        if self.metric == "evaluation":
            self._check(training, evaluation.mean)

    def _check(self, training: Training, value: float) -> None:
        if math.isnan(value):
            return
        if self._best is None or self._sign * (value - self._best) > self.min_delta:
            self._best, self._best_steps = value, training.steps
        elif training.steps - self._best_steps >= self.patience:
            training.stop(
                f"{self.metric} has not improved on {digits(self._best, 4)} for {self.patience:,} steps"
            )


class CallbackList:
    """Calls several callbacks in turn."""

    def __init__(self, callbacks: Iterable[Callback | Callable[..., Any]]):
        self.all = [_checked(callback) for callback in callbacks]
        self.wants_episodes = any(type(c).on_episode is not Callback.on_episode for c in self.all)
        """Whether any callback overrides ``on_episode``; if not, the loop over episodes is skipped."""

    def call(self, event: str, *args: Any) -> None:
        """Call the method ``event`` of each callback."""
        for callback in self.all:
            getattr(callback, event)(*args)


def _checked(callback: Any) -> Callback:
    if isinstance(callback, Callback):
        return callback
    if isinstance(callback, type) and issubclass(callback, Callback):
        raise ConfigError(
            f"callbacks holds the class {callback.__name__}: pass an instance, {callback.__name__}(...)"
        )
    if not callable(callback):
        raise ConfigError(
            f"callbacks holds a {type(callback).__name__}: give instances of recollect.Callback, or "
            "functions (training, metrics)"
        )
    return Function(callback)
