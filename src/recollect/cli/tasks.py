"""``recollect tasks [NAME]``: the worlds that are built in."""

from __future__ import annotations

import argparse
import inspect
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recollect.tasks import Task

HELP = "the built-in memory tasks, and the rules of each"

WIDTH = 80
"""Longer lines are not worth more than they cost to read."""
SHOWN_STEPS = 14
"""Steps of the example episode that are shown; the rest is folded."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "List the built-in tasks: what must be remembered, over how many steps, what the\n"
        "best return is and what can be had without memory, and which settings suit it.\n"
        "With NAME: the rules, the spaces, the options, and an episode in words."
    )
    parser.epilog = "examples:\n  recollect tasks\n  recollect tasks t-maze"
    parser.add_argument("name", nargs="?", metavar="NAME", help="a task, such as t-maze, or its Gymnasium id")


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Print the table, or one task."""
    from rich.console import Console

    from recollect.tasks import TASKS, task_class

    console = Console(highlight=False, soft_wrap=True)
    width = min(console.width, WIDTH)

    def show(lines: Iterator[tuple[str, str | None]]) -> None:
        for line, style in lines:
            # Where the suits of cards cannot be shown, their names can.
            known = line.encode(console.encoding, "namereplace").decode(console.encoding)
            console.print(known, style=style, markup=False)

    if args.name is not None:
        show(_story(task_class(args.name), width))
        return 0
    for task in TASKS.values():
        show(_entry(task, width))
    console.print(_LEGEND, markup=False)
    return 0


_PRESETS = """\
32 whole rollouts: 32 envs, and gradients through whole rollouts
open gates: gates that start out remembering for so long"""
_LEGEND = f"""\
*       the default size: recollect train NAME --task.size hard takes another
steps   over how many of them something must be remembered
best    the best return; alone: the best without memory; ?: not known
preset  {_PRESETS.replace(chr(10), chr(10) + " " * 8)}
recollect tasks NAME has the rules of a task."""


# The table -------------------------------------------------------------------------------------------


def _entry(task: type[Task], width: int) -> Iterator[tuple[str, str | None]]:
    """A task in a few lines, with the style of each."""
    yield f"{task.name}  ({task.id})", "bold"
    yield from _wrapped(_headline(task), width, "  ")
    yield from _sizes(task, width)
    yield "", None


def _headline(task: type[Task]) -> str:
    """What the module says that the task is, without its name."""
    text = " ".join((inspect.getmodule(task).__doc__ or "").split("\n\n")[0].split())  # pyright: ignore
    _, _, what = text.partition(": ")
    return what[:1].upper() + what[1:]


def _sizes(task: type[Task], width: int) -> Iterator[tuple[str, str | None]]:
    """One line for each size: its options and what they lead to."""
    sizes = {size: _made(task, size) for size in _size_names(task) or [""]}
    wide = max(20, *(len(_options(task, made)) + 2 for made in sizes.values()))
    yield f"  {'size':<8}{'options':<{wide}}{'steps':>5}{'best':>6}{'alone':>8}  preset", "dim"
    for size, made in sizes.items():
        mark = "*" if size and size == _defaults(task)["size"] else ""
        options = _options(task, made)
        head = (
            f"  {size + mark or '-':<8}{options or 'none':<{wide}}{made.horizon:>5}"
            f"{_number(made.max_return):>6}{_number(made.memoryless_return):>8}  "
        )
        words = textwrap.wrap(_preset(task, size), max(width - len(head), 12))
        yield head + words[0], None
        for word in words[1:]:
            yield " " * len(head) + word, None


def _options(task: type[Task], made: Task) -> str:
    """Such as ``length 3 delay 10``."""
    return " ".join(f"{name} {getattr(made, name)}" for name in _defaults(task) if name != "size")


def _size_names(task: type[Task]) -> list[str]:
    return list(getattr(sys.modules[task.__module__], "SIZES", {}))


def _made(task: type[Task], size: str, **options: Any) -> Task:
    from recollect.tasks import make_task

    return make_task(task.name, 1, **({"size": size} if size else {}), **options)


def _defaults(task: type[Task]) -> dict[str, Any]:
    """The options and their defaults; None: as the size has it."""
    parameters = inspect.signature(task).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.3g}"


def _preset(task: type[Task], size: str) -> str:
    """The settings that suit it, in words."""
    chosen = _chosen(task, size)
    words = []
    if "steps" in chosen:
        words.append(f"{_count(chosen.pop('steps'))} steps")
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


def _count(number: int) -> str:
    for unit, letter in ((1_000_000, "m"), (1000, "k")):
        if number >= unit and number % unit == 0:
            return f"{number // unit}{letter}"
    return f"{number:,}"


# One task --------------------------------------------------------------------------------------------


def _story(task: type[Task], width: int) -> Iterator[tuple[str, str | None]]:
    """The whole story of a task."""
    made = _made(task, "")
    yield f"{task.name}  ({task.id})", "bold"
    yield from _wrapped(_headline(task), width)
    yield from _title("Rules")
    for paragraph in list(_paragraphs(inspect.cleandoc(task.__doc__ or "").replace("``", "'")))[:-1]:
        yield from _wrapped(paragraph, width, "  " if paragraph.startswith("* ") else "", keep=True)
    yield from _title("Spaces")
    for name, space in (("observation", made.observation_space), ("action", made.action_space)):
        yield from _wrapped(f"{name:<12}{' '.join(str(space).split())}", width, " " * 12, keep=True)
    yield f"{'episode':<12}at most {made.max_episode_steps} steps", None
    yield from _title("Sizes and options")
    yield from _sizes(task, width)
    yield from (("  " + line, None) for line in _PRESETS.splitlines() if _size_names(task))
    for name, default in _defaults(task).items():
        said = f"{default!r} is the default" if name == "size" else "as the size has it, if not given"
        yield f"  --task.{name:<10} {said}", None
    yield from _title("An episode in words, with random actions")
    for line in _episode(made):
        yield from _wrapped(line, width, " " * 10, keep=True)
    yield from _title("Train it")
    yield from _commands(task)


def _title(text: str) -> Iterator[tuple[str, str | None]]:
    yield "", None
    yield text, "bold"


def _commands(task: type[Task]) -> Iterator[tuple[str, str | None]]:
    yield f"  recollect train {task.name}", None
    sizes = _size_names(task)
    if sizes:
        yield f"  recollect train {task.name} --task.size {sizes[-1]}", None
        python = f'rc.train("{task.name}", env_kwargs={{"size": "{sizes[-1]}"}})'
    else:
        python = f'rc.train("{task.name}")'
    yield f"  python: {python}", None
    yield f'  anywhere else: gymnasium.make("{task.id}")', None


def _episode(task: Task, seed: int = 4) -> Iterator[str]:
    """What is seen, done and earned, step by step; equal steps in a row are folded."""
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
            how = "terminates" if step.terminated[0] else "is cut by the time limit"
            yield f"The episode {how}; its return is {total:.3g}."
            return
        obs = step.obs


def _plain(action: Any) -> str:
    values = action.reshape(-1).tolist()
    return ", ".join(f"{value:.3g}" for value in values)


def _wrapped(
    text: str, width: int, indent: str = "", *, keep: bool = False
) -> Iterator[tuple[str, str | None]]:
    """Lines of at most ``width``, indented; ``keep``: but for the first one."""
    first = "" if keep else indent
    for line in textwrap.wrap(text, width, initial_indent=first, subsequent_indent=indent) or [""]:
        yield line, None


def _paragraphs(text: str) -> Iterator[str]:
    """The paragraphs and bullets of a docstring, each in one line, with empty lines where it has them."""
    for block in text.split("\n\n"):
        bullets = block.replace("\n* ", "\0* ").split("\0")
        yield from (" ".join(bullet.split()) for bullet in bullets)
        yield ""
