"""The gauge that stops a run whose learner does not reproduce what acted."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from recollect.algos.catalog import make_learner
from recollect.audit.gpu_path import without_reads
from recollect.audit.recorded_rollouts import RecordedRollout
from recollect.audit.results import Problem, Skip
from recollect.config.algo_shared import LearnerConfig
from recollect.errors import AlignmentError

LIE = 100.0
"""Tolerances that recorded numbers are changed by."""
STILL = 1e-12
"""A learning rate at which the weights that learn stay those that acted."""


def gauge(rollouts: Sequence[RecordedRollout]) -> str:
    """An update stops at recorded numbers that the policy did not give: in each field, at first and later."""
    one = rollouts[0]
    if not one.rollout.valid.any() or not one.fields:
        raise Skip("nothing is recorded that could be compared")
    config = replace(one.setup.config.algo, gauge_every=1, learning_rate=STILL)
    if isinstance(config, LearnerConfig):
        config = replace(config, epochs=1)
    for name, (before, is_gpu) in product(one.fields, ((0, False), (1, False), (1, True))):
        record = one.rollout.record[name].clone()
        record.view(*record.shape[:2], -1)[..., -1] += max(1.0, LIE * one.setup.tolerance) * one.unit(name)
        wrong = replace(one.rollout, record=one.rollout.record | {name: record})
        learner = make_learner(copy.deepcopy(one.policy), config, rows=wrong.rows, seed=1)
        try:
            with without_reads(is_gpu):
                for rollout in [one.rollout] * before + [wrong]:
                    learner.update(rollout)
        except AlignmentError:
            continue
        raise Problem(
            f"update {before} learns from a recorded {name} that the policy did not give"
            + (" (on the path of a GPU)" if is_gpu else ""),
            "Likely cause: the deviation check leaves out this field, part of its numbers, or its unit",
            "Fix: compare all numbers of each compared field with those of the learner's first pass",
        )
    return f"a wrong {' or '.join(one.fields)} stops the run, in the first update and later"
