"""What a report knows about built-in tasks: their best returns, their memory's length, their actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recollect.config.tasks import task_name
from recollect.tasks import Task, make_task
from recollect.tasks.deck import SYMBOLS

LENGTH_OPTIONS = {
    "delayed-cue": "horizon",
    "t-maze": "length",
    "copy": "delay",
    "repeat-previous": "k",
    "repeat-first": "decks",
}
"""The option of each task that says how long something has to be remembered."""

FACTORS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
"""The lengths of memory that are tried, as multiples of the trained one."""
LONGEST = 5000
"""No episode longer than this is tried."""

ACTIONS = {
    "t-maze": ("forward", "left", "back", "right"),
    "position-cartpole": ("push left", "push right"),
    "forage": ("up", "down", "left", "right"),
    "repeat-previous": tuple(SYMBOLS),
    "repeat-first": tuple(SYMBOLS),
}
"""The actions of tasks in words, where they have any."""


@dataclass(frozen=True, slots=True)
class Levels:
    """The returns to measure an agent by."""

    best: float | None
    """The best expected return, with memory."""
    memoryless: float | None
    """The best expected return without."""


def known_task(env: str | None, env_kwargs: dict[str, Any]) -> Task | None:
    """The built-in task with one row; None for any other env, and for options that it does not take."""
    if env is None or not task_name(env):
        return None
    try:
        return make_task(env, 1, **env_kwargs)
    except Exception:  # torch and numpy have errors of their own for options that make no sense
        return None


def levels(task: Task | None) -> Levels:
    """The best and the memoryless return, as far as they are known."""
    return Levels(None, None) if task is None else Levels(task.max_return, task.memoryless_return)


def action_words(task: Task | None) -> list[str]:
    """The actions in words; empty where there are none."""
    if task is None:
        return []
    if task.name == "delayed-cue":
        return [f"cue {i}" for i in range(int(task.action_space.n))]  # pyright: ignore[reportAttributeAccessIssue]
    return list(ACTIONS.get(task.name, ()))


def memory_lengths(task: Task) -> tuple[str, int, list[int]]:
    """The option that sets the memory's length, its trained value, and the values worth a try.

    ("", 0, []) for a task without such an option.
    """
    option = LENGTH_OPTIONS.get(task.name)
    if option is None:
        return "", 0, []
    trained = int(getattr(task, option))
    lengths = sorted({max(1, round(trained * factor)) for factor in FACTORS} | {trained})
    return option, trained, lengths
