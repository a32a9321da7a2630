"""Every proof has seen its bug: it passes on the library as it is and fails on the mutant."""

from __future__ import annotations

import sys

import pytest

from tests.mutants.bugs import MUTANTS, STOPPED
from tests.mutants.mutant import Mutant

pytestmark = pytest.mark.usefixtures("warm_children")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_proof_catches_its_mutant(mutant: Mutant):
    mutant.assert_caught()


@pytest.mark.parametrize("mutant", STOPPED, ids=lambda mutant: mutant.name)
def test_the_run_stops(mutant: Mutant):
    """A misaligned learner does not get past its next update."""
    mutant.assert_caught()


# The harness itself ----------------------------------------------------------------------------------------


def count(x: int) -> int:
    return x + 1


def counts() -> None:
    assert count(1) == 2, "one and one"
    assert count(-1) == 0, "minus one and one"


def refuses() -> None:
    with pytest.raises(TypeError):
        count(None)


def mutant(new: str, by: str, proof=counts, old: str = "x + 1") -> Mutant:
    return Mutant("a toy", proof, ((sys.modules[__name__], "count", old, new),), by)


@pytest.mark.parametrize("by", ["one and one", "assert count(1) == 2", "AssertionError", "counts: "])
def test_a_bug_is_caught_by_its_line_or_its_words(by: str):
    mutant("x + 2", by).assert_caught()


def test_an_error_that_is_missing_is_a_catch():
    mutant("1 + (x or 0)", "with pytest.raises(TypeError):", refuses).assert_caught()


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (mutant("x + 1", "one and one"), pytest.fail.Exception, "DID NOT RAISE"),
        (mutant("x + 2", "minus one and one"), AssertionError, "not noticed by"),
        (mutant("abs(x) + 1", "assert count(1)"), AssertionError, "not noticed by"),
        (mutant("x + 2", ""), AssertionError, "names what must notice it"),
        (mutant('x + "1"', "one and one"), TypeError, "unsupported operand"),
        (mutant("{}[x]", "one and one"), KeyError, "1"),
        (mutant("y", "one and one", old="x"), LookupError, "2 times"),
        (mutant("assert x < 0", "assert count(1)", old="return x + 1"), AssertionError, "^$"),
    ],
)
def test_an_accident_is_no_catch(wrong: Mutant, error: type[BaseException], words: str):
    """Nor is another assertion than the one meant, one of the library's own, or an edit that does not fit."""
    with pytest.raises(error, match=words):
        wrong.assert_caught()


def test_a_proof_that_fails_on_healthy_code_catches_nothing():
    def fails() -> None:
        assert count(1) == 3

    with pytest.raises(AssertionError, match="assert 2 == 3"):
        mutant("x + 3", "count(1) == 3", fails).assert_caught()
