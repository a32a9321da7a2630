"""Writes the proofs into docs/requirements.md: for each item, the tests and benches that name its id.

python docs/requirements.py          # rewrite the table
python docs/requirements.py --check  # fail if it is not current

An id counts in the docstring of a test function and in a script of bench/. In the docstring of a module, in
a comment or in a helper it proves nothing.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "requirements.md"
ITEM = re.compile(r"^- (S00\d-\d+)\b")


def proofs() -> dict[str, list[str]]:
    """The files whose tests, or which as benches, name each id."""
    found = defaultdict(list)
    sources = [*sorted((ROOT / "tests").rglob("test_*.py")), *sorted((ROOT / "bench").rglob("*.py"))]
    for path in sources:
        text = path.read_text()
        shown = text if ROOT / "bench" in path.parents else docstrings_of_tests(text)
        for name in sorted(set(re.findall(r"\bS00\d-\d+", shown))):
            found[name].append(path.relative_to(ROOT).as_posix())
    return found


def docstrings_of_tests(source: str) -> str:
    """The docstrings of all test functions in a source, one after another."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    return "\n".join(ast.get_docstring(node) or "" for node in functions if node.name.startswith("test_"))


def with_proofs(table: str) -> str:
    """The table with one line of links below each item."""
    found = proofs()
    lines = []
    for line in table.splitlines():
        if line.startswith("  - proof: "):
            continue
        lines.append(line)
        if item := ITEM.match(line):
            links = [f"[{Path(path).stem}](../{path})" for path in found.get(item[1], [])]
            lines.append(f"  - proof: {', '.join(links) or 'not yet'}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write or check."""
    before = TABLE.read_text()
    after = with_proofs(before)
    if "--check" in sys.argv and before != after:
        raise SystemExit("docs/requirements.md is not current: run python docs/requirements.py")
    TABLE.write_text(after)


if __name__ == "__main__":
    main()
