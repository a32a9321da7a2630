"""Bugs of the check that decides whether a deviation is rounding."""

from __future__ import annotations

import functools

from recollect.learning import deviation_check, deviation_evidence
from recollect.learning.captured_update import CapturedUpdate
from recollect.learning.deviation_check import DeviationCheck
from tests.learning import test_deviation_evidence
from tests.mutants.mutant import Mutant

NOTHING_CHANGES = functools.partial(test_deviation_evidence.test_the_replay_changes_nothing, True)
SAME_WEIGHTS = "assert torch.equal(value, plain[name]), name"
ONE_SIDE = test_deviation_evidence.test_one_side_is_not_excused_by_the_rounding_of_a_coarse_precision
NAMED = test_deviation_evidence.test_a_finding_names_the_row_the_step_and_the_tensor
ONCE = test_deviation_evidence.test_a_deviation_that_is_rounding_is_told_once_and_accepted_for_a_while
AGREE = test_deviation_evidence.test_learners_stop_together

EVIDENCE = [
    Mutant(
        "no replay accuses anybody",
        NAMED,
        ((DeviationCheck, "settle", "wrong = deviation_evidence.verdict(findings)", "wrong = None"),),
        by="with pytest.raises(AlignmentError",
    ),
    Mutant(
        "rounding excuses a record that the learner contradicts",
        functools.partial(ONE_SIDE, "recorded"),
        (
            (
                deviation_evidence,
                "examine",
                "for other in (learning, acting):",
                "for other in (acting, acting):",
            ),
        ),
        by="the {wrong} is wrong",
    ),
    Mutant(
        "rounding excuses a learner that the record contradicts",
        functools.partial(ONE_SIDE, "recomputed"),
        (
            (
                deviation_evidence,
                "examine",
                "for other in (learning, acting):",
                "for other in (learning, learning):",
            ),
        ),
        by="the {wrong} is wrong",
    ),
    Mutant(
        "the replay does not return to the stored states",
        test_deviation_evidence.test_the_replay_starts_at_every_stored_state,
        ((deviation_evidence, "replay", "if t in rollout.state_steps:", "if t == 0:"),),
        by="assert moved > 1e-3",
    ),
    Mutant(
        "an update with a deviation that rounding explains is not made",
        NOTHING_CHANGES,
        ((CapturedUpdate, "_read", "return None", "pass"),),
        by=SAME_WEIGHTS,
    ),
    Mutant(
        "an update is made again with other minibatches",
        NOTHING_CHANGES,
        ((CapturedUpdate, "_read", "self._learner.generator.set_state(self._drawn)", "pass"),),
        by=SAME_WEIGHTS,
    ),
    Mutant(
        "a deviation is accepted for ever",
        ONCE,
        ((DeviationCheck, "settle", "(record.update + ACCEPTED_FOR,", "(10**9,"),),
        by="assert checks.limits(learner.updates) == (checks.tolerance, checks.tolerance)",
    ),
    Mutant(
        "the advice is given every time",
        ONCE,
        ((DeviationCheck, "settle", "self._is_advised = True", "pass"),),
        by="assert checks.notes == [note]",
    ),
    Mutant(
        "rounding at fillers counts",
        test_deviation_evidence.test_rounding_at_fillers_excuses_nothing,
        ((deviation_evidence, "_replays", ".masked_fill(invalid, 0)", ""),),
        by="with pytest.raises(AlignmentError",
    ),
    Mutant(
        "only what is recomputed outside of the step is judged",
        functools.partial(
            test_deviation_evidence.test_a_fault_of_the_optimiser_step_alone_stops_the_run, False, 0.7
        ),
        (
            (
                DeviationCheck,
                "settle",
                "if wrong is None and not gap >= largest / 2:",
                "if False:",
            ),
        ),
        by="with pytest.raises(AlignmentError",
    ),
    Mutant(
        "each learner decides for itself",
        AGREE,
        (
            (
                deviation_check,
                "_agreed",
                "anywhere, gap = ranks.max(torch.stack([is_wrong, gap]))",
                "anywhere = is_wrong",
            ),
        ),
        by="Another learner",
    ),
]
