"""How long the first contact takes: help, imports, the first update, and its line of ``recollect train``.

    python bench/startup.py [--repeats 5]

The best and the median of several runs, in turns; the bar for each is 2 s. Most are whole processes; the
first update is timed from ``rc.train`` to its end, in a new process each, and so includes ``import torch``;
the first line from the start of the process to the line of the first update on its output. Beside them what
``import torch`` alone takes.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

from common import write

COMMANDS = {
    "recollect --help": ["-m", "recollect", "--help"],
    "recollect train --help": ["-m", "recollect", "train", "--help"],
    "recollect train --help all": ["-m", "recollect", "train", "--help", "all"],
    "recollect resume --help": ["-m", "recollect", "resume", "--help"],
    "import recollect": ["-c", "import recollect"],
    "import torch": ["-c", "import torch"],
}
FIRST_UPDATE = """
import time
import recollect as rc
started = time.perf_counter()
class Done(Exception): pass
def stop(*_):
    raise Done
try:
    rc.train("CartPole-v1", steps=10_000, progress=False, callbacks=[stop])
except Done:
    print(time.perf_counter() - started)
"""
FIRST_LINE = ["-m", "recollect", "train", "CartPole-v1", "--steps", "1_000_000", "--plain"]


def process(command: list[str]) -> float:
    """Seconds of a whole process."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def first_update() -> float:
    """Seconds from ``rc.train`` to the end of its first update."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", FIRST_UPDATE]
        return float(subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=folder).stdout)


def first_line() -> float:
    """Seconds from the start of ``recollect train`` to the line of its first update."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        command = [sys.executable, *FIRST_LINE]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder) as run:
            assert run.stderr is not None
            for line in run.stderr:
                if "deviation" in line:
                    seconds = time.perf_counter() - started
                    run.kill()
                    return seconds
    raise SystemExit("recollect train ended without a line of an update")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", default="bench/results/startup.json")
    args = parser.parse_args()
    measured: dict[str, Callable[[], float]] = {name: partial(process, c) for name, c in COMMANDS.items()}
    measured |= {"rc.train, first update": first_update, "recollect train, first line": first_line}
    seconds: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(args.repeats):
        for name, measure in measured.items():
            seconds[name].append(measure())
    results = {}
    for name, found in seconds.items():
        results[name] = {"median": round(statistics.median(found), 3), "best": round(min(found), 3)}
        print(f"{name:28} median {results[name]['median']:.2f} s, best {results[name]['best']:.2f} s")
    write(args.out, "startup", results)


if __name__ == "__main__":
    main()
