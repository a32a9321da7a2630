"""Env steps per second, learning included: env, acting, learning and total.

    python bench/throughput.py [--quick] [--out bench/results/throughput.json]

Two kinds of work: CartPole without velocities through Gymnasium (16 envs, rollout 128, 4 epochs, 4
minibatches, one encoder layer, LSTM of 128) with several chunk lengths and
the default encoder of 64 (and 128 once), and built-in tasks with 256
rows. Also shows S000-23: steps per second stay flat over the run.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import common
from others.task import position_cartpole

import recollect as rc


def measure(env: Any, steps: int, **settings: Any) -> dict[str, Any]:
    """Train for ``steps`` and take the median speeds of all updates but the first few."""
    rows: list[dict[str, float]] = []
    rc.train(
        env, steps=steps, progress=False, callbacks=[lambda _, metrics: rows.append(metrics)], **settings
    )
    warm = rows[3:]
    result = {
        part: round(statistics.median(row[f"speed/{part}"] for row in warm))
        for part in ("total", "env", "act", "learn")
    }
    third = max(1, len(warm) // 3)
    early, late = warm[:third], warm[-third:]
    flat = [statistics.median(row["speed/total"] for row in part) for part in (early, late)]
    return result | {"late_over_early": round(flat[1] / flat[0], 3), "updates": len(rows)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few updates of each")
    parser.add_argument("--out", help="write JSON here")
    args = parser.parse_args()
    few = 12 if args.quick else 60
    work: dict[str, tuple[Any, dict[str, Any]]] = {
        f"CartPole through Gymnasium, 16 envs, chunk {chunk}": (position_cartpole, {"chunk": chunk})
        for chunk in (16, 32, 64, 128)
    }
    work["CartPole through Gymnasium, 16 envs, chunk 32, parallel operations"] = (
        position_cartpole,
        {"parallel": "operations"},
    )
    wide = {"chunk": 32, "encoder": rc.EncoderConfig(hidden=(128,))}
    work["CartPole through Gymnasium, 16 envs, chunk 32, encoder of 128"] = (position_cartpole, wide)
    work["CartPole through Gymnasium, 16 envs, GRU, chunk 32"] = (position_cartpole, {"core": "gru"})
    work["CartPole through Gymnasium, 16 envs, no memory"] = (
        position_cartpole,
        {"core": "none", "recurrent_mode": "none"},
    )
    for task in ("delayed-cue", "repeat-previous", "position-cartpole"):
        work[f"{task}, 256 rows, chunk 32"] = (task, {"num_envs": 256})
    results = {}
    print(f"{'steps per second':>72} {'total':>9} {'env':>9} {'act':>9} {'learn':>9} {'late/early':>10}")
    for name, (env, settings) in work.items():
        rows = settings.get("num_envs", 16)
        updates = few if rows == 16 else max(8, few // 4)
        row = measure(env, updates * rows * 128, **settings)
        results[name] = row
        print(
            f"{name:>72} {row['total']:>9,} {row['env']:>9,} {row['act']:>9,} {row['learn']:>9,} "
            f"{row['late_over_early']:>10}",
            flush=True,
        )
    if args.out:
        common.write(args.out, "throughput", results)


if __name__ == "__main__":
    main()
