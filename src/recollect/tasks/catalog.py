"""The built-in tasks by name."""

from __future__ import annotations

from typing import Any

import torch

from recollect.config.fields import field_names
from recollect.config.tasks import task_name
from recollect.errors import ConfigError, nearest
from recollect.tasks.base import Task
from recollect.tasks.classic_control import PositionCartPole, PositionPendulum
from recollect.tasks.copy_task import Copy
from recollect.tasks.delayed_cue import DelayedCue
from recollect.tasks.forage import Forage
from recollect.tasks.mech import MechArena
from recollect.tasks.popgym_cards import RepeatFirst, RepeatPrevious
from recollect.tasks.recall import AssociativeRecall
from recollect.tasks.recall_duel import RecallDuel
from recollect.tasks.t_maze import TMaze
from recollect.tasks.treasure import TreasureHunt

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        DelayedCue,
        Copy,
        AssociativeRecall,
        RepeatPrevious,
        RepeatFirst,
        TMaze,
        PositionCartPole,
        PositionPendulum,
        Forage,
        TreasureHunt,
        RecallDuel,
        MechArena,
    )
}
"""The task classes by short name."""


def task_class(name_or_id: str) -> type[Task]:
    """The task with this short name (``t-maze``) or Gymnasium id (``recollect/TMaze-v0``)."""
    name = task_name(name_or_id)
    if name is None:
        known = [*TASKS, *(task.id for task in TASKS.values())]
        raise ConfigError(
            f"there is no task {name_or_id!r}{nearest(name_or_id, known)}: the tasks are {', '.join(TASKS)}"
        )
    return TASKS[name]


def make_task(name_or_id: str, num_envs: int, device: torch.device | str = "cpu", **options: Any) -> Task:
    """A built-in task with ``num_envs`` rows on ``device``; ``options``: see ``recollect.config.tasks``."""
    task: Any = task_class(name_or_id)
    known = task_options(task)
    for option in options:
        if option not in known:
            raise ConfigError(
                f"{task.name} has no option {option!r}{nearest(option, known)}: "
                f"its options are {', '.join(known) or 'none'}"
            )
    return task(num_envs, device, **options)


def task_options(task: type[Task]) -> list[str]:
    """The names of the options of this task."""
    return field_names(task.Options)
