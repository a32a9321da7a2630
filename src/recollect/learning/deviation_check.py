"""The deviation check: does the learner reproduce the head's record of acting, such as log-probs and values?

Before the first optimiser step of an update the weights are those that acted, so recomputed fields of the
record must equal the recorded ones. A replay (``deviation_evidence``) settles every deviation above the
tolerance: it stops the run, or shows that rounding explains the deviation, which is reported once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from recollect.base.tolerances import tolerance
from recollect.config.algo_shared import LearnerConfig
from recollect.errors import AlignmentError, RecollectError
from recollect.experience.chunks import Chunks, shares
from recollect.experience.rollout import Rollout
from recollect.learning import deviation_evidence, diagnostics, recompute_activations
from recollect.learning.algorithm import Data, Stats
from recollect.learning.ranks import ALONE, Ranks
from recollect.learning.sequences import burn_in, make_sequences
from recollect.policy.head_contract import Field
from recollect.policy.policy import Policy

NOTHING: tuple[float, ...] = (0,)
ACCEPTED_FOR = 20
"""Updates for which a deviation that a replay has explained needs no new replay."""


class Record(NamedTuple):
    """A rollout that the learner must reproduce."""

    rollout: Rollout
    data: Data
    """Its targets; with ``value`` where PopArt has rescaled the recorded one."""
    update: int
    """The number of the update."""
    ranks: Ranks = ALONE
    """The learners that check their parts of the rollout together."""
    acted: Policy | None = None
    """A copy with the weights that acted, if those are not the learner's."""


class DeviationCheck:
    """Measures how far recomputed fields deviate from the record, and raises if too far."""

    def __init__(self, policy: Policy, config: LearnerConfig, fields: Mapping[str, Field]):
        """``fields``: those of the head's record that the learner must reproduce."""
        self._policy, self._config, self.fields = policy, config, fields
        self.is_checked = False
        """Whether a whole rollout was reproduced since the learner was made."""
        self.accepted = NOTHING
        """An update, and for each field a deviation: before that update those up to it need no replay."""
        self.notes: list[str] = []
        """Warnings for the user; the trainer empties it."""
        self._is_advised = False

    @property
    def tolerance(self) -> float:
        """Deviations up to this need no replay."""
        rounding = max(trunk.core.rounding for trunk in self._policy.trunks)
        return tolerance(self._config.tolerance, self._policy.precision, rounding)

    def limits(self, update: int) -> tuple[float, ...]:
        """Deviations of the fields, in their units, above which a replay decides in that update."""
        until, *accepted = self.accepted
        if update >= until:
            return (self.tolerance,) * len(self.fields)
        return tuple(max(self.tolerance, limit) for limit in accepted)

    @torch.no_grad()
    def deviation(self, record: Record) -> Stats:
        """The largest deviations of a whole rollout, over all ranks of the record."""
        policy, parts = record.acted or self._policy, []
        for batch in self._batches(record, None):
            batch = burn_in(policy, batch)
            parts.append(diagnostics.deviation(self._recomputed(policy, batch), batch))
        found = torch.stack([torch.stack(list(part.values())) for part in parts]).amax(0)
        return dict(zip(parts[0], record.ranks.max(found)))

    def check_all(self, record: Record, metrics: Stats) -> None:
        """``check`` of a whole rollout with these metrics. Synchronises."""
        numbers = diagnostics.read(metrics | self.deviation(record))
        self.check(numbers, record)
        self.is_checked = numbers.get("valid", 1.0) > 0  # a rollout without a valid step proves nothing

    def check_late(self, rollout: Rollout, acted: Policy, update: int) -> dict[str, float]:
        """``check`` of a rollout against a copy of the policy that acted; its deviations. One rank alone."""
        record = Record(rollout, {}, update, acted=acted)
        found = self.deviation(record)
        numbers = diagnostics.read(found | diagnostics.record_range(rollout, self.fields))
        self.check(numbers, record)
        return {name: numbers[name] for name in found}

    def check(self, numbers: dict[str, float], record: Record, which: Tensor | None = None) -> None:
        """Raise AlignmentError if rounding does not explain a deviation.

        Args:
            numbers: the deviations, and the scales of the fields.
            record: the rollout.
            which: the sequences of the minibatch that was recomputed; None: all.
        """
        # One rank alone makes a late check. It accepts nothing, so that the limits of all ranks stay equal.
        usual = (self.tolerance,) * len(self.fields)
        limits = self.limits(record.update) if record.acted is None else usual
        found = diagnostics.deviations(numbers, self.fields).values()
        if not all(gap <= limit for gap, limit in zip(found, limits)):
            self.settle(numbers, record, which)

    def settle(self, numbers: dict[str, float], record: Record, which: Tensor | None = None) -> None:
        """Replay the rollout to explain a deviation above the limit; arguments as in ``check``.

        Raises if rounding does not explain it. Else deviations up to twice as large are accepted for the next
        ``ACCEPTED_FOR`` updates.
        """
        units = diagnostics.units(self.fields, numbers)
        found = diagnostics.deviations(numbers, self.fields)
        largest = max(found.values())
        said = (
            f"update {record.update}: the learner recomputed {' and '.join(self.fields)} that deviate "
            f"from the recorded ones by up to {largest:.1e} (in units of their scale; tolerance "
            f"{self.tolerance:.0e})"
        )
        if not math.isfinite(sum(found.values())):
            raise AlignmentError(
                f"{said}. Recorded numbers are finite, so the learner computes something else"
            )
        policy = record.acted or self._policy
        seen = [self._compared(batch, policy, which is not None) for batch in self._batches(record, which)]
        try:
            findings = deviation_evidence.examine(
                policy, record.rollout, seen, units=units, tolerance=self.tolerance
            )
            wrong = deviation_evidence.verdict(findings)
        except (RecollectError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # such as a custom network that knows one dtype only
            wrong = (
                f"A replay in float64 on the CPU, which could tell rounding from a bug, failed ({error}): "
                "let the network compute in the dtype of its weights, or raise `tolerance`"
            )
        gap = torch.stack([part.largest_gap(units) for part in seen]).max()
        wrong, gap = _agreed(record.ranks, wrong, gap)
        if wrong is None and not gap >= largest / 2:
            wrong = (
                f"The same evaluation outside of the optimiser step deviates by {float(gap):.1e} only: the "
                "step computes something else, or something random. Try graphs=False"
            )
        if wrong is not None:
            raise AlignmentError(f"{said}. {wrong}")
        if record.acted is None:
            self.accepted = (record.update + ACCEPTED_FOR, *(2 * gap for gap in found.values()))
        if not self._is_advised:
            self._is_advised = True
            note = (
                f"{said}. A replay of the worst rows in float64 shows that rounding explains it, so the run "
                "goes on"
            )
            if "log_prob" in found:
                share = 100 * math.expm1(min(found["log_prob"], 10.0))
                note += (
                    f". Probability ratios are off by up to {share:.2g}%: if that is a large part of "
                    "`clip`, use precision='fp32' or shorter chunks"
                )
            self.notes.append(note)

    def _batches(self, record: Record, which: Tensor | None) -> Iterator[Chunks]:
        """The sequences ``which`` in the parts that the loss takes them in, with the place of every step.

        None: all, in as many parts as an epoch has, so that they need no more memory than the loss.
        """
        data = record.data | {deviation_evidence.PLACE: deviation_evidence.places(record.rollout)}
        sequences = make_sequences(record.rollout, data, self._config, record.ranks)
        parts = self._config.accumulate
        if which is None:
            parts = min(parts * self._config.minibatches, sequences.count)
            if parts < 2:
                return iter([sequences.whole()])
            which = torch.arange(sequences.count, device=record.rollout.valid.device)
        return (sequences.take(part) for part in shares(which, parts, sequences.sizes))

    def _compared(self, batch: Chunks, policy: Policy, with_grad: bool) -> deviation_evidence.Compared:
        """Recomputed and recorded numbers of a batch; ``with_grad``: by the kernels of the loss."""
        with torch.set_grad_enabled(with_grad):
            batch = burn_in(policy, batch)
            made = self._recomputed(policy, batch)
        valid = batch.valid
        return deviation_evidence.Compared(
            batch.data[deviation_evidence.PLACE][valid],
            {name: found.detach()[valid] for name, found in made.items()},
            {name: batch.data[name][valid] for name in made},
        )

    def _recomputed(self, policy: Policy, batch: Chunks) -> dict[str, Tensor]:
        """The fields of a batch [L, N, ...]."""
        made = recompute_activations.record(policy, batch, self._config.recompute_activations)
        return {name: made[name] for name in self.fields}


def _agreed(ranks: Ranks, wrong: str | None, gap: Tensor) -> tuple[str | None, Tensor]:
    """The verdict of all ranks, each of which has replayed its own rows, and their largest gap."""
    is_wrong = torch.full_like(gap, float(wrong is not None))
    anywhere, gap = ranks.max(torch.stack([is_wrong, gap]))
    elsewhere = "Another learner found that rounding does not explain it" if anywhere else None
    return wrong or elsewhere, gap
