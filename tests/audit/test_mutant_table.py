"""Mutant x check: each bug of the table fails the check that it names, which healthy code passes."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import pytest

import recollect as rc
from recollect.audit import env_checks, league_part_checks, loop_checks, resume_checks
from recollect.audit import run as engine
from recollect.audit.results import Check
from tests.audit import table
from tests.audit.mutant_cases import CASES, device_of, made
from tests.audit.not_audited import MISSED, OUT_OF_SCOPE, every, missed, out_of_scope
from tests.mutants.bugs import MUTANTS, STOPPED
from tests.mutants.mutant import Mutant
from tests.mutants.process_bugs import MUTANTS as PROCESS_MUTANTS

BY_NAME = {mutant.name: mutant for mutant in (*STOPPED, *PROCESS_MUTANTS, *MUTANTS)}
ROWS = {(row["bug"], row["training"]): row["check"] for row in table.planted()}
LONG = {
    "versions": loop_checks,
    "processes": loop_checks,
    "learner_processes": loop_checks,
    "resumed": resume_checks,
    "evaluated": resume_checks,
    "flat_training": loop_checks,
    "league_training": league_part_checks,
}
"""Checks that make trainings of their own, each in its module; those that are not looked for are left out."""
TRAINED = {"updates", "same seed", *(name.replace("_", " ") for name in LONG)}
"""Checks that train; for all others a short training is left out."""


class Found(BaseException):
    """Ends an audit at the check that is looked for."""


def verdict(training: str, name: str) -> Check:
    """The verdict of one check in a training; of several groups, or of a name in two parts, the first failed.

    Only the checks that come before it run, and of the recorded rollouts only it.
    """
    found: list[Check] = []

    def watch(check: Check) -> None:
        if check.name == name or check.name == "rollouts":
            found.append(check)
        if check.name == name and (check.status == "failed" or name not in TWICE):
            raise Found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(env_checks, "STEPS", 10)
        for table_name in ("ROLLOUT_CHECKS", "REPLAY_CHECKS"):
            kept = {
                part: tuple(check for check in checks if check.__name__.replace("_", " ") == name)
                for part, checks in getattr(engine, table_name).items()
            }
            patch.setattr(engine, table_name, kept)
        if name not in TRAINED:
            patch.setattr(engine, "_check_training", lambda *args, **more: None)
        for other, module in LONG.items():
            if other.replace("_", " ") != name:
                patch.setattr(module, other, lambda *args: "")
        env, settings = made(training)
        with contextlib.suppress(Found), device_of(training):
            rc.verify(env, watch=watch, **settings)
    assert found, f"{training} has no check {name!r}"
    return next((check for check in found if check.status == "failed"), found[-1])


TWICE = {"parameters", "through time", "learner", "acting", "updates"}
"""Names of checks that run for each group."""


@functools.cache
def healthy(training: str, name: str) -> Check:
    return verdict(training, name)


def test_the_table_is_in_the_document():
    """docs/audit.md has the tables of the tests: python -m tests.audit.table --write."""
    assert table.in_doc().strip() == table.rendered().strip()


def test_the_table_names_bugs_and_trainings_that_exist():
    assert {bug for bug, _ in ROWS} <= set(BY_NAME)
    assert {training for _, training in ROWS} <= set(CASES)
    assert len(ROWS) > 100


def test_every_mutant_is_found_or_missed_or_out_of_scope():
    """S004-19: a new mutant is in the table, or says why it is not."""
    pytest.importorskip("ray")
    bugs, found = every(), table.found()
    others = out_of_scope(found)
    assert sorted(bugs - found - missed() - others) == [], "name them in tests/audit/not_audited.py"
    assert sorted((found | missed() | others) - bugs) == []
    assert sorted((found & missed()) | (found & others) | (missed() & others)) == []


def test_no_mutant_is_named_twice():
    for named in (MISSED, OUT_OF_SCOPE):
        names = [name for kind in named.values() for name in kind]
        assert len(names) == len(set(names))


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize(("bug", "training"), ROWS, ids=[f"{bug} ({training})" for bug, training in ROWS])
def test_a_mutant_fails_its_check(bug: str, training: str):
    """S004-19: planted where it lives, also in other processes; the same check passes on healthy code."""
    name = ROWS[bug, training]
    assert healthy(training, name).status == "ok", "\n".join(healthy(training, name).lines())
    mutant: Mutant | Any = BY_NAME[bug]
    with pytest.MonkeyPatch.context() as patch:
        mutant.apply(patch)
        found = verdict(training, name)
    assert found.status == "failed", "\n".join(found.lines())
