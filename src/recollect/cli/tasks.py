"""``recollect tasks [NAME]``: the built-in tasks."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from recollect.base.formatting import digits, short_count
from recollect.cli.help import task_rows
from recollect.cli.help_page import Page
from recollect.config.fields import first_paragraph

if TYPE_CHECKING:
    from torch import Tensor

    from recollect.tasks import Task

LONGEST_OPTIONS = 40
"""Characters of a size's options that fit into the table; longer ones are printed below the line."""
SHOWN_STEPS = 14
"""Steps of the example episode that are shown; the rest is folded."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "List the built-in tasks: the number of steps over which an agent must remember, the best return "
        "with and without memory, and the settings of the preset. With NAME: the rules, the spaces, the "
        "options, and an episode in words."
    )
    parser.epilog = "examples:\n  recollect tasks\n  recollect tasks t-maze"
    parser.add_argument("name", nargs="?", metavar="NAME", help="a task, such as t-maze, or its Gymnasium id")


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Print the table, or one task."""
    from recollect.tasks import TASKS, task_class

    page = Page.readable()
    if args.name is not None:
        _print_task(page, task_class(args.name))
        return 0
    for task in TASKS.values():
        page.line(f"{task.name}  ({task.id})", style="bold")
        page.print(_headline(task), indent=2)
        _print_sizes(page, task)
        page.line()
    page.line(_LEGEND)
    return 0


_PRESETS = """\
32 whole rollouts: 32 envs, and backpropagation through whole rollouts
open gates: gates that are initialised to remember for that long"""
_LEGEND = f"""\
*       the default size; for another: recollect train NAME --task.size hard
steps   number of steps over which an agent must remember
best    the best return; alone: the best without memory; ?: unknown
preset  {_PRESETS.replace(chr(10), chr(10) + " " * 8)}
The rules of a task: recollect tasks NAME"""


def _headline(task: type[Task]) -> str:
    """The description of the task, without its name."""
    text = first_paragraph(task.Options).partition(": ")[2]
    return text[:1].upper() + text[1:]


def _print_sizes(page: Page, task: type[Task]) -> None:
    """One line for each size, with its options."""
    sizes = task.Options.sizes or {"": {}}
    options = {size: " ".join(f"{name} {value}" for name, value in sizes[size].items()) for size in sizes}
    is_long = max(map(len, options.values())) > LONGEST_OPTIONS
    wide = 20 if is_long else max(20, *(len(text) + 2 for text in options.values()))
    page.line(f"  {'size':<8}{'options':<{wide}}{'steps':>5}{'best':>6}{'alone':>8}  preset", style="dim")
    for size, text in options.items():
        made = _made(task, size)
        mark = "*" if size and size == getattr(task.Options(), "size", "") else ""
        best, alone = ("?" if x is None else digits(x) for x in (made.max_return, made.memoryless_return))
        shown = "(below)" if is_long else text or "none"
        head = f"  {size + mark or '-':<8}{shown:<{wide}}{made.horizon:>5}{best:>6}{alone:>8}  "
        page.row(head, _preset(task, size))
        if is_long:
            page.print(text, indent=10)


def _made(task: type[Task], size: str) -> Task:
    from recollect.tasks import make_task

    return make_task(task.name, 1, **({"size": size} if size else {}))


def _preset(task: type[Task], size: str) -> str:
    """The settings of the preset, in words."""
    from recollect.training.presets import preset

    chosen = dict(preset(task.name, {"env_kwargs": {"size": size}} if size else {}))
    words = []
    if "steps" in chosen:
        words.append(f"{short_count(chosen.pop('steps'))} steps")
    rows = chosen.pop("num_envs", None)
    if chosen.pop("recurrent_mode", None) == "full":
        words.append("whole rollouts" if rows is None else f"{rows} whole rollouts")
    elif rows is not None:
        words.append(f"{rows} envs")
    if chosen.pop("core", None) is not None:
        words.append("open gates")
    words += [f"{name.replace('_', ' ')} {value}" for name, value in chosen.items()]
    return ", ".join(words) or "defaults"


def _print_task(page: Page, task: type[Task]) -> None:
    made = _made(task, "")
    page.line(f"{task.name}  ({task.id})", style="bold")
    page.print(_headline(task))
    page.title("\nRules")
    for paragraph in _paragraphs(inspect.cleandoc(task.__doc__ or "").replace("``", "'")):
        page.print(paragraph, hanging=2 if paragraph.startswith("* ") else 0)
    page.title("Spaces")
    for name, space in (("observation", made.observation_space), ("action", made.action_space)):
        page.print(f"{name:<12}{' '.join(str(space).split())}", hanging=12)
    page.line(f"{'episode':<12}at most {made.max_episode_steps} steps")
    page.title("\nSizes and options")
    _print_sizes(page, task)
    sizes = list(task.Options.sizes)
    if sizes:
        page.line("  " + _PRESETS.replace("\n", "\n  "))
        page.flags(task_rows(task.Options))
    who = f", as {made.agent_names[0]} sees it" if task.Options.has_agents else ""
    page.title(f"\nAn episode in words{who}, with random actions")
    for line in _episode(made):
        page.print(line, hanging=10)
    page.title("\nTrain it")
    page.line(f"  recollect train {task.name}")
    if sizes:
        page.line(f"  recollect train {task.name} --task.size {sizes[-1]}")
    options = f', env_kwargs={{"size": "{sizes[-1]}"}}' if sizes else ""
    page.line(f'  python: rc.train("{task.name}"{options})')
    if task.Options.has_agents:
        page.line(f"  recollect train {task.name} --policies {_policies(made)}")
        page.line(f'  anywhere else: recollect.tasks.pettingzoo_envs.parallel_env("{task.name}")')
    else:
        page.line(f'  anywhere else: gymnasium.make("{task.id}")')


def _policies(task: Task) -> str:
    """The groups of a task of several agents: a policy for each side, or for each agent if there are none."""
    sides = dict.fromkeys(name.rpartition("_")[0] for name in task.agent_names)
    return "independent" if len(sides) == 1 else f"'{json.dumps({side: f'{side}_*' for side in sides})}'"


def _episode(task: Task, seed: int = 4) -> Iterator[str]:
    """Observation, action and reward of each step in words; equal steps in a row are folded."""
    *steps, ending = _steps(task, seed)
    numbered = ([t for t, _ in equal] for _, equal in groupby(enumerate(steps), key=lambda step: step[1]))
    shown = [(f"{at[0]}" if len(at) == 1 else f"{at[0]}-{at[-1]}", steps[at[0]]) for at in numbered]
    lines = [f"  {number:<8}{words}" for number, words in shown]
    if len(lines) > SHOWN_STEPS:
        half = SHOWN_STEPS // 2
        lines[half:-half] = [f"  ...     {len(lines) - SHOWN_STEPS} more like these"]
    yield from (*lines, f"  {ending}")


def _steps(task: Task, seed: int) -> Iterator[str]:
    import numpy as np

    from recollect.base import spaces, tree

    rng = np.random.default_rng(seed)
    obs, total = task.reset(seed), 0.0
    while True:
        seen = task.describe_row(obs)
        action = spaces.sample(task.action_space, task.agents, rng)
        step = task.step(action)
        total += float(step.reward[0])
        does = ", ".join(_numbers(*named) for named in tree.named_leaves(tree.index(action, 0)))
        yield f"sees {seen}; does {does}; reward {digits(float(step.reward[0]))}"
        if step.terminated[0] or step.truncated[0]:
            how = "terminates" if step.terminated[0] else "is truncated by the time limit"
            yield f"The episode {how}; its return is {digits(total)}."
            return
        obs = step.obs


def _numbers(part: str, values: Tensor) -> str:
    """A part of an action: its name, if it has one, and its numbers."""
    numbers = [digits(value) for value in values.reshape(-1).tolist()]
    return f"{part} {' '.join(numbers)}" if part else ", ".join(numbers)


def _paragraphs(text: str) -> Iterator[str]:
    """The paragraphs and bullets of a docstring, each on one line; an empty line after each block."""
    for block in text.split("\n\n"):
        bullets = block.replace("\n* ", "\0* ").split("\0")
        yield from (" ".join(bullet.split()) for bullet in bullets)
        yield ""
