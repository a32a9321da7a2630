"""The table of requirements is current, and everything in it that is due has a proof."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "requirements.md"

NOT_DUE = {
    "what replay in processes costs, measured": ["S003-23"],
}
"""What later work brings, and the items that wait for it."""


@pytest.fixture(scope="module")
def script() -> dict:
    return runpy.run_path(str(ROOT / "docs" / "requirements.py"))


def items() -> dict[str, str]:
    """Every item of the table, and the line of its proofs."""
    return dict(re.findall(r"^- (S00\d-\d+)\b.*\n  - proof: (.*)$", TABLE.read_text(), re.MULTILINE))


def test_the_table_is_current():
    command = [sys.executable, "docs/requirements.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_every_item_that_is_due_has_a_proof():
    """All of the table but what is named here; and what is named here has none yet."""
    waiting = sorted(name for names in NOT_DUE.values() for name in names)
    assert len(items()) == len(re.findall(r"^- S00", TABLE.read_text(), re.MULTILINE)) > 100
    assert waiting == sorted(name for name, proof in items().items() if proof == "not yet")


def test_every_id_is_one_of_the_table(script):
    assert script["proofs"]().keys() <= items().keys()


def test_an_id_counts_in_the_docstring_of_a_test_alone(script):
    source = '''
"""S000-1: of a module."""
NAME = "S000-2"

def test_one():
    """S000-3, S000-4: of a test."""
    # S000-5: a comment
    assert True, "S000-6"

def helper():
    """S000-7: of a helper."""

class TestMany:
    """S000-8: of a class."""

    def test_two(self):
        """Shown here.

        S000-9, further down.
        """
'''
    found = script["docstrings_of_tests"](source)
    assert [f"S000-{n}" for n in range(1, 10) if f"S000-{n}" in found] == ["S000-3", "S000-4", "S000-9"]
