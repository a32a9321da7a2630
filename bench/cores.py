"""What every core costs: to train, to act, and to carry; as a share of the LSTM in the same run.

    python bench/cores.py --quick
    python bench/cores.py --threads 2 --out bench/results/cores.json

Train: forward and backward through ``unroll`` over x [128, B, 128], with 5% of all steps reset, rows in
threads as in a run. Act: ``step`` of B rows without gradients. The cores take turns, round by round, and
the best round of each counts: what disturbs a round only ever makes it slower. Every core has a width
(``hidden``) of 128 and its own defaults otherwise; ``window-128`` looks 128 steps back. The bar: no core
trains slower than a quarter of the LSTM's speed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import common
import torch

from recollect.base import row_threads, tree
from recollect.config.core_choice import core_config, known
from recollect.cores import Core, make_core

T, WIDTH, RESETS, BAR = 128, 128, 0.05, 0.25


def cores(only: str) -> dict[str, Any]:
    """The config of every core, and of some at other sizes."""
    found: dict[str, Any] = {name: core_config(name) for name in known}
    found["window-128"] = {"name": "window", "window": 128}
    found["pmm-gru"] = {"name": "pmm", "controller": "gru"}
    return {name: spec for name, spec in found.items() if only in name or name == "lstm"}


def trains(core: Core, B: int, device: str) -> Callable[[], None]:
    x = torch.randn(T, B, WIDTH, device=device, requires_grad=True)
    first = (torch.rand(T, B) < RESETS).to(device)
    state = tree.clone(core.initial_state(B))

    def run() -> None:
        y, _ = core.unroll(x, state, first)
        y.sum().backward()

    return run


def acts(core: Core, B: int, device: str) -> Callable[[], None]:
    x, first = torch.randn(B, WIDTH, device=device), torch.zeros(B, dtype=torch.bool, device=device)
    start = tree.clone(core.initial_state(B))

    def run() -> None:
        state = start
        with torch.no_grad():
            for _ in range(16):
                _, state = core.step(x, state, first)

    return run


def best_of(runs: dict[str, Callable[[], None]], rounds: int, device: str) -> dict[str, float]:
    """Seconds of the best round of each."""
    best = dict.fromkeys(runs, float("inf"))
    for round_ in range(rounds + 1):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if device != "cpu":
                torch.cuda.synchronize()
            if round_:  # the first round warms up
                best[name] = min(best[name], time.perf_counter() - begin)
    return best


def measure(specs: dict[str, Any], B: int, rounds: int, device: str, threads: int) -> list[dict[str, Any]]:
    torch.manual_seed(B)
    made = {name: make_core(spec, WIDTH).to(device) for name, spec in specs.items()}
    with row_threads.threads(threads), row_threads.intra_op_threads(1):
        train = best_of({name: trains(core, B, device) for name, core in made.items()}, rounds, device)
    with row_threads.intra_op_threads(1):
        act = best_of({name: acts(core, B, device) for name, core in made.items()}, rounds, device)
    rows = []
    for name, core in made.items():
        is_plain = not list(core.parameters())  # the core without memory has nothing to train
        rows.append(
            {
                "core": name,
                "B": B,
                "weights": sum(p.numel() for p in core.parameters()),
                "state_bytes": tree.size_bytes(core.initial_state(1)),
                "train_steps_per_s": None if is_plain else round(T * B / train[name]),
                "act_steps_per_s": round(16 * B / act[name]),
                "train_of_lstm": None if is_plain else round(train["lstm"] / train[name], 2),
                "act_of_lstm": round(act["lstm"] / act[name], 2),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--only", default="", help="only the cores whose name contains this, and the LSTM")
    parser.add_argument("--threads", type=int, default=2, help="groups of rows while training")
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 256], help="B")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", help="write JSON here")
    args = parser.parse_args()
    results = []
    for B in args.rows:
        rows = measure(cores(args.only), B, 3 if args.quick else 15, args.device, args.threads)
        results += rows
        print(f"\nB = {B}: {'train':>12}{'of LSTM':>9}{'act':>12}{'of LSTM':>9}{'state':>10}{'weights':>10}")
        for row in rows:
            slow = (row["train_of_lstm"] or 1) < BAR
            print(
                f"{row['core']:12}{row['train_steps_per_s'] or 0:>10,}{row['train_of_lstm'] or 0:>9.2f}"
                f"{row['act_steps_per_s']:>12,}{row['act_of_lstm']:>9.2f}{row['state_bytes']:>10,}"
                f"{row['weights']:>10,}{'   BELOW THE BAR' if slow else ''}"
            )
    if args.out:
        common.write(args.out, "cores", results)


if __name__ == "__main__":
    main()
