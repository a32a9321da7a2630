"""The tables of docs/audit.md: which check catches which bug. Made from the tests that plant the bugs.

python -m tests.audit.table --write
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DOC = Path(__file__).parents[2] / "docs" / "audit.md"
CAUGHT = Path(__file__).with_name("mutants.json")
BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"


def planted() -> list[dict[str, Any]]:
    """Bugs of Recollect by name, each with the training that it is planted in and the check that fails."""
    return json.loads(CAUGHT.read_text())


def found() -> set[str]:
    """The names of those bugs; one that is planted in two trainings counts once."""
    return {row["bug"] for row in planted()}


def rendered() -> str:
    """All tables as Markdown."""
    from tests.audit.not_audited import MISSED, missed
    from tests.audit.test_trainers import BUGS

    lines = ["", "| bug of somebody else's trainer | check that fails |", "| --- | --- |"]
    lines += [f"| {bug} | {check} |" for bug, (check, _) in BUGS.items()]
    caught, all_bugs = len(found()), len(found() | missed())
    lines += ["", f"{caught} of {all_bugs} bugs planted in Recollect and in scope are found:", ""]
    lines += ["| bug | training | check that fails |", "| --- | --- | --- |"]
    lines += [f"| {row['bug']} | {row['training']} | {row['check']} |" for row in planted()]
    lines += ["", f"{len(missed())} are missed:", "", "| bug | kind |", "| --- | --- |"]
    lines += [f"| {bug} | {kind} |" for kind, bugs in MISSED.items() for bug in bugs]
    return "\n".join([*lines, ""])


def in_doc() -> str:
    """The tables as they stand in the document."""
    return DOC.read_text().split(BEGIN)[1].split(END)[0]


if __name__ == "__main__" and "--write" in sys.argv:
    text = DOC.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    DOC.write_text(f"{before}{BEGIN}\n{rendered()}\n{END}{after}")
