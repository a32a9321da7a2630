"""Every proof across processes has seen its bug, planted in the process that would have it."""

from __future__ import annotations

import pytest

from tests.mutants.mutant import Mutant
from tests.mutants.process_bugs import MUTANTS


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_proof_catches_its_mutant(mutant: Mutant):
    mutant.assert_caught()
