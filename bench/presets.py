"""What `recollect train TASK` reaches without a flag: three seeds of a preset, evaluated greedily.

    python bench/presets.py [--only PART-OF-A-NAME] [--seeds 3] [--out FILE]

Shows S001-27 and S004-17 for the settings that users get without choosing any. The runs go one after
another, each with all threads. A bar that a seed misses is printed and written as missed.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from typing import Any

import common

import recollect as rc
from recollect.training.presets import preset


@dataclass(frozen=True)
class Bar:
    """One line of the table."""

    task: str
    least: float
    """The mean greedy return that every seed should reach."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    seeds: int = 3
    """At most; 1 where no preset is known to work and the run only says how far it gets."""


MEDIUM = {"size": "medium"}
BARS = {
    "delayed-cue": Bar("delayed-cue", 0.95),
    "repeat-previous": Bar("repeat-previous", 0.9),
    "repeat-first": Bar("repeat-first", 0.9),
    "t-maze": Bar("t-maze", 0.95),
    "copy": Bar("copy", 0.9),
    "associative-recall": Bar("associative-recall", 0.9),
    "position-cartpole": Bar("position-cartpole", 475),
    "position-pendulum": Bar("position-pendulum", -250),
    "delayed-cue medium": Bar("delayed-cue", 0.95, MEDIUM),
    "t-maze medium": Bar("t-maze", 0.95, MEDIUM),
    "repeat-first medium": Bar("repeat-first", 0.9, MEDIUM),
    "repeat-previous medium": Bar("repeat-previous", 0.9, MEDIUM),
}


def run(name: str, seed: int, episodes: int) -> dict[str, Any]:
    """Train one agent by its preset and evaluate it greedily."""
    bar = BARS[name]
    started = time.perf_counter()
    agent = rc.train(bar.task, seed=seed, progress=False, env_kwargs=bar.env_kwargs)
    seconds = time.perf_counter() - started
    evaluation = agent.evaluate(episodes=episodes, eval_mode="greedy")
    return {
        "name": name,
        "seed": seed,
        "steps": agent.steps,
        "return": round(evaluation.mean, 3),
        "interval": [round(x, 3) for x in evaluation.interval],
        "bar": bar.least,
        "reached": evaluation.mean >= bar.least,
        "seconds": round(seconds, 1),
        "curve": common.curve(agent.history),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="only the presets whose name contains this")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=100, help="of each evaluation")
    parser.add_argument("--out", help="write JSON here")
    args = parser.parse_args()
    names = [name for name in BARS if args.only in name]
    rows = []
    for name in names:
        print(f"{name}: {chosen(name)}", flush=True)
        for seed in range(min(args.seeds, BARS[name].seeds)):
            row = run(name, seed, args.episodes)
            rows.append(row)
            print(f"  seed {seed}: {row['return']:g} in {row['seconds']:.0f} s", flush=True)
    print(f"\n{'':24} {'steps':>10} {'bar':>8}  greedy return of each seed")
    for name in names:
        mine = [row for row in rows if row["name"] == name]
        missed = "" if all(row["reached"] for row in mine) else "   MISSED"
        returns = "  ".join(f"{row['return']:g}" for row in mine)
        print(f"{name:24} {mine[0]['steps']:>10,} {BARS[name].least:>8g}  {returns}{missed}")
    if args.out:
        presets = {name: {key: repr(value) for key, value in chosen(name).items()} for name in names}
        common.write(args.out, "presets", {"presets": presets, "runs": rows})


def chosen(name: str) -> dict[str, Any]:
    """What the preset sets."""
    return preset(BARS[name].task, {"env_kwargs": BARS[name].env_kwargs})


if __name__ == "__main__":
    main()
