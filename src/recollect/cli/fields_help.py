"""Help for the config flags: examples first, then the most used flags, then all by topic.

Made from the source of the configs (``recollect.config.field_docs``): nothing heavy is imported.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from recollect.cli.entries import Entry, chosen_parts, entries, metavar
from recollect.cli.help_texts import CHECKS, ENV, EXAMPLES, MEMORY, MOST_USED, RUNTIME
from recollect.config import field_docs
from recollect.errors import ConfigError, nearest

if TYPE_CHECKING:
    from rich.console import Console

_FLAG_WIDTH = 29
_MOVES = ("_schedule", "_end", "_warmup")


def topics() -> dict[str, str]:
    """What ``--help`` takes, and what each is about."""
    cores = ", ".join(field_docs.cores())
    return {
        "run": "steps, seed, evaluations, checkpoints, when to stop",
        "env": "the world, how many of it, its options",
        "runtime": "where actors, envs and learners live: processes, Ray",
        "network": "encoder, head, normalisation",
        "memory": f"the core ({cores}) and how it is trained",
        "algo": "the algorithm, ppo or impala, and how it learns",
        "schedules": "what moves over the run",
        "checks": "what watches over the run",
        "names": "config files, and names of other libraries",
        "all": "everything",
    }


def groups(flags: Sequence[Entry] | None = None) -> dict[str, list[Entry]]:
    """Flags (all of them, if not given) by topic. What has no place of its own is with its config's rest."""
    found: dict[str, list[Entry]] = {topic: [] for topic in topics() if topic not in ("names", "all")}
    for entry in entries() if flags is None else flags:
        found[_topic(entry.path)].append(entry)
    return found


def render_help(
    console: Console,
    asked: Sequence[str] = (),
    options: Sequence[tuple[str, str]] = (),
    *,
    command: str = "recollect train",
    opening: str | None = None,
    chosen: Collection[str] = (),
    refused: Collection[str] = (),
) -> None:
    """Print help: the first page, or that of topics, cores, tasks and flags by name.

    Args:
        console: where to.
        asked: the topics; none: the first page.
        options: flags of the command that are no settings, and what they do (``own_options``).
        command: whose help it is.
        opening: what the first page begins with, in place of the examples of ``recollect train``.
        chosen: the cores and algorithms to show, in place of all.
        refused: settings that the command does not take.
    """
    flags = [entry for entry in entries(chosen) if entry.path not in refused]
    if not asked:
        _first_page(console, options, command, opening, flags)
    for number, topic in enumerate(asked):
        if number:
            console.print()
        _page(console, topic, flags)
        if topic == "all" and options:
            console.print()
            _options(console, options)


def own_options(parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    """The arguments of a command itself, for ``render_help``."""
    found = []
    for action in parser._actions:
        if action.dest == "help" or action.help is argparse.SUPPRESS:
            continue
        name = action.option_strings[-1] if action.option_strings else action.dest.upper()
        takes_value = action.option_strings and action.nargs != 0
        found.append((f"{name} {action.dest.upper()}" if takes_value else name, action.help or ""))
    return found


def wants_help(argv: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """The topics after ``--help`` (none: the first page) and the parts that are chosen before it.

    None if help was not asked for.
    """
    for at, word in enumerate(argv):
        if word == "--help-all":
            return ["all"], chosen_parts(argv[:at])
        if word in ("-h", "--help"):
            topics = [topic for topic in argv[at + 1 :] if topic not in ("-h", "--help")]
            return ["all"] if "--help-all" in topics else topics, chosen_parts(argv[:at])
    return None


# Pages ---------------------------------------------------------------------------------------------------


def _first_page(
    console: Console,
    options: Sequence[tuple[str, str]],
    command: str,
    opening: str | None,
    flags: Sequence[Entry],
) -> None:
    if opening is None:
        _head(console, "Examples")
        for example, meaning in EXAMPLES:
            _print(console, example, indent=2, style="bold")
            _print(console, meaning, indent=6)
    else:
        console.print(opening.rstrip(), highlight=False, markup=False, soft_wrap=True)
    console.print()
    _head(console, "The flags that are used most")
    by_path = {entry.path: entry for entry in flags}
    cores = ", ".join(field_docs.cores())
    rows = [
        (by_path[path].flag, words.format(cores=cores), by_path[path].default)
        for path, words in MOST_USED.items()
        if path in by_path
    ]
    _rows(console, rows)
    _print(console, "Numbers may be written 300k, 1m, 3e5 or 300_000.", indent=2)
    console.print()
    if options:
        _options(console, options)
        console.print()
    _head(console, f"More: {command} --help TOPIC")
    _rows(console, [(topic, meaning, "") for topic, meaning in topics().items()])
    _print(console, "Also a core, a task or a flag: --help lstm, --help t-maze, --help clip.", indent=2)


def _options(console: Console, options: Sequence[tuple[str, str]]) -> None:
    _head(console, "Of the command itself")
    _rows(console, [(flag, meaning, "") for flag, meaning in options])


def _page(console: Console, topic: str, flags: Sequence[Entry]) -> None:
    name = topic.lstrip("-").replace("-", "_")
    if topic == "all":
        _all(console, flags)
    elif topic == "names":
        _names(console)
    elif topic in groups(flags):
        _group(console, topic, flags)
    elif topic in field_docs.cores():
        _core(console, topic)
    elif topic in field_docs.ALGOS:
        _algo(console, topic)
    elif topic in field_docs.tasks():
        _task(console, topic)
    else:
        ours = field_docs.aliases().get(name, name)
        found = [entry for entry in flags if ours in (entry.path, entry.path.rpartition(".")[2])]
        if not found:
            names = [entry.path.replace("_", "-") for entry in flags]
            known = [*topics(), *field_docs.cores(), *field_docs.tasks(), *names]
            raise ConfigError(
                f"there is no help about {topic!r}{nearest(topic.lstrip('-'), known)}; the topics are "
                f"{', '.join(topics())}, every core, every task and every flag"
            )
        if ours != name:
            _print(console, f"{topic} is called --{ours.replace('_', '-')} here.")
        _table(console, found)


def _all(console: Console, flags: Sequence[Entry]) -> None:
    for topic in groups(flags):
        _group(console, topic, flags)
        console.print()
    for task in field_docs.tasks():
        _task(console, task)
        console.print()
    _names(console)


def _group(console: Console, topic: str, flags: Sequence[Entry]) -> None:
    _head(console, f"{topic}: {topics()[topic]}")
    _table(console, groups(flags)[topic])
    if topic == "memory":
        shown = {name for entry in flags if entry.path.startswith("core.") for name, _ in entry.owned}
        for name, core in field_docs.cores().items():
            if name in (shown or ("none",)):
                fields = ", ".join(field.name.replace("_", "-") for field in core.fields)
                _print(console, f"--core {name} has: {fields or 'no fields'}", indent=2)
        _print(console, "Those of one, with its words and defaults: --help lstm", indent=2)
    if topic == "algo":
        _print(console, "Those of one, with its words and defaults: --help ppo, --help impala", indent=2)
    if topic == "env":
        _print(console, "The options of a task: recollect train --help TASK", indent=2)


def _core(console: Console, name: str) -> None:
    _head(console, f"--core {name}")
    fields = field_docs.cores()[name].fields
    if fields:
        _table(console, [Entry(f"core.{field.name}", field) for field in fields])
    else:
        _print(console, "It has no fields.", indent=2)


def _algo(console: Console, name: str) -> None:
    _head(console, f"--algo {name}")
    _table(console, [Entry(field.name, field) for field in field_docs.config_fields(name)])


def _task(console: Console, name: str) -> None:
    task = field_docs.tasks()[name]
    _head(console, f"recollect train {name}")
    _print(console, task.doc, indent=2)
    rows = []
    for field in task.fields:
        is_by_size = field.default == "None" and task.sizes
        words = "Set by the size, if not given." if is_by_size else ""
        if field.name == "size":
            words = f"{task.sizes}."
        flag = f"--task.{field.name.replace('_', '-')} {metavar(field)}"
        rows.append((flag, words, "" if is_by_size else field.default.strip("\"'")))
    if rows:
        _rows(console, rows)
    else:
        _print(console, "It has no options.", indent=2)


def _names(console: Console) -> None:
    _head(console, "Config files and presets")
    files = (
        "TOML or YAML with the same names; flags go on top. Of several files later ones win. Every run "
        "writes its own config.yaml."
    )
    preset = "Whether a built-in task starts from settings that suit it."
    _rows(console, [("--config FILE", files, ""), ("--[no-]preset", preset, "on")])
    console.print()
    _head(console, "Names of Stable-Baselines3 and CleanRL, and ours")
    as_flag = [f"--{name.replace('_', '-')}" for pair in field_docs.aliases().items() for name in pair]
    _rows(console, [(theirs, ours, "") for theirs, ours in zip(as_flag[::2], as_flag[1::2])])


# Lines ---------------------------------------------------------------------------------------------------


def _head(console: Console, text: str) -> None:
    _print(console, text, style="bold cyan")


def _table(console: Console, shown: Sequence[Entry]) -> None:
    _rows(console, [(entry.flag, entry.words, entry.default) for entry in shown])


def _rows(console: Console, rows: Sequence[tuple[str, str, str]]) -> None:
    """Flag, words and default in two columns; a flag that is too wide has a line of its own."""
    from rich.text import Text

    column = min(max(len(flag) for flag, _, _ in rows), _FLAG_WIDTH) + 4
    for flag, meaning, default in rows:
        words = f"{meaning} [{default}]" if default else meaning
        lines = textwrap.wrap(words, max(console.width - column - 1, 20), break_on_hyphens=False) or [""]
        if len(flag) > _FLAG_WIDTH:
            lines.insert(0, "")
        for number, line in enumerate(lines):
            start = f"  {flag}" if number == 0 else ""
            space = " " * (column - len(start)) if line else ""
            console.print(Text.assemble((start, "bold"), space, line), soft_wrap=True)


def _print(console: Console, text: str, indent: int = 0, style: str = "") -> None:
    """Without rich's markup, which would take [no-] for a tag; a long line keeps its indent."""
    from rich.text import Text

    space = " " * indent
    for line in textwrap.wrap(text, console.width - 1, initial_indent=space, subsequent_indent=space):
        console.print(Text(line, style=style), soft_wrap=True)


def _topic(path: str) -> str:
    section = path.partition(".")[0]
    if path in MEMORY or section == "core":
        return "memory"
    if path in ENV:
        return "env"
    if path in RUNTIME:
        return "runtime"
    if path in ("policy", "algo"):
        return {"policy": "network"}.get(path, path)
    if path in CHECKS:
        return "checks"
    if path.endswith(_MOVES):
        return "schedules"
    if any(path == field.name for field in field_docs.config_fields("")):
        return "run"
    return "algo" if any(path == field.name for field in field_docs.algo_fields()) else "network"
