"""How long `recollect audit` takes on each preset: every built-in task, and every file in configs/.

    python bench/audit.py [--only PART-OF-A-NAME] [--tasks] [--out FILE]

The bar is 30 seconds on two cores for each. Each audit is a process of its own, as a user starts it; the time
of the whole process is measured, and its CPU time, which a busy machine changes less. Presets whose packages
are not installed are named as such.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common

from recollect.config.tasks import TASKS

BAR = 30.0
ROOT = Path(__file__).resolve().parents[1]


def targets() -> dict[str, list[str]]:
    """The words of each command line by a name."""
    found = {name: [name] for name in sorted(TASKS)}
    for file in sorted((ROOT / "configs").iterdir()):
        found[f"configs/{file.name}"] = ["--config", str(file)]
    return found


def run(name: str, words: list[str]) -> dict[str, Any]:
    """One audit: its seconds, exit code and counts of verdicts."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "audit.json"
        command = [sys.executable, "-m", "recollect", "audit", *words, "--json", str(file)]
        started, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        seconds, now = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        if not file.exists():
            return {"name": name, "error": done.stderr.strip().splitlines()[-1:], "code": done.returncode}
        checks = json.loads(file.read_text())["checks"]
    counts: dict[str, int] = {}
    for check in checks:
        counts[check["status"]] = counts.get(check["status"], 0) + 1
    failed = [check["name"] for check in checks if check["status"] == "failed"]
    return {
        "name": name,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "verdicts": counts,
        "failed": failed,
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="presets with this in their name")
    parser.add_argument("--out", default="bench/results/audit.json")
    parser.add_argument("--tasks", action="store_true", help="the built-in tasks alone, not the files")
    args = parser.parse_args()
    rows = []
    for name, words in targets().items():
        if args.only in name and not (args.tasks and name.startswith("configs/")):
            rows.append(run(name, words))
            print(rows[-1], flush=True)
    found = {"bar": BAR, "load": os.getloadavg()[0], "presets": rows}
    for name in ("seconds", "cpu_seconds"):
        found[f"slowest_{name}"] = max((row[name] for row in rows if name in row), default=None)
    common.write(args.out, "audit", found)


if __name__ == "__main__":
    main()
