"""How fast rollouts get from actors to the learner, without learning, env or policy.

    python bench/transport.py --quick
    python bench/transport.py --out bench/results/transport.json

Two actors in processes or on a local Ray cluster, with rollouts of 0.1 to 50 MB (8 rows, 128 steps, ever
larger observations). An actor only loads its (tiny) weights and writes a whole rollout, as acting would
record it; collector, tickets, lines, shared memory or object store, and the join into one batch are real.

What is timed is ``collect`` and the join of what it returns. Parts of it, in seconds for one batch of two:
``write`` (in the actor, the slower of the two: in a real run this is the recording of steps, spread over the
rollout), ``join`` (the copy into one batch), and ``other``: all else, with Ray also the copy into the object
store. In async mode an actor writes while the learner joins, and ``other`` may vanish behind it. Beside it,
in the same run, one copy of the same tensors in one process: into memory that is there (``memcpy``), and into
new memory, as the join needs it (``memcpy_new``).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import common
import measured
import stubs
import torch

from recollect.acting.actor import allocate
from recollect.algos.catalog import acting
from recollect.base import tree
from recollect.experience.rollout import Rollout
from recollect.runtimes.env_probe import env_probe

MEGABYTES = (0.1, 1.0, 10.0, 50.0)
ACTORS = 2
WAYS = {
    "processes, lockstep": {"runtime": "processes"},
    "processes, async": {"runtime": "processes", "mode": "async"},
    "ray, lockstep": {"runtime": "ray"},
    "ray, async": {"runtime": "ray", "mode": "async"},
}


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The median of several."""
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def copies(floats: int, repeats: int) -> dict[str, float]:
    """Bytes of one rollout, and what a copy of it takes in one process."""
    config = stubs.settings(1)
    policy = config.policy.build(*_spaces(floats))
    rollout = allocate(policy, stubs.ROWS, stubs.STEPS, acting(config.algo))
    source, target = stubs.filled(rollout), rollout.tensors()
    return {
        "bytes": tree.size_bytes(source),
        "memcpy": seconds(lambda: tree.copy_(target, source), repeats),
        "memcpy_new": seconds(lambda: tree.clone(source), repeats),
    }


def _spaces(floats: int) -> tuple[Any, Any]:
    env = stubs.Still(floats)
    return env.observation_space, env.action_space


def move(floats: int, batches: int, **given: Any) -> dict[str, float]:
    """The median seconds of a batch, and of its parts."""
    config = stubs.settings(ACTORS, **given)
    env = stubs.WritesOnly(floats)
    with env_probe(env, config) as probe:
        policy = config.policy.build(probe.one.observation_space, probe.one.action_space)
        collector = probe.collector(policy)
    found: list[dict[str, float]] = []
    is_mixed = config.mode == "async"
    try:
        for version in range(batches + 3):
            began = time.perf_counter()
            batch = collector.collect(version)
            collected = time.perf_counter()
            whole = Rollout.join(batch.rollouts, is_mixed=is_mixed)
            ended = time.perf_counter()
            assert bool(whole.valid.all()), "a rollout did not arrive"
            collector.publish(version + 1)
            parts = {"total": ended - began, "join": ended - collected, "write": batch.seconds["act"]}
            found.append(parts | {"publish": time.perf_counter() - ended})
    finally:
        collector.close()
    warm = found[3:]
    return {name: statistics.median(row[name] for row in warm) for name in warm[0]}


def result(copied: dict[str, float], moved: dict[str, float]) -> dict[str, Any]:
    """Rates, ratios and shares."""
    size, total = copied["bytes"], moved["total"]
    other = max(0.0, total - moved["join"] - moved["write"])
    return {
        "rollouts_per_s": round(ACTORS / total, 1),
        "megabytes_per_s": round(ACTORS * size / total / 1e6, 1),
        "of_memcpy": round(ACTORS * copied["memcpy"] / total, 4),
        "of_memcpy_new": round(ACTORS * copied["memcpy_new"] / total, 4),
        "ms": {name: round(value * 1e3, 4) for name, value in (moved | {"other": other}).items()},
        "share": {
            name: round(value / total, 4)
            for name, value in {"write": moved["write"], "join": moved["join"], "other": other}.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few batches, up to 10 MB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", help="write JSON here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    busy, rows = measured.busy(), []
    for megabytes in MEGABYTES[:3] if args.quick else MEGABYTES:
        floats, batches = stubs.floats_for(int(megabytes * 1e6)), 20 if args.quick else 60
        copied: list[dict[str, float]] = []
        moved: dict[str, list[dict[str, float]]] = {way: [] for way in args.ways}
        for repeat in range(1 if args.quick else args.repeats):
            copied.append(copies(floats, batches))
            for way in list(moved)[:: 1 if repeat % 2 == 0 else -1]:
                moved[way].append(move(floats, batches, **WAYS[way]))
        plain = _medians(copied)
        row = {
            "megabytes": round(plain["bytes"] / 1e6, 3),
            "memcpy_ms": round(plain["memcpy"] * 1e3, 4),
            "memcpy_new_ms": round(plain["memcpy_new"] * 1e3, 4),
            "memcpy_megabytes_per_s": round(plain["bytes"] / plain["memcpy"] / 1e6),
            "ways": {way: result(plain, _medians(found)) for way, found in moved.items()},
        }
        rows.append(row)
        print(
            f"{row['megabytes']} MB, memcpy {row['memcpy_ms']} ms, into new memory {row['memcpy_new_ms']} ms"
        )
        for way, one in row["ways"].items():
            print(
                f"  {way:20} {one['rollouts_per_s']:>9} rollouts/s {one['megabytes_per_s']:>9} MB/s "
                f"{one['of_memcpy']:.3f} of memcpy; shares {one['share']}",
                flush=True,
            )
    if args.out:
        common.write(args.out, "transport", {"busy_before": busy, "sizes": rows})


def _medians(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


if __name__ == "__main__":
    main()
