"""Shared memory under stress: a million reads of weights, none of them torn; and what a read costs.

    python bench/integrity.py --quick
    python bench/integrity.py --out bench/results/integrity.json

S003-10, S003-11. Weights whose every element is their version are published as fast as they can be while
readers in other processes look at every element of every read; some readers are killed in the midst. A reader
that does not verify what it copied is the control: it must see mixtures, or the stress is too weak. Writers
are killed while they publish. Actors of a run record rows with checksums into their slots. Costs are
against one copy of the same bytes, in the same run. Exits with 1 if anything was torn, stale or lost.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import common
import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))

from tests.support.integrity import SMALL, Careless, kill_writers, stress_slots, stress_weights

from recollect.runtimes.process.weights import WeightBoard

LARGE = 500_000


def weights(reads: int, size: int, kind: type[WeightBoard], victims: int) -> dict[str, Any]:
    began = time.perf_counter()
    seen, published, killed = stress_weights(reads, size=size, victims=victims, kind=kind)
    seconds = round(time.perf_counter() - began, 1)
    return {**asdict(seen), "published": published, "readers_killed": killed, "seconds": seconds}


def best(work: Callable[[], Any], repeats: int) -> float:
    """Seconds of the best of several."""
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def costs(tensors: int, elements: int, repeats: int) -> dict[str, Any]:
    """Publishing and reading, as multiples of copying the same tensors."""
    named = {str(i): torch.randn(elements) for i in range(tensors)}
    into = {name: torch.zeros_like(tensor) for name, tensor in named.items()}
    board = WeightBoard.create(named)

    def copy() -> None:
        for name, tensor in named.items():
            into[name].copy_(tensor)

    plain = best(copy, repeats)
    publish = best(lambda: board.publish(0, named), repeats)
    read = best(lambda: board.read(into), repeats)
    board.close()
    return {
        "tensors": tensors,
        "bytes": tensors * elements * 4,
        "copy_ms": round(plain * 1e3, 4),
        "publish_to_copy": round(publish / plain, 2),
        "read_to_copy": round(read / plain, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a hundredth of it")
    parser.add_argument("--out", default="bench/results/integrity.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    part = 100 if args.quick else 1
    results: dict[str, Any] = {
        "small_weights": weights(1_000_000 // part, SMALL, WeightBoard, victims=4),
        "large_weights": weights(20_000 // part, LARGE, WeightBoard, victims=4),
        "control_that_does_not_verify": weights(4_000, LARGE, Careless, victims=0),
    }
    for name, found in results.items():
        print(f"{name:28} {found}")
    ends = kill_writers(2 if args.quick else 8)
    results["killed_writers"] = {
        "writers": len(ends),
        "mixed": sum(is_mixed for _, _, is_mixed in ends),
        "lost": sum(version < reported for reported, version, _ in ends),
    }
    results["slots"] = dict(stress_slots(8_000 // part))
    results["costs"] = [costs(16, 4096, 200), costs(16, 65_536, 50), costs(16, 1_000_000, 10)]
    for name in ("killed_writers", "slots", "costs"):
        print(f"{name:28} {results[name]}")
    common.write(args.out, "integrity", results)
    board_reads = [results["small_weights"], results["large_weights"]]
    spoiled = sum(found["mixed"] + found["backwards"] for found in board_reads)
    spoiled += results["killed_writers"]["mixed"] + results["killed_writers"]["lost"]
    spoiled += sum(results["slots"][name] for name in ("torn", "stale", "disordered", "misnamed"))
    if spoiled or not results["control_that_does_not_verify"]["mixed"]:
        raise SystemExit("something was torn, stale or lost, or the control saw no mixture")


if __name__ == "__main__":
    main()
