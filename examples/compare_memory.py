"""Does memory help? Three seeds with an LSTM, three without, and one report that compares them.

Do this first with your own env. If both reach the same return, either the task needs no memory, or the
observations never contain the information to remember. One seed is not enough to tell.

    python examples/compare_memory.py                                  # about a minute
    python examples/compare_memory.py --env t-maze --steps 150000      # another task, or any Gymnasium id
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import recollect as rc
from recollect.reports import bootstrap_interval, iqm, write_report

KINDS = {
    "lstm": {"core": "lstm"},
    "none": {"core": "none"},
}


def main(argv: list[str] | None = None) -> None:
    """Six runs, a table, a report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="delayed-cue", help="a task or a Gymnasium id (%(default)s)")
    parser.add_argument("--steps", type=int, default=60_000, help="env steps of each run (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each kind (%(default)s)")
    parser.add_argument("--out", default="runs/compare_memory.html", help="the report (%(default)s)")
    args = parser.parse_args(argv)

    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    returns: dict[str, list[float]] = {name: [] for name in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for name, settings in KINDS.items():
            for seed in range(args.seeds):
                run = Path(folder) / f"{name}-{seed}"
                agent = rc.train(
                    args.env, steps=args.steps, seed=seed, run=str(run), progress=False, **settings
                )
                result = agent.evaluate(episodes=100)
                agent.run.add_evaluation(agent.steps, result)
                returns[name].append(result.mean)
                runs.append(run)
                print(f"{name} {seed}: {result}")
        write_report(runs, out)
    for name, means in returns.items():
        low, high = bootstrap_interval(means)
        middle = f"{iqm(means):.3g} (95% interval {low:.3g} to {high:.3g})"
        print(f"{name}: interquartile mean over {len(means)} seeds {middle}")
    print(f"The comparison is in {out}.")


if __name__ == "__main__":
    main()
