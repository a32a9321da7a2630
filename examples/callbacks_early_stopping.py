"""Callbacks: follow a run, stop it early, and read its folder afterwards.

Uses a custom callback and a built-in one: training ends when evaluations have not improved for a while,
long before the maximum number of steps.

    python examples/callbacks_early_stopping.py                  # about half a minute
    python examples/callbacks_early_stopping.py --run runs/kept  # keep the run's folder
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import recollect as rc

TASK = {"cues": 4, "horizon": 25}


class Milestones(rc.Callback):
    """Reports when an evaluation first reaches a level, and the share of right answers while training."""

    def __init__(self, *levels: float):
        self.levels = sorted(levels)
        self.reached: dict[float, int] = {}
        self.right = self.episodes = 0

    def on_episode(self, training, episode):
        """Count right answers; actions are sampled here, so there are fewer than in an evaluation."""
        self.episodes += 1
        self.right += episode.return_ == 1

    def on_evaluation(self, training, evaluation):
        """Print the result and note the levels that it reaches."""
        print(
            f"{training.steps:>9,} steps: {evaluation}; {self.right} of {self.episodes} right while training"
        )
        self.right = self.episodes = 0
        for level in self.levels:
            if evaluation.mean >= level:
                self.reached.setdefault(level, training.steps)

    def on_end(self, training, reason):
        """Print a summary."""
        for level, steps in self.reached.items():
            print(f"passed {level:.0%} after {steps:,} steps")
        print(f"the end: {reason}")


def main(argv: list[str] | None = None) -> None:
    """Train with both callbacks, then read the run folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500_000, help="most env steps (%(default)s)")
    parser.add_argument("--run", help="keep the run in this folder; default: a temporary one")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        train(args.run or str(Path(folder) / "run"), args.steps)


def train(folder: str, steps: int) -> None:
    """Train in ``folder``, then print what it holds."""
    rc.train(
        "delayed-cue",
        steps=steps,
        seed=0,
        env_kwargs=TASK,
        run=folder,
        eval_every=min(8192, steps),
        eval_episodes=100,
        progress=False,
        callbacks=[Milestones(0.5, 0.9, 0.99), rc.EarlyStopping("evaluation", patience=50_000)],
    )
    run = rc.Run(folder)
    print(f"the folder says: {run.status['state']}, {run.status['reason']!r}")
    print("its events:", ", ".join(dict.fromkeys(event["kind"] for event in run.events())))
    best = rc.load(folder)  # the best by evaluation
    print(f"the best checkpoint is of step {best.steps:,}:", best.evaluate(episodes=200))


if __name__ == "__main__":
    main()
