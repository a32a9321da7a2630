"""Writes the proofs into docs/requirements.md: for each item, the tests and benches that name its id.

python docs/requirements.py          # rewrite the table
python docs/requirements.py --check  # fail if it is not current
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "requirements.md"
ITEM = re.compile(r"^- (S00\d-\d+)\b")


def proofs() -> dict[str, list[str]]:
    """The files that name each id. ``S000-2..4, 7`` names S000-2, 3, 4 and 7."""
    found = defaultdict(list)
    for folder in ("tests", "bench"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name in sorted(named_ids(path.read_text())):
                found[name].append(path.relative_to(ROOT).as_posix())
    return found


def named_ids(text: str) -> set[str]:
    """All ids that stand in a text."""
    return set(re.findall(r"S00\d-\d+", text))


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
