"""The training loop: a few real updates, twice."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recollect.agent import Agent
from recollect.audit.results import Doubt, Problem, Skip, small
from recollect.audit.setup import Subject
from recollect.learning import diagnostics

PART = "training"
UPDATES = 2
MAY_BE_MISSING = ("explained_variance", "state/drift")
"""Metrics that are NaN where there is nothing to measure: no variance, no two states of one episode."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a short training."""

    before: dict[str, Tensor]
    after: dict[str, Tensor]
    """Weights and statistics."""
    learnable: list[str]
    """Which of them are weights that learn."""
    metrics: list[dict[str, float]]


def short_training(subject: Subject, rows: int) -> Trained:
    """``UPDATES`` updates by the same way as ``recollect.train``."""
    config = replace(subject.config, steps=_steps(subject, rows))
    with Agent.create(subject.env, config, subject.policy) as agent:
        before = _weights(agent)
        while len(agent.history.rows) < UPDATES:
            agent.train(progress=False)
        learnable = [name for name, p in agent.policy.named_parameters() if p.requires_grad]
        return Trained(before, _weights(agent), learnable, agent.history.rows[:])


def updates(trained: Trained, subject: Subject) -> str:
    """Weights move, and all metrics are finite."""
    metrics = trained.metrics
    for number, row in enumerate(metrics):
        wrong = [name for name, x in row.items() if not math.isfinite(x) and name not in MAY_BE_MISSING]
        if wrong:
            raise Problem(
                f"update {number}: {wrong[0]} is {row[wrong[0]]}",
                "Likely cause: rewards or observations that are huge, or a loss that is not bounded",
            )
    before, after = trained.before, trained.after
    moved = [name for name in trained.learnable if not torch.equal(before[name], after[name])]
    # The value head also moves with the statistics of the returns, without any learning.
    if not any(not name.startswith("critic.") for name in moved):
        raise Problem(
            f"after {len(metrics)} updates no weight has learned anything",
            "Likely cause: the optimiser does not hold the network's parameters, or its step is not "
            "called; or the learning rate is 0",
            "Fix: make the optimiser after the network has been moved to its device",
        )
    # A run whose learner does not reproduce the record has stopped by itself: here they are only shown.
    log_prob, value = (max(found) for found in zip(*map(diagnostics.deviations, metrics)))
    return (
        f"{len(metrics)} updates moved {len(moved)} of {len(trained.learnable)} parameters; metrics finite; "
        f"deviations {small(log_prob)} and {small(value)} (tolerance "
        f"{subject.tolerance:.0e})"
    )


def same_seed(trained: Trained, subject: Subject, rows: int, *, is_repeatable: bool) -> str:
    """A second training from the same seed ends with the same weights."""
    if not is_repeatable:
        raise Skip("the env is not repeatable (see the contract), so that two trainings differ anyway")
    again = short_training(subject, rows)
    gaps = {
        name: float((was.double() - again.after[name].double()).abs().max()) if was.numel() else 0.0
        for name, was in trained.after.items()
    }
    name = max(gaps, key=lambda key: gaps[key])
    if gaps[name] == 0:
        return f"two trainings from seed {subject.config.seed} end with the same weights, bit for bit"
    if subject.config.device.startswith("cuda"):
        raise Doubt(
            f"two trainings from one seed differ by up to {gaps[name]:.1e} ({name})",
            "On a GPU sums may be taken in another order each time; on the CPU they are not",
        )
    raise Problem(
        f"two trainings from seed {subject.config.seed} differ by up to {gaps[name]:.1e}, first in {name}",
        "Likely cause: a random stream that the seed does not set (dropout, torch's or NumPy's global "
        "one), or an env that repeats an episode from a seed but not the episodes after it",
        "Fix: draw from a generator that reset(seed) or the config's seed sets",
    )


def _steps(subject: Subject, rows: int) -> int:
    return UPDATES * subject.config.algo.rollout * rows


def _weights(agent: Agent) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in agent.policy.state_dict().items()}
