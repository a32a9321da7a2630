"""Gauges: the healthy range of each metric, and advice for values outside it.

The display, the advice during a run and the report all judge by these ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from recollect.base.files import is_number

SETTLING = 10
"""Updates at the start of a run that are not judged."""
ALLOWED = 0.1
"""Fraction of the judged updates that may be outside the range of a healthy gauge."""

Side = Literal["above", "below"]
Verdict = Side | Literal["healthy", "unjudged", "missing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """The healthy range of one metric."""

    name: str
    """The metric."""
    low: float | None = None
    """Lowest healthy value; None: no limit."""
    high: float | None = None
    """Highest healthy value; None: no limit."""
    setting: str | None = None
    """A setting of the algorithm, drawn as a line."""
    relative: bool = False
    """Whether ``high`` is a multiple of ``setting``."""
    log: bool = False
    """Whether it is drawn on a logarithmic scale."""
    strict: bool = False
    """Whether a single update outside the range counts."""
    above: str = ""
    """Cause and fix if the values are too high."""
    below: str = ""
    """Cause and fix if the values are too low."""
    is_for_learning: bool = False
    """Whether it says nothing after the run has settled at its best return (``ReturnTrend``)."""
    words: str = ""
    """A note on typical values."""

    def limit(self, settings: Mapping[str, Any]) -> float | None:
        """The highest healthy value in a run with these settings of the algorithm."""
        if not self.relative:
            return self.high
        line = self.line(settings)
        return None if line is None or self.high is None else self.high * line

    def line(self, settings: Mapping[str, Any]) -> float | None:
        """The value of ``setting``, if it is a number."""
        value = settings.get(self.setting) if self.setting else None
        return float(value) if value is not None and is_number(value) else None

    def side(self, value: float, settings: Mapping[str, Any] | None = None) -> Side | None:
        """The side on which one value is out of the range; None: it is healthy, or there is no range."""
        limit = self.limit(settings or {})
        if limit is not None and self.above and value > limit:
            return "above"
        return "below" if self.low is not None and self.below and value < self.low else None


@dataclass(frozen=True, slots=True)
class Judged:
    """A gauge with its range and verdict for one run."""

    gauge: Gauge
    high: float | None
    """Highest healthy value in this run."""
    line: float | None
    """The value of ``gauge.setting`` in this run."""
    verdict: Verdict
    share: float
    """Fraction of the judged updates outside the range."""

    @property
    def advice(self) -> str:
        """Cause and fix of values outside the range."""
        return {"above": self.gauge.above, "below": self.gauge.below}.get(self.verdict, "")


_deviation = partial(
    Gauge,
    high=1.0,
    setting="tolerance",
    relative=True,
    log=True,
    strict=True,
    words="Rounding: about 1e-7 with few actions and small values, a few 1e-5 with many action dimensions.",
)
GAUGES: tuple[Gauge, ...] = (
    _deviation(
        name="deviation/log_prob",
        above="The learner does not reproduce the actor's steps, or rounds more. A replay in float64 has "
        "decided: the run stops unless the deviation is rounding.",
    ),
    _deviation(
        name="deviation/value",
        above="As for log-probs: the learner's state, reset or observation differs from the actor's, or the "
        "precision is lower.",
    ),
    _deviation(
        name="deviation/q",
        above="The learner does not reproduce the values that the actor recorded: its state, reset or "
        "observation differs, or the precision is lower.",
    ),
    Gauge(
        name="replay/staleness",
        low=0.0,
        high=0.5,
        above="Stored states no longer fit the weights. Raise burn_in_steps, lower replay_capacity or "
        "learning_rate.",
    ),
    Gauge(
        name="staleness",
        low=0.0,
        high=0.3,
        above="The stored states no longer fit the weights. Use fewer epochs, a lower learning_rate, or "
        "refresh_states=True.",
    ),
    Gauge(
        name="lag",
        low=0.0,
        high=4.0,
        above="The actors use old weights. Use fewer actors, a shorter rollout, or mode=lockstep.",
    ),
    Gauge(
        name="kl",
        low=0.0,
        high=0.03,
        above="Updates change the policy a lot. Lower learning_rate, use fewer epochs, or set target_kl.",
        words="0.005 to 0.03 while the policy improves; near 0 after convergence.",
    ),
    Gauge(
        name="clip_fraction",
        low=0.0,
        high=0.3,
        above="Many steps are clipped and give no gradient. Lower learning_rate or use fewer epochs.",
    ),
    Gauge(
        name="grad_norm",
        setting="max_grad_norm",
        log=True,
        words="Larger gradients are scaled down to the line.",
    ),
    Gauge(
        name="grad_clip_rate",
        low=0.0,
        high=0.99,
        above="Every gradient is clipped, so the step size no longer depends on it. Lower learning_rate, or "
        "raise max_grad_norm.",
    ),
    Gauge(
        name="explained_variance",
        low=0.0,
        high=1.0,
        is_for_learning=True,
        below="The critic predicts no better than a constant. This is normal if all returns are equal; "
        "otherwise train longer, or raise value_coef.",
        words="Rises towards 1 as the critic learns.",
    ),
    Gauge(
        name="entropy",
        low=0.0,
        words="Falls as the policy converges. If it falls before the return rises, raise entropy.",
    ),
    Gauge(name="state/norm", low=0.0, words="Should level off. A state that keeps growing saturates."),
    Gauge(name="state/drift", words="Should stay near 0: the state neither grows nor decays in an episode."),
    Gauge(name="loss/policy", words="Small and noisy; its size means little."),
    Gauge(name="loss/value", low=0.0, words="Below 0.5 the critic is better than the mean return."),
    Gauge(name="value_scale", low=0.0, words="Follows the standard deviation of the returns."),
    Gauge(
        name="q/mean",
        words="Approaches the discounted return. If it grows without bound, lower learning_rate, let the "
        "target network follow more slowly, or, with a time limit, set bootstrap_time_limits=False.",
    ),
    Gauge(name="td_error", low=0.0, words="Falls as the values are learned, and rises with new rewards."),
    Gauge(name="epsilon", low=0.0, words="Follows its schedule."),
    Gauge(name="replay/ratio", low=0.0, words="Stays near replay_ratio once the replay is warm."),
    Gauge(name="learning_rate", low=0.0, words="Follows its schedule."),
    Gauge(name="entropy_coef", low=0.0, words="Follows its schedule."),
    Gauge(name="length", low=0.0),
)
"""All gauges of a report, in order."""
BY_NAME = {gauge.name: gauge for gauge in GAUGES}


def deviation_gauge(name: str) -> Gauge:
    """The gauge ``deviation/NAME`` of a field of the record, also of a user's own head."""
    known = BY_NAME.get(f"deviation/{name}")
    return known or replace(BY_NAME["deviation/value"], name=f"deviation/{name}")


def judge(gauge: Gauge, values: np.ndarray, algo: Mapping[str, Any], *, is_settled: bool = False) -> Judged:
    """The verdict on ``values`` [N], one per update, of a run with the settings ``algo``.

    Only the second half of the run counts, without the first ``SETTLING`` updates. ``is_settled``: the run
    has ended at its best return (``ReturnTrend``).
    """
    high = gauge.limit(algo)
    verdict, share = _verdict(gauge, high, values)
    if is_settled and gauge.is_for_learning and verdict != "missing":
        verdict = "unjudged"
    return Judged(gauge, high, gauge.line(algo), verdict, share)


def _verdict(gauge: Gauge, high: float | None, values: np.ndarray) -> tuple[Verdict, float]:
    """The verdict, and the fraction of the judged updates outside the range."""
    finite = np.flatnonzero(np.isfinite(values))
    if not len(finite):
        return "missing", 0.0
    start = 0 if gauge.strict else max(SETTLING, len(values) // 2)
    judged = values[finite[finite >= start]]
    if not len(judged) or (high is None and not gauge.below):
        return "unjudged", 0.0
    too_high = float((judged > high).mean()) if high is not None and gauge.above else 0.0
    too_low = float((judged < gauge.low).mean()) if gauge.low is not None and gauge.below else 0.0
    share = max(too_high, too_low)
    if share <= (0.0 if gauge.strict else ALLOWED):
        return "healthy", share
    return ("above" if too_high >= too_low else "below"), share
