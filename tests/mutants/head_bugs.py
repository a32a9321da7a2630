"""Bugs that only a user's own head shows: one without log-prob and value, with a record of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from recollect.acting import actor
from recollect.acting.actor import Actor
from recollect.acting.truncation import DeferredFinalValues
from recollect.experience import rollout
from recollect.learning import deviation_evidence, diagnostics, refresh_rollout
from recollect.learning.captured_update import CapturedUpdate
from recollect.learning.deviation_check import DeviationCheck
from recollect.policy.heads import ActionHead
from tests.learning import test_own_head as own
from tests.mutants.mutant import Mutant

LAST = (..., own.ACTIONS - 1)
LIES = "with pytest.raises(AlignmentError"
NO_VALUE = "a value was asked of a Q head"
NAMED, ALL = "named_fields(policy.head, acting.record)", "named_fields(policy.head, None)"
EPSILON = "policy.act(obs, state, first, generator, False, exploration)"
SAVED = 'own["exploration"] = self.exploration.clone()'
UNVALUED = "return Outputs(record, None, None, states)"
LAST_VALUE = "policy.value(tree.index(rollout.obs, T), end, rollout.first[T])"
OVERFLOW = "self._lost is not None and self._lost.any()"


def proof(test: Callable[..., None], *given: Any) -> Callable[[], None]:
    """A test with a ``monkeypatch`` as its last argument."""

    def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            own.forbid_values(patch)
            test(*given, patch)

    return run


def plain(test: Callable[..., None], *given: Any) -> Callable[[], None]:
    """A test without one."""
    return proof(lambda _: test(*given))


learns = proof(own.test_q_learning_learns, "chunks", False)
lies = proof(own.test_a_head_that_lies_stops_the_run, "every_q", LAST, False)
explores = plain(own.test_rows_explore_as_the_algorithm_says)

HEADS = [
    Mutant(
        "final observations are always valued",
        learns,
        ((Actor, "_make_final_values", "self.policy if self.needs_values else None", "self.policy"),),
        by=NO_VALUE,
    ),
    Mutant(
        "the end of a rollout is always valued",
        learns,
        ((Actor, "_play", "if out.bootstrap is not None:", "if policy.value(obs, state, first).any():"),),
        by=NO_VALUE,
    ),
    Mutant(
        "a refresh values what nobody needs",
        proof(own.test_q_learning_learns, "refreshed", False),
        ((refresh_rollout, "refresh", UNVALUED, f"{LAST_VALUE}; {UNVALUED}"),),
        by=NO_VALUE,
    ),
    Mutant(
        "all fields are stored",
        plain(own.test_only_named_fields_are_stored),
        ((actor, "allocate", NAMED, ALL),),
        by='.record.keys() == {"q"}',
    ),
    Mutant(
        "the size of a rollout counts all fields",
        plain(own.test_the_size_is_known_before),
        ((rollout, "rollout_size", NAMED, ALL),),
        by="assert more - few ==",
    ),
    Mutant(
        "no row explores",
        explores,
        ((Actor, "_make_act", EPSILON, "policy.act(obs, state, first, generator)"),),
        by="assert greedy[-1] < 0.6",
    ),
    Mutant(
        "rows explore for ever as at the start",
        explores,
        ((Actor, "_make_act", "exploration = self.exploration", "exploration = self.exploration.clone()"),),
        by='"is_greedy"].all()',
    ),
    Mutant(
        "exploration is not saved",
        proof(own.test_exploration_is_part_of_a_snapshot),
        ((Actor, "snapshot", SAVED, "pass"),),
        by="assert actor.exploration.tolist()",
    ),
    Mutant(
        "an actor-critic ignores exploration",
        plain(own.test_exploration_is_of_rows_and_of_heads_that_use_it),
        ((ActionHead, "choose", "if exploration is not None:", "if False:"),),
        by="with pytest.raises(ConfigError",
    ),
    Mutant(
        "a final observation without a slot is lost in silence",
        proof(own.test_final_observations_without_values_on_the_path_of_a_gpu, "forage"),
        ((DeferredFinalValues, "finals", OVERFLOW, "False"),),
        by="with pytest.raises(EnvError",
    ),
    Mutant(
        "only the first field is compared",
        proof(own.test_a_lie_is_found_in_a_later_update_too, False),
        ((DeviationCheck, "check", "in zip(found, limits)", "in [*zip(found, limits)][:1]"),),
        by=LIES,
    ),
    Mutant(
        "only the first field is compared without reads",
        proof(own.test_a_lie_is_found_in_a_later_update_too, True),
        ((CapturedUpdate, "_step", "| self._limits.isinf()).all()", "| self._limits.isinf())[0]"),),
        by=LIES,
    ),
    Mutant(
        "only the first number of a field is replayed",
        lies,
        ((deviation_evidence, "_numbers", ".unbind(-1)", ".unbind(-1)[:1]"),),
        by=LIES,
    ),
    Mutant(
        "fields that cannot be compared are replayed",
        lies,
        ((deviation_evidence, "replay", "if field.is_compared", "if field"),),
        by=LIES,
    ),
    Mutant(
        "the unit of a field is ignored",
        proof(own.test_every_field_has_its_unit, 1000.0, True, False),
        ((diagnostics, "units", "else field.unit", "else 1.0"),),
        by="AlignmentError",
    ),
    Mutant(
        "the scale of a field is ignored",
        plain(own.test_the_scale_of_a_field_is_its_unit),
        ((diagnostics, "units", "for size in size_names(name)", "for size in ()"),),
        by='["q"] < 1e-5',
    ),
    Mutant(
        "a loss may leave out a deviation",
        proof(own.test_a_loss_without_its_deviation_is_refused),
        ((diagnostics, "check_deviations", "if missing:", "if False:"),),
        by="with pytest.raises(ConfigError",
    ),
]
