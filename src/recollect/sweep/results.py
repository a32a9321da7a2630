"""The results of a sweep: the final evaluations of each variant over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recollect.reports.statistics import bootstrap_interval, iqm
from recollect.sweep.member import Member
from recollect.sweep.plan import Variant


@dataclass(frozen=True, slots=True)
class Result:
    """The final evaluations of one variant."""

    variant: Variant
    scores: dict[int, float | None]
    """The mean return of the last evaluation by seed; None where the run has not finished."""
    iqm: float | None
    """The interquartile mean over seeds, None without any score."""
    low: float | None
    """The 95% bootstrap interval over seeds, None with less than two."""
    high: float | None

    @property
    def label(self) -> str:
        """The variant's name."""
        return self.variant.name

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "label": self.variant.label,
            "env": self.variant.env,
            "flags": list(self.variant.flags),
            "scores": {str(seed): score for seed, score in self.scores.items()},
            "iqm": self.iqm,
            "low": self.low,
            "high": self.high,
        }


def summarise(variant: Variant, members: Sequence[Member]) -> Result:
    """The result of one variant, from its runs."""
    scores = {member.seed: member.score() for member in members}
    known = [score for score in scores.values() if score is not None]
    if not known:
        return Result(variant, scores, None, None, None)
    if len(known) == 1:
        return Result(variant, scores, known[0], None, None)
    low, high = bootstrap_interval(known)
    return Result(variant, scores, float(iqm(known)), float(low), float(high))
