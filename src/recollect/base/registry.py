"""Makes the built-in tasks known to Gymnasium, by name only: no task is imported before one is made."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import gymnasium as gym

IDS = {
    "delayed-cue": "recollect/DelayedCue-v0",
    "copy": "recollect/Copy-v0",
    "associative-recall": "recollect/AssociativeRecall-v0",
    "repeat-previous": "recollect/RepeatPrevious-v0",
    "repeat-first": "recollect/RepeatFirst-v0",
    "t-maze": "recollect/TMaze-v0",
    "position-cartpole": "recollect/PositionCartPole-v0",
    "position-pendulum": "recollect/PositionPendulum-v0",
    "forage": "recollect/Forage-v0",
}
"""The Gymnasium id of every task, by its short name."""
MAKE_TASK = "recollect.tasks.catalog:make_task"
"""The function that makes a task by its name or id."""


def load(entry_point: str) -> Any:
    """The object that ``module:name`` stands for."""
    module, _, name = entry_point.partition(":")
    return getattr(import_module(module), name)


def register_tasks() -> None:
    """Register every task; those already known stay as they are."""
    for name, task_id in IDS.items():
        if task_id not in gym.registry:
            gym.register(
                task_id,
                entry_point="recollect.tasks.registration:TaskEnv",
                vector_entry_point="recollect.tasks.registration:TaskVectorEnv",
                kwargs={"task": name},
            )
