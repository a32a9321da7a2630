"""The gauge that stops a run whose learner does not reproduce what acted."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch

from recollect.algos.catalog import make_learner
from recollect.audit.recorded_rollouts import RecordedRollout
from recollect.audit.results import Problem, Skip
from recollect.errors import AlignmentError

LIE = 100.0
"""Tolerances that a recorded number is changed by."""


def gauge(rollouts: Sequence[RecordedRollout]) -> str:
    """An update stops at a recorded number that the policy did not give, in each field of the record."""
    one = rollouts[0]
    if not one.rollout.valid.any():
        raise Skip("no step was valid")
    t, row = one.rollout.valid.nonzero()[-1].tolist()
    for name in one.fields:
        record = one.rollout.record[name].clone()
        record[t, row].view(-1)[-1] += max(1.0, LIE * one.setup.tolerance) * one.unit(name)
        rollout = replace(one.rollout, record=one.rollout.record | {name: record})
        config = replace(one.setup.config.algo, gauge_every=1)
        learner = make_learner(copy.deepcopy(one.policy), config, rows=rollout.rows, seed=1)
        try:
            with torch.random.fork_rng(devices=[]):
                learner.update(rollout)
        except AlignmentError:
            continue
        raise Problem(
            f"an update learns from a recorded {name} that the policy did not give (step {t}, row {row})",
            "Likely cause: the deviation check leaves out this field, part of its numbers, or its unit",
            "Fix: compare all numbers of each compared field with those of the learner's first pass",
        )
    return f"a wrong {' or '.join(one.fields) or 'record'} stops the run"
