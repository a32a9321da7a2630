"""Every proof has seen its bug: it passes on the library as it is and fails on the mutant."""

from __future__ import annotations

import functools

import pytest

from recollect.errors import AlignmentError, RecollectError
from tests.mutants.bugs import MUTANTS, STOPPED
from tests.mutants.mutant import Mutant


@functools.cache
def healthy(proof) -> None:
    """Passes, once for all the mutants that it has to catch."""
    proof()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_proof_catches_its_mutant(mutant: Mutant, monkeypatch):
    healthy(mutant.proof)
    mutant.apply(monkeypatch)
    with pytest.raises((AssertionError, RecollectError)):
        mutant.proof()


@pytest.mark.parametrize("mutant", STOPPED, ids=lambda mutant: mutant.name)
def test_the_run_stops(mutant: Mutant, monkeypatch):
    """A misaligned learner does not get past its next update."""
    healthy(mutant.proof)
    mutant.apply(monkeypatch)
    with pytest.raises(AlignmentError):
        mutant.proof()
