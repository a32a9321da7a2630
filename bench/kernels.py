"""How fast are the recurrent kernels with resets, as a share of torch's own without any?

Forward and backward over x [T, B, 128] with 128 hidden units and 5% of all steps reset at random,
against nn.LSTM and nn.GRU, which cannot reset. Both run in turn in one process; the best of several
repetitions counts, since what disturbs a run only ever makes it slower.

    python bench/kernels.py --quick
    python bench/kernels.py --threads 2 --out bench/results/kernels.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import common
import torch
from torch import nn

from recollect.base import tree
from recollect.cores import GRUConfig, LSTMConfig
from recollect.cores.contract import Core

SIZE = 128
RESETS = 0.05
TORCH = {"lstm": nn.LSTM, "gru": nn.GRU}
CONFIG = {"lstm": LSTMConfig, "gru": GRUConfig}


def ours(core: Core, x: torch.Tensor, first: torch.Tensor) -> Callable[[], None]:
    state = tree.clone(core.initial_state(x.shape[1]))

    def run() -> None:
        y, _ = core.unroll(x, state, first)
        y.sum().backward()

    return run


def torchs(rnn: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        y, _ = rnn(x)
        y.sum().backward()

    return run


def best_of(runs: list[Callable[[], None]], seconds: float, device: str) -> list[float]:
    """The best time of each, run in turn for about ``seconds``, at least three times each."""
    best = [float("inf")] * len(runs)
    begin, rounds = time.perf_counter(), 0
    while rounds < 4 or time.perf_counter() - begin < seconds:
        for i, run in enumerate(runs):
            if device == "cuda":
                torch.cuda.synchronize()
            before = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            if rounds:  # the first round warms up
                best[i] = min(best[i], time.perf_counter() - before)
        rounds += 1
    return best


def measure(name: str, T: int, B: int, seconds: float, device: str) -> dict:
    torch.manual_seed(T * 10_000 + B)
    core = CONFIG[name](hidden=SIZE).build(SIZE).to(device)
    rnn = TORCH[name](SIZE, SIZE).to(device)
    x = torch.randn(T, B, SIZE, device=device, requires_grad=True)
    first = (torch.rand(T, B) < RESETS).to(device)
    never = torch.zeros_like(first)
    runs = [torchs(rnn, x), ours(core, x, first), ours(core, x, never)]
    theirs, resets, plain = best_of(runs, seconds, device)
    return {
        "core": name,
        "T": T,
        "B": B,
        "torch_us_per_step_row": theirs / (T * B) * 1e6,
        "ours_us_per_step_row": resets / (T * B) * 1e6,
        "ratio": theirs / resets,
        "ratio_without_resets": theirs / plain,
    }


def acting(name: str, B: int) -> dict:
    """Microseconds of one step without gradient, as an actor makes it, with and without a reset."""
    core = CONFIG[name](hidden=SIZE).build(SIZE)
    x, state = torch.randn(B, SIZE), core.initial_state(B)
    never = torch.zeros(B, dtype=torch.bool)
    once = never.clone()
    once[0] = True
    with torch.no_grad():
        _, state = core.step(x, state, never)
        runs = [
            lambda: core.step(x, state, never),
            lambda: core.step(x, state, once),
            lambda: core._step(x, state),
        ]
        step, reset, bare = best_of(runs, 0.3, "cpu")
    return {"core": name, "B": B, "step_us": step * 1e6, "reset_us": reset * 1e6, "bare_us": bare * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few sizes only")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--core", default=None, choices=tuple(TORCH))
    parser.add_argument("--seconds", type=float, default=2.0, help="time spent on each size")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    lengths, batches = (
        ((16, 128), (4, 16, 256)) if args.quick else ((16, 32, 64, 128), (4, 16, 32, 64, 256, 1024))
    )
    names = [args.core] if args.core else list(TORCH)
    rows = []
    print(f"{args.threads} thread(s) on {args.device}, {SIZE} -> {SIZE}, {RESETS:.0%} resets, fwd + bwd")
    print("core    T     B   torch us   ours us   ratio   without resets")
    for name in names:
        for T in lengths:
            for B in batches:
                row = measure(name, T, B, args.seconds, args.device)
                rows.append(row)
                print(
                    f"{name:5}{T:4}{B:6}{row['torch_us_per_step_row']:11.2f}"
                    f"{row['ours_us_per_step_row']:10.2f}{row['ratio']:8.2f}"
                    f"{row['ratio_without_resets']:17.2f}",
                    flush=True,
                )
    steps = [acting(name, 16) for name in names] if args.device == "cpu" else []
    for row in steps:
        print(
            f"acting, {row['core']}, B = {row['B']}: {row['step_us']:.1f} us a step, "
            f"{row['reset_us']:.1f} with a reset, {row['bare_us']:.1f} without checks"
        )
    if args.out:
        result = {"threads": args.threads, "resets": RESETS, "unroll": rows, "acting": steps}
        common.write(args.out, "kernels", result)


if __name__ == "__main__":
    main()
