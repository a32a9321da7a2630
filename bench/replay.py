"""Replay: the cost of sampling sequences, against a bare gather of as many frames, of add and of update.

Sampling is compared with one ``torch.index_select(out=...)`` of W x M observations at random places, in the
same run and in turns; ratios are of the medians of a round. A sample also has actions, rewards, flags, states
and probabilities.

    python bench/replay.py --out bench/results/replay.json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import common
import torch

from recollect.experience.replay import Replay
from recollect.experience.rollout import Rollout

ROWS, FEATURES, STEPS, EPISODE, HIDDEN = 64, 150, 16, 200, 128
SHAPES = {
    "sequences of 80": {"burn_in": 40, "length": 35, "n_step": 5, "stride": 8},
    "windows of 5": {"burn_in": 3, "length": 1, "n_step": 1, "stride": 1, "stores_states": False},
}


def rollout(steps: int, at: int, state_steps: tuple[int, ...], device: str) -> Rollout:
    """Steps of all rows; episodes of EPISODE steps end in a termination, at another time in each row."""
    time_in = (at + torch.arange(steps + 1).unsqueeze(1) + 3 * torch.arange(ROWS)) % EPISODE
    flags = torch.zeros(steps, ROWS, dtype=torch.bool)
    states = (torch.randn(len(state_steps), ROWS, HIDDEN),) * 2
    return Rollout(
        obs=torch.randn(steps + 1, ROWS, FEATURES),
        first=time_in == 0,
        action=torch.randint(4, (steps, ROWS)),
        record={},
        reward=torch.randn(steps, ROWS),
        terminated=time_in[1:] == 0,
        truncated=flags,
        valid=~flags,
        state_steps=state_steps,
        states=states,
    ).to(device)


def make(shape: dict, frames: int, exponent: float, device: str) -> Replay:
    state = (torch.zeros(1, HIDDEN),) * 2
    replay = Replay(
        **shape,
        rows=ROWS,
        capacity=frames // ROWS,
        obs=torch.zeros(1, FEATURES),
        action=torch.zeros(1, dtype=torch.int64),
        state=state if shape.get("stores_states", True) else None,
        device=device,
        priority_exponent=exponent,
    )
    steps, at = 128, 0
    while at < replay.capacity + steps:
        replay.add(rollout(steps, at, tuple(range(0, steps, 8)), device))
        at += steps
    return replay


def timed(fn, device: str) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    fn()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def in_turns(fns: dict, device: str, rounds: int, calls: int) -> dict[str, list[float]]:
    """Seconds of a call of each function, the median of each round."""
    times: dict[str, list[float]] = {name: [] for name in fns}
    for fn in fns.values():
        timed(fn, device)
    for _ in range(rounds):
        for name, fn in fns.items():
            times[name].append(median([timed(fn, device) for _ in range(calls)]))
    return times


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def measure(name: str, replay: Replay, count: int, args) -> dict:
    device, generator = args.device, torch.Generator(args.device).manual_seed(1)
    window = replay.window
    out = torch.empty(window * count, FEATURES, device=device)
    # A new index for each call, drawn beforehand. Together they read as much memory as the replay has.
    sets = -(-ROWS * replay.capacity // (count * window))
    starts = torch.randint(ROWS * replay.capacity - window, (sets, count), device=device)
    places = (starts.unsqueeze(1) + torch.arange(window, device=device).unsqueeze(1)).flatten(1)
    turn = iter(range(10**9))
    samples = replay.sample(count, generator)
    entries, priority = samples.entries.clone(), torch.rand(count, device=device)
    fns = {
        "bare_gather": lambda: torch.index_select(replay.obs, 0, places[next(turn) % sets], out=out),
        "sample": lambda: replay.sample(count, generator),
        "draw": lambda: replay.tree.draw(count, generator),
        "update": lambda: replay.update(entries, priority),
    }
    times = in_turns(fns, device, args.rounds, max(30, 60_000 // (window * count)))
    ratios = sorted(b / s for b, s in zip(times["bare_gather"], times["sample"]))
    row = {
        "shape": name,
        "priorities": replay.priority_exponent > 0,
        "windows": count,
        "frames": window * count,
        **{f"{key}_us": median(value) * 1e6 for key, value in times.items()},
        "speed_of_bare_gather": median(ratios),
        "range": [ratios[0], ratios[-1]],
        "frames_per_second": window * count / median(times["sample"]),
    }
    print(
        f"{name:16}{count:5} windows: bare {row['bare_gather_us']:7.0f} us, sample {row['sample_us']:7.0f} us"
        f" ({row['speed_of_bare_gather']:.2f} of its speed, {ratios[0]:.2f} to {ratios[-1]:.2f}), draw "
        f"{row['draw_us']:6.0f} us, update {row['update_us']:6.0f} us",
        flush=True,
    )
    return row


def adding(name: str, replay: Replay, args) -> dict:
    one = rollout(STEPS, 0, (0, 8), args.device)
    copies = torch.empty_like(one.obs)
    fns = {"add": lambda: replay.add(one), "copy": lambda: copies.copy_(one.obs)}
    times = in_turns(fns, args.device, args.rounds, 20)
    row = {
        "shape": name,
        "rows": ROWS,
        "steps": STEPS,
        **{f"{k}_us": median(v) * 1e6 for k, v in times.items()},
    }
    print(
        f"{name:16} add of {ROWS} rows x {STEPS} steps: {row['add_us']:.0f} us (a copy: {row['copy_us']:.0f})"
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    counts = {"sequences of 80": (16, 32, 64), "windows of 5": (32, 256, 1024)}
    results = []
    for name, shape in SHAPES.items():
        for exponent in (0.0, 0.9):
            replay = make(shape, args.frames, exponent, args.device)
            rows = [measure(name, replay, count, args) for count in counts[name]]
            added = adding(name, replay, args)
            results.append({"bytes": replay.bytes, "sampling": rows, "adding": added})
            del replay
    if args.out:
        settings = {
            "threads": args.threads,
            "device": args.device,
            "frames": args.frames,
            "rounds": args.rounds,
        }
        common.write(args.out, "replay", {**settings, "features": FEATURES, "replays": results})


if __name__ == "__main__":
    main()
