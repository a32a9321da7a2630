"""How long the first contact takes: ``recollect --help`` and the like, and ``import recollect``.

    python bench/startup.py [--repeats 5]

Whole processes, the best and the median of several; the bar for help is 2 s. Beside them, in the same
run, what ``import torch`` alone takes.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from common import write

COMMANDS = {
    "recollect --help": ["-m", "recollect", "--help"],
    "recollect train --help": ["-m", "recollect", "train", "--help"],
    "recollect train --help all": ["-m", "recollect", "train", "--help", "all"],
    "recollect resume --help": ["-m", "recollect", "resume", "--help"],
    "import recollect": ["-c", "import recollect"],
    "import torch": ["-c", "import torch"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", default="bench/results/startup.json")
    args = parser.parse_args()
    results = {}
    for name, command in COMMANDS.items():
        seconds = []
        for _ in range(args.repeats):
            started = time.perf_counter()
            subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, check=True)
            seconds.append(time.perf_counter() - started)
        results[name] = {"median": round(statistics.median(seconds), 3), "best": round(min(seconds), 3)}
        print(f"{name:28} median {results[name]['median']:.2f} s, best {results[name]['best']:.2f} s")
    write(args.out, "startup", results)


if __name__ == "__main__":
    main()
