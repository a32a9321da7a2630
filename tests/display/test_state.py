"""What a display knows of a training: which evaluation is the best."""

from __future__ import annotations

import math

import numpy as np

from recollect.acting.evaluate import Evaluation
from recollect.display.closing_summary import summary
from tests.support.display_fakes import evaluation_of, make_state, metrics_at


def test_of_equal_evaluations_the_later_is_the_best():
    """As in ``Run.is_better``, which chooses the checkpoint that is kept."""
    state, _ = make_state()
    state.evaluated(evaluation_of(0.9))
    metrics_at(state.training, 60_000)
    state.evaluated(evaluation_of(0.9))
    assert state.best == (0.9, 60_000, "greedy")
    assert "best" not in dict(summary(state, "steps"))


def test_an_evaluation_that_is_no_number_is_never_the_best():
    state, _ = make_state()
    state.evaluated(Evaluation(np.full(4, math.nan), np.full(4, 12)))
    assert state.best is None
    state.evaluated(evaluation_of(0.0))
    assert state.best == (0.0, 50_000, "greedy")
