"""The data that displays show: updated by events, read when drawing."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recollect.base import formatting
from recollect.base.tolerances import on_device, tolerance
from recollect.display import words
from recollect.envs.env_names import display_name
from recollect.learning.diagnostics import DEVIATION, deviations
from recollect.policy.policies import any_policy
from recollect.training.evaluation_rows import mode_of
from recollect.training.gauges import BY_NAME, deviation_gauge
from recollect.training.gauges import Gauge as Limits

if TYPE_CHECKING:
    from recollect.acting.evaluate import Evaluation
    from recollect.training.run_loop import Training

Clock = Callable[[], float]
SPEEDS = ("total", "env", "act", "learn", "wait")
ACTOR_PARTS = ("env", "policy", "transport", "learner")
"""Parts of an actor's time; the last is waiting for the learner."""
SMOOTHED = ("actors/slowest", "actors/fastest", *(f"time/{part}" for part in ACTOR_PARTS))
"""Noisy metrics, which are smoothed."""
PLACES = {"processes": "in processes", "ray": "on Ray"}


@dataclass(frozen=True, slots=True)
class Score:
    """The numbers of an evaluation."""

    steps: int
    mean: float
    low: float
    high: float
    length: float
    episodes: int
    mode: str = "greedy"
    sampled: Score | None = None
    """With ``eval_mode`` "both": the numbers of sampled actions."""
    difference: str | None = None
    """``Evaluation.difference``"""

    @classmethod
    def of(cls, evaluation: Evaluation, steps: int) -> Score:
        """The numbers of ``evaluation``, made at env step ``steps``."""
        low, high = evaluation.interval
        length = float(evaluation.lengths.mean())
        both = None if evaluation.sampled is None else cls.of(evaluation.sampled, steps)
        numbers = int(steps), evaluation.mean, low, high, length, len(evaluation.returns)
        return cls(*numbers, evaluation.mode, both, evaluation.difference)

    def __str__(self) -> str:
        interval = f"95% interval {self.interval}"
        both = "" if self.sampled is None else f", {self.sampled}"
        return f"{self.mode} {formatting.number(self.mean)} ({interval}, {self.episodes:,} episodes){both}"

    @property
    def interval(self) -> str:
        """The interval, such as "0.912 to 0.955"."""
        return f"{formatting.number(self.low)} to {formatting.number(self.high)}"

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        both = {} if self.sampled is None else {"sampled": self.sampled.to_json()}
        return {
            "mode": self.mode,
            "mean": self.mean,
            "interval": [self.low, self.high],
            "length": self.length,
            "episodes": self.episodes,
            **both,
            **({} if self.difference is None else {"difference": self.difference}),
        }


@dataclass(frozen=True, slots=True)
class Gauge:
    """An honesty gauge: a check that the learner reproduces what the actor did."""

    name: str
    text: str
    is_good: bool | None
    """None: not measured yet."""


@dataclass(frozen=True, slots=True)
class RemoteActors:
    """The actors in other processes: their speed, time shares and queue."""

    count: int
    runtime: str
    mode: str
    metrics: Mapping[str, float]
    """Metrics of the last update; those of ``SMOOTHED`` are smoothed."""
    waits: float | None
    """Share of its time that the learner waits for rollouts; None if unknown."""

    @property
    def place(self) -> str:
        """Such as "4 in processes, async"."""
        return f"{self.count:,} {PLACES.get(self.runtime, f'by {self.runtime}')}, {self.mode}"

    @property
    def range(self) -> str:
        """The speeds of the slowest and the fastest actor, in env steps per second."""
        slowest, fastest = self._counts("actors/slowest", "actors/fastest")
        return slowest if slowest == fastest else f"{slowest} to {fastest}"

    @property
    def shares(self) -> dict[str, float]:
        """The parts of the actors' time; NaN before the first update."""
        return {part: self.metrics.get(f"time/{part}", math.nan) for part in ACTOR_PARTS}

    def queue(self) -> list[str]:
        """The rollouts that wait, and the largest lag."""
        ready, running = self._counts("queue/ready", "queue/running")
        shown = [f"{ready} rollouts ready", f"{running} running"]
        if self.mode == "async" and "lag/max" in self.metrics:
            shown.append(f"lag at most {self.metrics['lag/max']:g}")
        return shown

    def trouble(self) -> list[str]:
        """Restarts, if there were any."""
        restarts = int(self.metrics.get("restarts", 0))
        return [formatting.plural(restarts, "restart")] if restarts else []

    def _counts(self, *names: str) -> list[str]:
        return [formatting.count(self.metrics.get(name)) for name in names]


class State:
    """Metrics, evaluations and notices of a training. Events store; derived values are computed on read."""

    def __init__(self, training: Training, clock: Clock = time.monotonic):
        self.training, self.clock = training, clock
        self.env = display_name(training.agent.env) or "env"
        self.core = type(any_policy(training.agent.network).core).__name__
        self.run: str | None = None if training.run is None else words.path(training.run.path)
        self.metrics: dict[str, float] = {}
        self.evaluation: Score | None = None
        best = None if training.run is None else training.run.status.get("best")
        self.best = None if not best else (float(best["mean"]), int(best["steps"]), mode_of(best))
        """Mean, env steps and mode of the best evaluation, also of a resumed run."""
        self.checkpoint: int | None = None
        self.notices: deque[str] = deque(maxlen=3)
        """The latest advice and warnings."""
        self.staleness: float | None = None
        self.compared: dict[str, float] = {}
        """The metrics of the last update that measured deviations."""
        self.first_step = int(training.steps)
        self._began, self._before = clock(), float(training.seconds)
        self._smooth: dict[str, float] = {}
        self._marks = deque([(self._began, training.steps)], maxlen=240)

    def iterated(self, metrics: dict[str, float]) -> None:
        """Store the metrics of an update."""
        self.metrics = metrics
        if "staleness" in metrics:  # not measured in every update
            self.staleness = metrics["staleness"]
        if any(
            name.startswith(DEVIATION) for name in metrics
        ):  # not measured in every update of an async run
            self.compared = metrics

    def evaluated(self, evaluation: Evaluation) -> Score:
        """Store an evaluation. A tie goes to the later one, as in ``Run.is_better``."""
        score = self.evaluation = Score.of(evaluation, self.training.steps)
        best = None if self.best is None or self.best[2] != score.mode else self.best[0]
        if math.isfinite(score.mean) and (best is None or score.mean >= best):
            self.best = (score.mean, score.steps, score.mode)
        return score

    def saved(self) -> None:
        """Store the env steps of a checkpoint."""
        self.checkpoint = self.steps

    @property
    def steps(self) -> int:
        """Env steps so far."""
        return int(self.training.steps)

    @property
    def fraction(self) -> float:
        """Progress of this training, in [0, 1]."""
        start, end = self.training.start, self.training.end
        return min(1.0, max(0.0, (self.steps - start) / max(1, end - start)))

    @property
    def elapsed(self) -> float:
        """Seconds of training, those before a resume included."""
        return self._before + self.spent

    @property
    def spent(self) -> float:
        """Seconds since this display started."""
        return self.clock() - self._began

    def mark(self) -> None:
        """Record time and steps, and smooth the speeds; called before each redraw."""
        now, steps = self.clock(), self.steps
        if steps > self._marks[-1][1]:
            self._marks.append((now, steps))
        for name in (*(f"speed/{name}" for name in SPEEDS), *SMOOTHED):
            value = self.metrics.get(name, math.nan)
            if math.isfinite(value):
                self._smooth[name] = 0.6 * self._smooth.get(name, value) + 0.4 * value

    def left(self) -> float | None:
        """Estimated seconds to the end, at the speed of the last marks; None if unknown."""
        (then, before), (_, steps) = self._marks[0], self._marks[-1]
        spent = self.clock() - then
        limit = self.training.config.max_seconds
        by_time = math.inf if limit is None else max(0.0, limit - self.elapsed)
        if steps <= before or spent <= 0:
            return None if limit is None else by_time
        return min(max(0, self.training.end - self.steps) * spent / (steps - before), by_time)

    def speed(self, name: str) -> float | None:
        """Env steps per second, smoothed over redraws."""
        return self._smooth.get(f"speed/{name}")

    def shares(self) -> dict[str, float]:
        """Shares of an iteration's time, where known: env, act, learn; with remote actors learn and wait."""
        names = ("env", "act", "learn") if self.training.config.runtime == "inline" else ("learn", "wait")
        total = self.speed("total")
        if not total:
            return {}
        return {name: min(1.0, total / speed) for name in names if (speed := self.speed(name))}

    def remote_actors(self) -> RemoteActors | None:
        """The actors, if they live in other processes."""
        config = self.training.config
        if config.runtime == "inline":
            return None
        smooth = {name: self._smooth[name] for name in SMOOTHED if name in self._smooth}
        metrics = self.metrics | smooth
        return RemoteActors(config.actors, config.runtime, config.mode, metrics, self.shares().get("wait"))

    def returns(self) -> list[float]:
        """The mean returns over the run, from the bounded history."""
        return [row["return"] for row in list(self.training.history.rows) if "return" in row]

    def deviations(self) -> dict[str, float | None]:
        """The deviations of the fields of the record, in their units; None before the first check."""
        spec = any_policy(self.training.agent.network).head.record_spec
        found = deviations(self.compared, spec)
        return {name: found.get(name) for name, field in spec.items() if field.is_compared}

    def gauges(self) -> list[Gauge]:
        """The honesty gauges: deviation, staleness, lag."""
        config, metrics = self.training.config, self.metrics
        rounding = getattr(any_policy(self.training.agent.network).core, "rounding", 1.0)
        precision = on_device(config.policy.precision, config.device)
        settings = {"tolerance": tolerance(config.algo.tolerance, precision, rounding)}
        gauges = [
            Gauge(
                name.replace("_", "-"), formatting.tiny(found), _good(deviation_gauge(name), found, settings)
            )
            for name, found in self.deviations().items()
        ]
        if config.algo.gauge_every:
            stale = self.staleness
            text = formatting.ABSENT if stale is None else f"{stale:.2f}"
            gauges.append(Gauge("staleness", text, _good(BY_NAME["staleness"], stale)))
        if (lag := metrics.get("lag")) is not None:
            is_allowed = metrics.get("lag/max", lag) <= config.lag_limit
            gauges.append(Gauge("lag", f"{round(lag, 2):g}", is_allowed and _good(BY_NAME["lag"], lag)))
        return gauges


def _good(limits: Limits, value: float | None, settings: Mapping[str, float] | None = None) -> bool | None:
    return None if value is None else limits.side(value, settings) is None
