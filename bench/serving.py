"""Latency of ``session.act``: with one torch thread, as it acts, and with torch's own number of threads.

    python bench/serving.py [--seconds 0.8]

An LSTM of 128 on a vector and on images of 64 x 64, for 1 to 64 rows, on idle cores and with one busy process
per core. Below, larger batches on idle cores: from ``row_threads.MANY_ROWS`` on, the caller's number of
threads is used. The two ways alternate, several rounds each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import gymnasium as gym
import measured
import numpy as np
import torch
from common import write

from recollect.acting.session import Session
from recollect.base import row_threads
from recollect.config.cores import LSTMConfig
from recollect.config.policy import PolicyConfig
from recollect.policy.policy import Policy

SPACES = {
    "vector": gym.spaces.Box(-1, 1, (8,), np.float32),
    "image": gym.spaces.Box(0, 255, (64, 64, 3), np.uint8),
}
ROWS, MANY_ROWS = (1, 4, 16, 64), (256, 1024)
ROUNDS = 4
WAYS = {"one_thread": lambda: row_threads.intra_op_threads(1), "all_threads": nullcontext}


@contextmanager
def busy_cores(is_busy: bool) -> Iterator[None]:
    """One process per core that computes without end."""
    command = [sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(command) for _ in os.sched_getaffinity(0)] if is_busy else []
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def latencies(session: Session, obs: np.ndarray, seconds: float) -> list[float]:
    """Milliseconds of each call, for so many seconds."""
    found, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or not found:
        started = time.perf_counter()
        session.act(obs)
        found.append(1e3 * (time.perf_counter() - started))
    return found


def measure(name: str, rows: int, seconds: float) -> dict[str, Any]:
    """Median, p95 and p99 of each way."""
    space = SPACES[name]
    policy = Policy(space, gym.spaces.Discrete(4), PolicyConfig(core=LSTMConfig(hidden=128)))
    session, obs = Session(policy, rows), np.stack([space.sample() for _ in range(rows)])
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way, threads in WAYS.items():
            with threads():
                latencies(session, obs, 0)  # warm up
                found[way] += latencies(session, obs, seconds / ROUNDS)
    numbers: dict[str, Any] = {}
    for way, times in found.items():
        for key, share in (("median", 50), ("p95", 95), ("p99", 99)):
            numbers[f"{way}_{key}"] = round(float(np.percentile(times, share)), 3)
    return numbers


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.8, help="for each number of rows and way")
    parser.add_argument("--out", default="bench/results/serving.json")
    args = parser.parse_args()
    torch.manual_seed(0)
    row_threads.acting_threads = lambda rows: nullcontext()  # WAYS chooses in place of the session
    busy, results = measured.busy(), []
    for cores in ("idle", "busy"):
        with busy_cores(cores == "busy"):
            for name in SPACES:
                for rows in ROWS if cores == "busy" else ROWS + MANY_ROWS:
                    numbers = measure(name, rows, args.seconds)
                    results.append({"policy": name, "rows": rows, "cores": cores, **numbers})
                    print(results[-1])
    write(
        args.out,
        "serving",
        {"busy_before": busy, "threads": torch.get_num_threads(), "latencies": results},
    )


if __name__ == "__main__":
    main()
