"""Facts about built-in tasks for reports: best returns, memory lengths, names of actions."""

from __future__ import annotations

from typing import Any

from recollect.config.tasks import task_name
from recollect.play.words import ACTION_WORDS
from recollect.tasks import Task, make_task

LENGTH_OPTIONS = {
    "delayed-cue": "horizon",
    "t-maze": "length",
    "copy": "delay",
    "repeat-previous": "k",
    "repeat-first": "decks",
}
"""The option of each task that sets the memory length."""

FACTORS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Evaluated memory lengths, as multiples of the trained one."""
LONGEST = 5000
"""Maximum steps of an evaluated episode."""


def known_task(env: str | None, env_kwargs: dict[str, Any]) -> Task | None:
    """The built-in task with one row; None for any other env, and for options that it does not take."""
    if env is None or not task_name(env):
        return None
    try:
        return make_task(env, 1, **env_kwargs)
    except Exception:  # invalid options may also raise errors of torch and numpy
        return None


def levels(task: Task | None) -> dict[str, float | None]:
    """The best expected returns with memory ("best") and without ("memoryless"); None if unknown."""
    names = {"best": "max_return", "memoryless": "memoryless_return"}
    return {name: None if task is None else getattr(task, attribute) for name, attribute in names.items()}


def action_words(task: Task | None) -> list[str]:
    """Names of the actions; empty if there are none."""
    if task is None:
        return []
    if task.name == "delayed-cue":
        return [f"cue {i}" for i in range(int(task.action_space.n))]  # pyright: ignore[reportAttributeAccessIssue]
    return list(ACTION_WORDS.get(task.name, ()))


def memory_lengths(task: Task) -> tuple[str, int, list[int]]:
    """The option that sets the memory length, its trained value, and the values to evaluate.

    ("", 0, []) for a task without such an option.
    """
    option = LENGTH_OPTIONS.get(task.name)
    if option is None:
        return "", 0, []
    trained = int(getattr(task, option))
    lengths = sorted({max(1, round(trained * factor)) for factor in FACTORS} | {trained})
    return option, trained, lengths
