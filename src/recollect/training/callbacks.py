"""Callbacks: what is told while a run trains, and how to stop it.

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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.errors import ConfigError, nearest
from recollect.training.metrics import GLOSSARY

if TYPE_CHECKING:
    from recollect.acting.evaluate import Evaluation
    from recollect.training.run_loop import Training


@dataclass(frozen=True, slots=True)
class EpisodeEnd:
    """An episode of the training that has just ended."""

    return_: float
    """The sum of its raw rewards."""
    length: int
    """Its valid steps."""


class Callback:
    """Override what you need; every method does nothing by itself. All are called in the training process."""

    def on_start(self, training: Training) -> None:
        """Before the first iteration."""

    def on_iteration(self, training: Training, metrics: dict[str, float]) -> None:
        """After every update."""

    def on_episode(self, training: Training, episode: EpisodeEnd) -> None:
        """For each episode that ended, in order of time, before ``on_iteration`` of its rollout."""

    def on_evaluation(self, training: Training, evaluation: Evaluation) -> None:
        """After an evaluation (``eval_every``)."""

    def on_advice(self, training: Training, text: str) -> None:
        """Something looks unhealthy; each piece of advice comes once."""

    def on_checkpoint(self, training: Training, path: Path) -> None:
        """A checkpoint was written."""

    def on_end(self, training: Training, reason: str) -> None:
        """After the last iteration, also after an error (``"error: ..."``)."""


class Function(Callback):
    """A plain function as ``on_iteration``."""

    def __init__(self, function: Callable[[Training, dict[str, float]], Any]):
        self.function = function

    def on_iteration(self, training: Training, metrics: dict[str, float]) -> None:
        """Call it."""
        self.function(training, metrics)


class EarlyStopping(Callback):
    """Stop when a metric has not improved for a while.

    Args:
        metric: a name of the glossary such as "return", or "evaluation": the mean of each evaluation.
        patience: env steps without improvement after which to stop.
        min_delta: what counts as an improvement.
        mode: "max" if more is better, "min" if less is.
    """

    def __init__(
        self, metric: str = "return", *, patience: int, min_delta: float = 0.0, mode: str = "max"
    ) -> None:
        if metric not in GLOSSARY and metric != "evaluation":
            known = [*GLOSSARY, "evaluation"]
            raise ConfigError(
                f"EarlyStopping: there is no metric {metric!r}{nearest(metric, known)}; "
                "recollect.training.metrics.GLOSSARY has them all"
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
        """Begin to count, and refuse a metric that will never come."""
        if self.metric == "evaluation" and training.config.eval_every == 0:
            raise ConfigError("EarlyStopping on evaluations needs evaluations: set eval_every")
        self._best, self._best_steps = None, training.steps

    def on_iteration(self, training: Training, metrics: dict[str, float]) -> None:
        """Look at the metric, where it has a value."""
        if self.metric in metrics:
            self._look(training, metrics[self.metric])

    def on_evaluation(self, training: Training, evaluation: Evaluation) -> None:
        """Look at the mean."""
        if self.metric == "evaluation":
            self._look(training, evaluation.mean)

    def _look(self, training: Training, value: float) -> None:
        if math.isnan(value):  # no value, and no best to compare with
            return
        if self._best is None or self._sign * (value - self._best) > self.min_delta:
            self._best, self._best_steps = value, training.steps
        elif training.steps - self._best_steps >= self.patience:
            training.stop(f"{self.metric} has not improved on {self._best:.4g} for {self.patience:,} steps")


class CallbackList:
    """Tells each of several callbacks in turn."""

    def __init__(self, callbacks: Iterable[Callback | Callable[..., Any]]):
        self.all = [_checked(callback) for callback in callbacks]
        self.wants_episodes = any(type(c).on_episode is not Callback.on_episode for c in self.all)
        """Whether anybody listens to ``on_episode``; to tell nobody of a million episodes costs time."""

    def __iter__(self) -> Iterator[Callback]:
        return iter(self.all)

    def tell(self, event: str, *args: Any) -> None:
        """Call the method ``event`` of each."""
        for callback in self.all:
            getattr(callback, event)(*args)


def _checked(callback: Any) -> Callback:
    if isinstance(callback, Callback):
        return callback
    if isinstance(callback, type) and issubclass(callback, Callback):
        raise ConfigError(f"callbacks holds the class {callback.__name__}: pass an object, such as its call")
    if not callable(callback):
        raise ConfigError(
            f"callbacks holds a {type(callback).__name__}: give objects of subclasses of recollect.Callback, "
            "or functions (training, metrics)"
        )
    return Function(callback)
