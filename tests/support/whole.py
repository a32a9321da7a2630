"""A small run that nothing happened to, to compare those with that something did happen to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import recollect as rc
from recollect.training.run_folder import Run
from tests.support.doomed import SMALL, UPDATE, differing, leftovers, rows, weights

SETTINGS: dict[str, Any] = SMALL | {
    "steps": 5 * UPDATE,
    "eval_every": 2 * UPDATE,
    "eval_episodes": 2,
    "keep_checkpoints": 2,
}
STOPPED = 3 * UPDATE
"""Where the run of the fixture ``stopped`` was stopped."""


class Whole:
    """The run that nothing happened to."""

    def __init__(self, path: Path):
        self.path = path
        self.agent = rc.train("delayed-cue", run=str(path), **SETTINGS)
        self.weights, self.rows = weights(self.agent), rows(path)
        self.run = Run(path)

    def assert_same(self, path: Path, agent: rc.Agent | None = None) -> None:
        """``path`` has ended as this one did, and nothing stays behind."""
        run = Run(path)
        assert differing(self.weights, weights(agent or rc.load(path, checkpoint="last"))) == []
        assert rows(path) == self.rows
        assert [e["returns"] for e in run.evaluations()] == [e["returns"] for e in self.run.evaluations()]
        assert run.status["best"] == self.run.status["best"]
        assert (run.status["state"], run.status["reason"]) == ("finished", "steps")
        assert leftovers(path) == []
        assert run.checkpoint("best").name == self.run.checkpoint("best").name


class Stop(rc.Callback):
    """Stops at ``STOPPED``."""

    def on_iteration(self, training, metrics):
        if training.steps >= STOPPED:
            training.stop("enough")
