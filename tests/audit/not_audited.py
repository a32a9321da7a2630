"""Mutants of replay, Q heads and exploration that the auditor need not find: they make no training wrong."""

from __future__ import annotations

from tests.mutants.head_bugs import HEADS
from tests.mutants.mutant import Mutant
from tests.mutants.replay_bugs import N_STEP, PRIORITIES, REPLAY, SAVED
from tests.mutants.replay_learner_bugs import EXPLORATION, LEARNED_FROM_REPLAY, PACES, TARGET_NETWORKS
from tests.mutants.value_bugs import VALUES

COMPLETE: tuple[list[Mutant], ...] = (
    *(REPLAY, PRIORITIES, N_STEP, SAVED),
    *(LEARNED_FROM_REPLAY, TARGET_NETWORKS, PACES, EXPLORATION),
    *(VALUES, HEADS),
)
"""Lists of which every mutant is in the table of the auditor, or here."""
NOT_AUDITED: dict[str, tuple[str, ...]] = {
    "the training raises an error or needs more memory": (
        "final observations are always valued",
        "the end of a rollout is always valued",
        "a refresh values what nobody needs",
        "all fields are stored",
        "the size of a rollout counts all fields",
        "iqn takes a head without quantiles",
    ),
    "only a text is wrong": (
        "a replay of another format is not told from one of another space",
        "constant rewards are reported again and again",
        "constant rewards are not noticed",
    ),
    "a gauge judges rounding in fields that only a head of one's own records": (
        "only the first number of a field is replayed",
        "fields that cannot be compared are replayed",
        "the unit of a field is ignored",
        "the scale of a field is ignored",
        "a loss may leave out a deviation",
    ),
}
"""Names of mutants, by the reason."""
