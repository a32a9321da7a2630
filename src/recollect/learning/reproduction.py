"""The check that a learner reproduces what was recorded while acting.

Before the first optimiser step of an update the weights are those that acted, so what the learner recomputes
must be what was recorded. A deviation above the tolerance is a suspicion, which a replay settles
(``recollect.learning.evidence``): the run stops, or the user is told once that rounding explains it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from recollect.base.tolerances import tolerance
from recollect.errors import AlignmentError, RecollectError
from recollect.experience.chunks import Chunks, shares
from recollect.experience.rollout import Rollout
from recollect.learning import diagnostics, evidence, recompute
from recollect.policy.policy import Policy

if TYPE_CHECKING:
    from recollect.learning.learner import Data, Learner, Stats

NOTHING = (0, 0.0, 0.0)
ACCEPTED_FOR = 20
"""Updates for which a deviation that a replay has explained raises no new suspicion."""


class Recorded(NamedTuple):
    """A rollout that the learner must reproduce."""

    rollout: Rollout
    data: Data
    """Its targets; ``value`` among them where new statistics of the returns moved the recorded one."""
    acted: Policy | None = None
    """A copy with the weights that acted, which no other rank has; None: the learner's own policy."""


class Reproduction:
    """Measures how far a learner is from the record, and decides what that means."""

    def __init__(self, learner: Learner[Any]):
        self._learner = learner
        self.is_checked = False
        """Whether a whole rollout was reproduced since the learner was made."""
        self.accepted = NOTHING
        """(update, log-probs, values): before that update deviations up to these need no replay."""
        self.notes: list[str] = []
        """What the user should hear; the trainer empties it."""
        self._is_advised = False

    @property
    def tolerance(self) -> float:
        """The deviation that is never suspicious."""
        policy = self._learner.policy
        return tolerance(self._learner.config.tolerance, policy.precision, policy.core.rounding)

    @property
    def limits(self) -> tuple[float, float]:
        """The deviations of log-probs and values from which on a replay decides."""
        until, *accepted = self.accepted
        if self._learner.updates >= until:
            return self.tolerance, self.tolerance
        log_prob, value = (max(self.tolerance, limit) for limit in accepted)
        return log_prob, value

    @torch.no_grad()
    def deviation(self, recorded: Recorded) -> Stats:
        """How far all that is recomputed of a rollout is from the record, on any rank that holds a part."""
        learner, policy = self._learner, recorded.acted or self._learner.policy
        (batch,) = self._batches(recorded, None)
        batch = learner._burn_in(batch, policy)
        log_prob, _, value = policy.evaluate_actions(batch.obs, batch.action, batch.state, batch.first)
        found = diagnostics.deviation(log_prob, value, batch)
        return found if recorded.acted is not None else diagnostics.largest(found, learner.ranks)

    def check_late(self, rollout: Rollout, acted: Policy) -> dict[str, float]:
        """Deviations of a rollout from ``acted``, a copy with the weights that acted. Asks no other rank.

        Raises:
            AlignmentError: further than rounding explains.
        """
        recorded, value = Recorded(rollout, {}, acted), rollout.record["value"].masked_fill(~rollout.valid, 0)
        found = self.deviation(recorded)
        numbers = diagnostics.read(found | {"value/max": value.max(), "value/min": value.min()})
        self.check(numbers, recorded)
        return {name: numbers[name] for name in found}

    def check(self, numbers: dict[str, float], recorded: Recorded, which: Tensor | None = None) -> None:
        """Raise if what was recomputed is further from the record than rounding explains.

        Args:
            numbers: the deviations, and the size of the values.
            recorded: what was recorded.
            which: the sequences of the minibatch that deviates; None: all.
        """
        # Other ranks do not know what a late check has accepted, so it accepts nothing.
        limits = self.limits if recorded.acted is None else (self.tolerance, self.tolerance)
        if not all(found <= limit for found, limit in zip(diagnostics.deviations(numbers), limits)):
            self.settle(numbers, recorded, which)

    def settle(self, numbers: dict[str, float], recorded: Recorded, which: Tensor | None = None) -> None:
        """Decide by a replay about a deviation above the limit; arguments as in ``check``.

        Raises if rounding does not explain it. Else it is accepted, and up to twice as much for the next
        ``ACCEPTED_FOR`` updates.
        """
        learner, size = self._learner, diagnostics.value_size(numbers)
        log_prob, value = diagnostics.deviations(numbers)
        said = (
            f"update {learner.updates}: the learner recomputed log-probs and values that deviate from the "
            f"recorded ones by up to {max(log_prob, value):.1e} (values in units of their scale; tolerance "
            f"{self.tolerance:.0e})"
        )
        if not math.isfinite(log_prob + value):
            raise AlignmentError(
                f"{said}. Recorded numbers are finite, so the learner computes something else"
            )
        rollout, _, acted = recorded
        policy = acted or learner.policy
        seen = [
            _compared(learner, batch, policy, which is not None) for batch in self._batches(recorded, which)
        ]
        try:
            findings = evidence.examine(policy, rollout, seen, scale=size, tolerance=self.tolerance)
            wrong = evidence.verdict(findings)
        except (RecollectError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # such as a custom network that knows one dtype only
            wrong = (
                f"A replay in float64 on the CPU, which could tell rounding from a bug, failed ({error}): "
                "let the network compute in the dtype of its weights, or raise `tolerance`"
            )
        gap = torch.stack([part.largest_gap(size) for part in seen]).max()
        if acted is None:
            wrong, gap = self._agreed(wrong, gap)
        if wrong is None and not gap >= max(log_prob, value) / 2:
            wrong = (
                f"The same evaluation outside of the optimiser step deviates by {float(gap):.1e} only: the "
                "step computes something else, or something random. Try graphs=False"
            )
        if wrong is not None:
            raise AlignmentError(f"{said}. {wrong}")
        if acted is None:
            self.accepted = (learner.updates + ACCEPTED_FOR, 2 * log_prob, 2 * value)
        if not self._is_advised:
            self._is_advised = True
            share = 100 * math.expm1(min(log_prob, 10.0))
            self.notes.append(
                f"{said}. A replay of the worst rows in float64 shows that rounding explains it, so the run "
                f"goes on. Probability ratios are off by up to {share:.2g}%: if that is a large part of "
                "`clip`, use precision='fp32' or shorter chunks"
            )

    def _agreed(self, wrong: str | None, gap: Tensor) -> tuple[str | None, Tensor]:
        """The verdict of all ranks, each of which has replayed its own rows, and the largest gap of any."""
        is_wrong = torch.full_like(gap, float(wrong is not None))
        anywhere, gap = self._learner.ranks.max(torch.stack([is_wrong, gap]))
        if not anywhere:
            return None, gap
        return wrong or "Another learner found that rounding does not explain it", gap

    def _batches(self, recorded: Recorded, which: Tensor | None) -> list[Chunks]:
        """The sequences ``which`` in the parts that the loss takes them in, with the place of every step."""
        learner, rollout = self._learner, recorded.rollout
        data = recorded.data | {evidence.PLACE: evidence.places(rollout)}
        cut = learner._sequences if recorded.acted is None else learner._own_sequences
        sequences = cut(rollout, data)
        if which is None:
            return [sequences.whole()]
        return [sequences.take(part) for part in shares(which, learner.config.accumulate, sequences.sizes)]


def _compared(learner: Learner[Any], batch: Chunks, policy: Policy, with_grad: bool) -> evidence.Compared:
    """What is recomputed for a batch beside what was recorded; ``with_grad``: by the kernels of the loss."""
    with torch.set_grad_enabled(with_grad):
        batch = learner._burn_in(batch, policy)
        log_prob, _, value = recompute.evaluate(policy, batch, learner.config.recompute_activations)
    made, valid = {"log_prob": log_prob.detach(), "value": value.detach()}, batch.valid
    return evidence.Compared(
        batch.data[evidence.PLACE][valid],
        {name: found[valid] for name, found in made.items()},
        {name: batch.data[name][valid] for name in made},
    )
