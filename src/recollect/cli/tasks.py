"""``recollect tasks [NAME]``: the built-in tasks."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from recollect.base.numbers import short_count
from recollect.cli import catalogue
from recollect.cli.catalogue import Lines, title, wrapped
from recollect.config.fields import fields_of, first_paragraph

if TYPE_CHECKING:
    from recollect.tasks import Task

SHOWN_STEPS = 14
"""Steps of the example episode that are shown; the rest is folded."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "List the built-in tasks: over how many steps an agent must remember, the best return\n"
        "with and without memory, and the settings of the preset.\n"
        "With NAME: the rules, the spaces, the options, and an episode in words."
    )
    parser.epilog = "examples:\n  recollect tasks\n  recollect tasks t-maze"
    parser.add_argument("name", nargs="?", metavar="NAME", help="a task, such as t-maze, or its Gymnasium id")


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Print the table, or one task."""
    from recollect.tasks import TASKS, task_class

    if args.name is not None:
        catalogue.show(_story(task_class(args.name)))
        return 0
    for task in TASKS.values():
        catalogue.show(_entry(task))
    catalogue.show((line, None) for line in _LEGEND.split("\n"))
    return 0


_PRESETS = """\
32 whole rollouts: 32 envs, and backpropagation through whole rollouts
open gates: gates that are initialised to remember for that long"""
_LEGEND = f"""\
*       the default size: recollect train NAME --task.size hard takes another
steps   number of steps over which an agent must remember
best    the best return; alone: the best without memory; ?: unknown
preset  {_PRESETS.replace(chr(10), chr(10) + " " * 8)}
recollect tasks NAME has the rules of a task."""


# The table -------------------------------------------------------------------------------------------


def _entry(task: type[Task]) -> Lines:
    """A task in a few lines."""
    yield f"{task.name}  ({task.id})", "bold"
    yield from wrapped(_headline(task), "  ", first="  ")
    yield from _sizes(task)
    yield "", None


def _headline(task: type[Task]) -> str:
    """The description of the task, without its name."""
    what = first_paragraph(task.Options).partition(": ")[2]
    return what[:1].upper() + what[1:]


def _sizes(task: type[Task]) -> Lines:
    """One line for each size, with its options."""
    sizes = {size: _made(task, size) for size in task.Options.sizes or [""]}
    options = {
        size: " ".join(f"{name} {value}" for name, value in task.Options.sizes.get(size, {}).items())
        for size in sizes
    }
    wide = max(20, *(len(text) + 2 for text in options.values()))
    yield f"  {'size':<8}{'options':<{wide}}{'steps':>5}{'best':>6}{'alone':>8}  preset", "dim"
    for size, made in sizes.items():
        mark = "*" if size == "easy" else ""
        best, alone = ("?" if x is None else f"{x:.3g}" for x in (made.max_return, made.memoryless_return))
        head = f"  {size + mark or '-':<8}{options[size] or 'none':<{wide}}"
        yield from catalogue.row(f"{head}{made.horizon:>5}{best:>6}{alone:>8}  ", _preset(task, size))


def _made(task: type[Task], size: str, **options: Any) -> Task:
    from recollect.tasks import make_task

    return make_task(task.name, 1, **({"size": size} if size else {}), **options)


def _preset(task: type[Task], size: str) -> str:
    """The settings of the preset, in words."""
    chosen = _chosen(task, size)
    words = []
    if "steps" in chosen:
        words.append(f"{short_count(chosen.pop('steps'))} steps")
    rows = chosen.pop("num_envs", None)
    if chosen.pop("recurrent_mode", None) == "full":
        words.append("whole rollouts" if rows is None else f"{rows} whole rollouts")
    elif rows is not None:
        words.append(f"{rows} envs")
    if "core" in chosen:
        del chosen["core"]
        words.append("open gates")
    words += [f"{name.replace('_', ' ')} {value}" for name, value in chosen.items()]
    return ", ".join(words) or "defaults"


def _chosen(task: type[Task], size: str) -> dict[str, Any]:
    from recollect.training.presets import preset

    return dict(preset(task.name, {"env_kwargs": {"size": size}} if size else {}))


# One task --------------------------------------------------------------------------------------------


def _story(task: type[Task]) -> Lines:
    """All about a task."""
    made = _made(task, "")
    yield f"{task.name}  ({task.id})", "bold"
    yield from wrapped(_headline(task))
    yield from title("Rules")
    for paragraph in list(_paragraphs(catalogue.docstring(task)))[:-1]:
        yield from wrapped(paragraph, "  " if paragraph.startswith("* ") else "")
    yield from title("Spaces")
    for name, space in (("observation", made.observation_space), ("action", made.action_space)):
        yield from wrapped(f"{name:<12}{' '.join(str(space).split())}", " " * 12)
    yield f"{'episode':<12}at most {made.max_episode_steps} steps", None
    yield from title("Sizes and options")
    yield from _sizes(task)
    if task.Options.sizes:
        yield from (("  " + line, None) for line in _PRESETS.splitlines())
        yield from catalogue.settings("task", fields_of(task.Options), "(by the size)")
    yield from title("An episode in words, with random actions")
    for line in _episode(made):
        yield from wrapped(line, " " * 10)
    yield from title("Train it")
    yield from _commands(task)


def _commands(task: type[Task]) -> Lines:
    yield f"  recollect train {task.name}", None
    sizes = list(task.Options.sizes)
    if sizes:
        yield f"  recollect train {task.name} --task.size {sizes[-1]}", None
        python = f'rc.train("{task.name}", env_kwargs={{"size": "{sizes[-1]}"}})'
    else:
        python = f'rc.train("{task.name}")'
    yield f"  python: {python}", None
    yield f'  anywhere else: gymnasium.make("{task.id}")', None


def _episode(task: Task, seed: int = 4) -> Iterator[str]:
    """Observation, action and reward of each step in words; equal steps in a row are folded."""
    *steps, ending = _steps(task, seed)
    shown: list[tuple[int, int, str]] = []  # first step, last step, words
    for t, words in enumerate(steps):
        if shown and shown[-1][2] == words:
            shown[-1] = (shown[-1][0], t, words)
        else:
            shown.append((t, t, words))
    half = SHOWN_STEPS // 2
    for at, (begin, end, words) in enumerate(shown):
        if len(shown) > SHOWN_STEPS and at == half:
            yield f"  ...     {len(shown) - SHOWN_STEPS} more like these"
        if len(shown) <= SHOWN_STEPS or at < half or at >= len(shown) - half:
            yield f"  {begin if begin == end else f'{begin}-{end}':<8}{words}"
    yield f"  {ending}"


def _steps(task: Task, seed: int) -> Iterator[str]:
    import numpy as np

    from recollect.base import spaces

    rng = np.random.default_rng(seed)
    obs, total = task.reset(seed), 0.0
    while True:
        seen = task.describe(obs[0].numpy())
        action = spaces.sample(task.action_space, 1, rng)
        step = task.step(action)
        total += float(step.reward[0])
        yield f"sees {seen}; does {_plain(action[0])}; reward {float(step.reward[0]):.3g}"
        if step.terminated[0] or step.truncated[0]:
            how = "terminates" if step.terminated[0] else "is truncated by the time limit"
            yield f"The episode {how}; its return is {total:.3g}."
            return
        obs = step.obs


def _plain(action: Any) -> str:
    values = action.reshape(-1).tolist()
    return ", ".join(f"{value:.3g}" for value in values)


def _paragraphs(text: str) -> Iterator[str]:
    """The paragraphs and bullets of a docstring, each in one line, with empty lines where it has them."""
    for block in text.split("\n\n"):
        bullets = block.replace("\n* ", "\0* ").split("\0")
        yield from (" ".join(bullet.split()) for bullet in bullets)
        yield ""
