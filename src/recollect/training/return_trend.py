"""Whether the return of a run improves, and whether the run has settled at its best return.

Both are judged in units of ``return_spread``, the standard deviation of the returns of single episodes: it is
known for every env, and needs no scale of rewards.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping

from recollect.training.metrics import History

EPISODES = 20
"""Finished episodes before returns are judged."""
LITTLE = 1.0
"""A total rise of at most this many spreads is hardly an improvement."""
LARGE = 3.0
"""A total rise of at least this many spreads is the result of learning."""
NOISE = 2.0
"""Standard errors of the difference of two means that are not an improvement."""


class ReturnTrend:
    """Compares the mean return with its first, best and earlier values."""

    def __init__(self, window: int):
        """``window``: the episodes that a mean return averages over."""
        self._window = window
        self.first = self.best = self.now = math.nan
        self.spread = math.nan
        self._history = History()

    def begin(self, history: History) -> None:
        """Start from the metrics of the training so far, if the run was resumed."""
        self._history = history
        for row in history.rows:
            self.add(row)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add the metrics of an update."""
        value = metrics.get("return", math.nan)
        if metrics.get("episodes", 0) < EPISODES or not math.isfinite(value):
            return
        self.now, self.spread = value, metrics.get("return_spread", math.nan)
        if math.isnan(self.first):
            self.first = self.best = value
        self.best = max(self.best, value)

    @property
    def is_settled(self) -> bool:
        """Whether learning has raised the return a lot, and the return is at its best."""
        has_risen = self.now > self.first and self.now - self.first >= LARGE * self.spread
        return has_risen and self.best - self.now <= self.spread

    def is_flat(self, since: float) -> bool:
        """Whether the return has hardly improved in the whole run, and not at all since env step ``since``.

        False where nothing can be said: too few episodes at that step, or all returns are equal.
        """
        rows = self._history.rows
        index = bisect_right(rows, since, key=lambda row: row["steps"]) - 1
        if index < 0 or rows[index].get("episodes", 0) < EPISODES or not self.spread > 0:
            return False
        error = self.spread * math.sqrt(2 / self._window)
        is_little = self.best - self.first <= LITTLE * self.spread
        return is_little and self.now - rows[index].get("return", math.nan) <= NOISE * error
