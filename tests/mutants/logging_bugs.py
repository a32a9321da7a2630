"""Bugs of what is measured: logging that waits for the device, or that changes what is learned."""

from __future__ import annotations

import functools

from recollect.algos import ppo
from recollect.learning.learner import Learner
from tests.algos import test_ppo_update
from tests.mutants.mutant import Edit, Mutant
from tests.training import test_captured_training

reads_once = functools.partial(test_captured_training.test_an_update_reads_once, "plain", "shared")
gauges = functools.partial(test_ppo_update.test_gauges_do_not_change_the_weights, False)
GAUGED = "stale.append(diagnostics.staleness(self.policy, rollout, ranks=self.ranks))"


def gauged(more: str) -> Edit:
    """Something that happens only where memory is measured."""
    return (Learner, "_epochs", GAUGED, f"{GAUGED}; {more}")


READ, SAME = "reads numbers on the host", "assert same(gradients(never), gradients(always))"

LOGGING = [
    Mutant(
        "the loss is read in every minibatch, to be logged",
        reads_once,
        (
            (
                ppo,
                "loss",
                '"entropy": entropy_mean.detach(),',
                '"entropy": torch.tensor(float(entropy_mean)),',
            ),
        ),
        READ,
    ),
    Mutant(
        "staleness is read after every epoch, to be logged", reads_once, (gauged("stale[-1].item()"),), READ
    ),
    Mutant(
        "a gauge draws from the stream of the minibatches",
        gauges,
        (gauged("torch.rand(1, generator=self.generator)"),),
        SAME,
    ),
    Mutant(
        "a gauge refreshes the states that are learned from",
        gauges,
        (
            gauged(
                "rollout = replace(rollout, states=refresh(self.policy, rollout).states); "
                "sequences = self.sequences(rollout, data)"
            ),
        ),
        SAME,
    ),
    Mutant(
        "a gauge leaves its gradient behind",
        gauges,
        (gauged("[p.grad.add_(1e-6) for p in self._parameters if p.grad is not None]"),),
        SAME,
    ),
]
