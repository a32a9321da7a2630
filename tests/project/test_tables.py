"""The tables of measurements in README and docs are those that bench/tables.py makes from bench/results."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "bench" / "tables.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
USED = {path: re.findall(r"<!-- table: (.+?) -->", path.read_text()) for path in PAGES}


@pytest.mark.parametrize("page", [page for page in PAGES if USED[page]], ids=lambda page: page.name)
def test_a_page_says_what_was_measured(page):
    """After a new measurement, or an edit by hand, `python bench/tables.py` writes it again."""
    assert SCRIPT["renewed"](page.read_text()) == page.read_text()


def test_every_table_is_on_a_page():
    assert sorted(SCRIPT["TABLES"]) == sorted({name for names in USED.values() for name in names})


def test_a_number_changed_by_hand_is_found():
    page = (ROOT / "docs" / "cores.md").read_text()
    start, end = page.index("<!-- table"), page.index("<!-- end -->")
    table = page[start:end]
    changed = page.replace(table, re.sub(r"\d(?=[^\d]*$)", lambda digit: str(9 - int(digit[0])), table))
    assert changed != page
    assert SCRIPT["renewed"](changed) == page


def test_a_missing_value_is_a_dash():
    made = SCRIPT["Cells"]().format("{a:.2f} {b:,} {c!b} {d!m}", a=None, b=1234, c=20480, d=2.5e6)
    assert made == "- 1,234 20.0 KiB 2.5M"
