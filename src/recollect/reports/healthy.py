"""The gauges of a run: what is healthy, and what it means when one is not. README has the short form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from recollect.base.files import is_number

SETTLING = 10
"""Updates at the start of a run that are not judged: a new critic and a new policy find their scale."""
ALLOWED = 0.1
"""The share of the judged updates that may lie outside before a gauge is called so."""

Verdict = Literal["healthy", "above", "below", "unjudged", "missing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """How one metric is drawn and judged."""

    name: str
    """The metric."""
    low: float | None = None
    """The lowest healthy value; None: as low as it likes."""
    high: float | None = None
    """The highest healthy value."""
    setting: str | None = None
    """A setting of the algorithm, drawn as a line; ``high`` is given in units of it if ``relative``."""
    relative: bool = False
    """Whether ``high`` is a multiple of ``setting``."""
    log: bool = False
    """On a logarithmic scale."""
    strict: bool = False
    """Whether a single update outside counts."""
    above: str = ""
    """What it means, and what helps, when it is too high."""
    below: str = ""
    """The same when it is too low."""
    words: str = ""
    """What is good to know where there is no range."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A gauge with the ranges of one run and what its values say."""

    gauge: Gauge
    low: float | None
    high: float | None
    line: float | None
    """The value of ``gauge.setting`` in this run."""
    verdict: Verdict
    share: float
    """The share of the judged updates that lie outside."""
    advice: str = field(default="")


GAUGES: tuple[Gauge, ...] = (
    Gauge(
        name="deviation/log_prob",
        high=0.1,
        setting="tolerance",
        relative=True,
        log=True,
        strict=True,
        above="The learner does not see what the actor saw, or rounds more. Above the tolerance a replay in "
        "float64 decides, and the run stops unless it is rounding.",
    ),
    Gauge(
        name="deviation/value",
        high=0.1,
        setting="tolerance",
        relative=True,
        log=True,
        strict=True,
        above="As for the log-probs: another state, reset or observation than while acting, or lower "
        "precision.",
    ),
    Gauge(
        name="staleness",
        low=0.0,
        high=0.3,
        above="The stored states no longer fit the weights. Take fewer epochs, a lower learning_rate, or "
        "refresh_states=True.",
    ),
    Gauge(
        name="lag",
        low=0.0,
        high=4.0,
        above="The actors play with old weights. Use fewer actors, or a shorter rollout, or wait for them "
        "in lockstep.",
    ),
    Gauge(
        name="kl",
        low=0.0,
        high=0.03,
        above="An update moves the policy far. Lower learning_rate, take fewer epochs, or set target_kl.",
        words="0.005 to 0.03 while it learns; near 0 once there is nothing left to learn.",
    ),
    Gauge(
        name="clip_fraction",
        low=0.0,
        high=0.3,
        above="Many steps are clipped, so much of the batch teaches nothing. Lower learning_rate or take "
        "fewer epochs.",
    ),
    Gauge(
        name="grad_norm",
        setting="max_grad_norm",
        log=True,
        words="Above the line, gradients are scaled down to it.",
    ),
    Gauge(
        name="grad_clip_rate",
        low=0.0,
        high=0.99,
        above="Every gradient is clipped, so learning_rate no longer means what it says. Lower it, or raise "
        "max_grad_norm.",
    ),
    Gauge(
        name="explained_variance",
        low=0.0,
        high=1.0,
        below="The critic explains nothing of the returns. Where all episodes end alike there is nothing to "
        "explain; else give it time, or raise value_coef.",
        words="Rises towards 1 as the critic learns.",
    ),
    Gauge(
        name="entropy",
        low=0.0,
        words="Falls as the policy makes up its mind. A fall before the return rises is too early: raise "
        "entropy.",
    ),
    Gauge(
        name="state/norm",
        low=0.0,
        words="Should level off. A memory that keeps growing saturates.",
    ),
    Gauge(
        name="state/drift",
        words="Should stay near 0: the memory neither swells nor fades within an episode.",
    ),
    Gauge(name="loss/policy", words="Small and noisy; its size says little."),
    Gauge(name="loss/value", low=0.0, words="Below 0.5 the critic knows more than the mean return."),
    Gauge(name="value_scale", low=0.0, words="Follows the spread of the returns."),
    Gauge(name="learning_rate", low=0.0, words="Follows its schedule."),
    Gauge(name="entropy_coef", low=0.0, words="Follows its schedule."),
    Gauge(name="length", low=0.0),
)
"""Every gauge of a report, in its order."""


def judge(gauge: Gauge, values: np.ndarray, algo: dict[str, Any]) -> Judged:
    """What ``values`` [N], one an update, say about a run with the settings ``algo``.

    The second half of the run counts, without the first ``SETTLING`` updates.
    """
    line = algo.get(gauge.setting) if gauge.setting else None
    line = float(line) if line is not None and is_number(line) else None
    high = gauge.high
    if gauge.relative:
        high = None if line is None or high is None else high * line
    finite = np.flatnonzero(np.isfinite(values))
    if not len(finite):
        return Judged(gauge, gauge.low, high, line, "missing", 0.0)
    if high is None and not gauge.below:
        return Judged(gauge, gauge.low, high, line, "unjudged", 0.0)
    start = 0 if gauge.strict else max(SETTLING, len(values) // 2)
    judged = values[finite[finite >= start]]
    if not len(judged):
        return Judged(gauge, gauge.low, high, line, "unjudged", 0.0)
    too_high = float((judged > high).mean()) if high is not None and gauge.above else 0.0
    too_low = float((judged < gauge.low).mean()) if gauge.low is not None and gauge.below else 0.0
    allowed = 0.0 if gauge.strict else ALLOWED
    if max(too_high, too_low) <= allowed:
        return Judged(gauge, gauge.low, high, line, "healthy", max(too_high, too_low))
    if too_high >= too_low:
        return Judged(gauge, gauge.low, high, line, "above", too_high, gauge.above)
    return Judged(gauge, gauge.low, high, line, "below", too_low, gauge.below)
