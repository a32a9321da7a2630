"""Help for the config flags: examples first, then the most used flags, then all by topic.

Cores and algorithms share names of fields and give them different defaults; an entry holds all of them, so
help never shows the default of one core as that of another.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_origin

from rich.console import Console
from rich.text import Text

from recollect.cli.help_texts import DEFAULTS, EXAMPLES, MEMBERS, MOST_USED, TOPICS, WORDS
from recollect.config.algo_choice import ALGOS
from recollect.config.convert import options
from recollect.config.core_specs import known
from recollect.config.fields import Field, fields_of, first_paragraph
from recollect.config.policy import POLICIES
from recollect.config.settings import CLASSES
from recollect.config.tasks import TASKS
from recollect.config.train import ALIASES, homes
from recollect.errors import ConfigError, nearest

_FLAG_WIDTH = 29


@dataclass(frozen=True, slots=True)
class Entry:
    """A flag with its help."""

    path: str
    field: Field
    owned: tuple[tuple[str, Field], ...] = ()
    """The cores or algorithms that have the field, each with its own default and docstring."""

    @property
    def flag(self) -> str:
        """The flag with a placeholder for its value."""
        name = self.path.replace("_", "-")
        if self.path == "env_kwargs":
            return "--task.NAME VALUE"
        return f"--[no-]{name}" if self.field.is_switch else f"--{name} {metavar(self.field)}"

    @property
    def words(self) -> str:
        """The docstring, with the choices if it does not name them."""
        if self.path in WORDS:
            return _filled(WORDS[self.path])
        text = self.field.doc.replace("None:", "none:")
        if any(choice not in text for choice in self.field.choices):
            text = f"{text} One of {', '.join(self.field.choices)}."
        if any(field.doc != self.field.doc for _, field in self.owned):
            text = f"{text} (As {self.owned[0][0]} has it; others: --help NAME.)"
        return text

    @property
    def default(self) -> str:
        """The default as a flag takes it, with its owners where they differ; empty if there is none."""
        if self.path in DEFAULTS:
            return DEFAULTS[self.path]
        owners: dict[str, list[str]] = {}
        for name, field in self.owned or (("", self.field),):
            owners.setdefault(written(field.default), []).append(name)
        if len(owners) == 1:
            return next(iter(owners))
        return "; ".join(f"{', '.join(names)}: {text}" for text, names in owners.items())


def written(value: Any) -> str:
    """A value as a flag takes it."""
    if isinstance(value, tuple | dict):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


def entries(chosen: Collection[str] = ()) -> list[Entry]:
    """Every flag once.

    Args:
        chosen: cores and algorithms; all others of their kind are left out.
    """
    run, network = fields_of(CLASSES[""]), fields_of(CLASSES["policy"])
    found = [Entry(field.name, field) for field in (*run, *network) if field.name != "head"]
    found += _shared({name: fields_of(kind) for name, kind in _only(ALGOS, chosen).items()}, "")
    cores = {name: fields_of(make()) for name, make in _only(known, chosen).items()}
    found += _shared(dict(sorted(cores.items(), key=lambda item: -len(item[1]))), "core.")
    for section in ("encoder", "head"):
        found += [Entry(f"{section}.{field.name}", field) for field in fields_of(CLASSES[section])]
    return found


def _only(parts: Mapping[str, Callable[[], Any]], chosen: Collection[str]) -> Mapping[str, Callable[[], Any]]:
    return {name: part for name, part in parts.items() if name in chosen} or parts


def _shared(parts: dict[str, list[Field]], prefix: str) -> list[Entry]:
    """The fields of all parts, each once, with type and docstring of the first part that has it."""
    owned: dict[str, list[tuple[str, Field]]] = {}
    for part, fields in parts.items():
        for field in fields:
            owned.setdefault(field.name, []).append((part, field))
    return [Entry(f"{prefix}{name}", found[0][1], tuple(found)) for name, found in owned.items()]


def metavar(field: Field) -> str:
    """The placeholder for a flag's value."""
    kinds = options(field.hint)
    if field.is_list:
        return "A,B"
    if any(get_origin(kind) is Literal or kind is Any for kind in kinds):
        return "NAME"
    words = {int: "N", float: "X", bool: "BOOL", str: "TEXT"}
    return next((word for kind, word in words.items() if kind in kinds), "NAME")


def groups(flags: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Flags by topic."""
    found: dict[str, list[Entry]] = {topic: [] for topic in TOPICS if topic not in ("names", "all")}
    for entry in flags:
        found[_topic(entry.path)].append(entry)
    return found


def _topic(path: str) -> str:
    section = path.partition(".")[0]
    for topic, members in MEMBERS.items():
        if path in members:
            return topic
    if section in ("core", "encoder", "head"):
        return "memory" if section == "core" else "network"
    if path.endswith(("_schedule", "_end", "_warmup")):
        return "schedules"
    return {"": "run", "policy": "network", "algo": "algo"}[homes()[path]]


def _filled(text: str) -> str:
    return text.format(algos=" or ".join(ALGOS), cores=", ".join(known), policies=", ".join(POLICIES))


# Arguments -----------------------------------------------------------------------------------------------


def wants_help(argv: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """The topics after ``--help`` (none: the first page) and the parts chosen before it; None without it."""
    for at, word in enumerate(argv):
        if word == "--help-all":
            return ["all"], chosen_parts(argv[:at])
        if word in ("-h", "--help"):
            topics = [topic for topic in argv[at + 1 :] if topic not in ("-h", "--help")]
            return ["all"] if "--help-all" in topics else topics, chosen_parts(argv[:at])
    return None


def chosen_parts(argv: Sequence[str]) -> list[str]:
    """The cores and algorithms that a command line names; a sweep may list several."""
    names = {"--core": tuple(known), "--algo": tuple(ALGOS)}
    found: list[str] = []
    for word, following in zip(argv, [*argv[1:], ""]):
        flag, equals, value = word.partition("=")
        for name in (value if equals else following).split(",") if flag in names else ():
            if name not in names[flag]:
                raise ConfigError(f"{flag} {name}: there is none of this name{nearest(name, names[flag])}")
            found.append(name)
    return found


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


# Pages ---------------------------------------------------------------------------------------------------


def render_help(
    console: Console,
    asked: Sequence[str] = (),
    own: Sequence[tuple[str, str]] = (),
    *,
    command: str = "recollect train",
    opening: str | None = None,
    chosen: Collection[str] = (),
    refused: Collection[str] = (),
) -> None:
    """Print help: the first page, or that of topics, cores, tasks and flags by name.

    Args:
        console: where to print.
        asked: the topics; none: the first page.
        own: flags of the command that are no settings, with their help (``own_options``).
        command: the command.
        opening: the beginning of the first page, in place of the examples of ``recollect train``.
        chosen: the cores and algorithms to show, in place of all.
        refused: settings that the command does not accept.
    """
    page = _Page(console, [entry for entry in entries(chosen) if entry.path not in refused])
    if not asked:
        page.first(own, command, opening)
    for number, topic in enumerate(asked):
        if number:
            console.print()
        page.topic(topic)
        if topic == "all" and own:
            page.own(own)


@dataclass(frozen=True, slots=True)
class _Page:
    console: Console
    flags: list[Entry]

    def first(self, own: Sequence[tuple[str, str]], command: str, opening: str | None) -> None:
        if opening is None:
            self.head("Examples")
            for example, meaning in EXAMPLES:
                self.print(example, indent=2, style="bold")
                self.print(meaning, indent=6)
        else:
            self.console.print(opening.rstrip(), highlight=False, markup=False, soft_wrap=True)
        self.head("\nThe most used flags")
        by_path = {entry.path: entry for entry in self.flags}
        shown = [(by_path[path], _filled(words)) for path, words in MOST_USED.items() if path in by_path]
        self.rows([(entry.flag, words, entry.default) for entry, words in shown])
        self.print("Numbers may be written 300k, 1m, 3e5 or 300_000.", indent=2)
        if own:
            self.own(own)
        self.head(f"\nMore: {command} --help TOPIC")
        self.rows([(topic, _filled(meaning), "") for topic, meaning in TOPICS.items()])
        self.print("Also a core, a task or a flag: --help lstm, --help t-maze, --help clip.", indent=2)

    def own(self, own: Sequence[tuple[str, str]]) -> None:
        self.head("\nOf the command itself")
        self.rows([(flag, meaning, "") for flag, meaning in own])

    def topic(self, topic: str) -> None:
        if topic == "all":
            for one in (*groups(self.flags), *TASKS, "names"):
                self.topic(one)
                self.console.print()
        elif topic == "names":
            self.names()
        elif topic in TOPICS:
            self.group(topic)
        elif topic in known:
            self.head(f"--core {topic}")
            self.table([Entry(f"core.{field.name}", field) for field in fields_of(known[topic]())])
        elif topic in ALGOS:
            self.head(f"--algo {topic}")
            self.table([Entry(field.name, field) for field in fields_of(ALGOS[topic])])
        elif topic in TASKS:
            self.task(topic)
        else:
            self.flag(topic)

    def flag(self, topic: str) -> None:
        name = topic.lstrip("-").replace("-", "_")
        ours = ALIASES.get(name, name)
        found = [entry for entry in self.flags if ours in (entry.path, entry.path.rpartition(".")[2])]
        if not found:
            names = [*TOPICS, *known, *TASKS, *(entry.path.replace("_", "-") for entry in self.flags)]
            raise ConfigError(
                f"there is no help about {topic!r}{nearest(topic.lstrip('-'), names)}; the topics are "
                f"{', '.join(TOPICS)}, every core, every task and every flag"
            )
        if ours != name:
            self.print(f"{topic} is called --{ours.replace('_', '-')} here.")
        self.table(found)

    def group(self, topic: str) -> None:
        self.head(f"{topic}: {_filled(TOPICS[topic])}")
        self.table(groups(self.flags)[topic])
        if topic == "memory":
            shown = {
                name for entry in self.flags if entry.path.startswith("core.") for name, _ in entry.owned
            }
            for name in [name for name in known if name in (shown or ("none",))]:
                fields = ", ".join(f.name.replace("_", "-") for f in fields_of(known[name]()))
                self.print(f"--core {name} has: {fields or 'no settings'}", indent=2)
            self.print("One core with its own help and defaults: --help lstm", indent=2)
        if topic == "algo":
            self.print("One algorithm with its own help and defaults: --help ppo, --help impala", indent=2)
        if topic == "env":
            self.print("The options of a task: recollect train --help TASK", indent=2)

    def task(self, name: str) -> None:
        task = TASKS[name]
        self.head(f"recollect train {name}")
        self.print(first_paragraph(task), indent=2)
        rows = []
        for field in fields_of(task):
            words = f"{task.sizes_text()}." if field.name == "size" else f"{field.doc} Default: by the size."
            default = written(field.default) if field.default is not None else ""
            rows.append((f"--task.{field.name.replace('_', '-')} {metavar(field)}", words, default))
        self.rows(rows)

    def names(self) -> None:
        self.head("Config files and presets")
        files = (
            "TOML or YAML with the same names; flags go on top. Of several files later ones win. Every run "
            "writes its own config.yaml."
        )
        preset = "Whether a built-in task starts from settings that suit it."
        self.rows([("--config FILE", files, ""), ("--[no-]preset", preset, "on")])
        self.head("\nNames of Stable-Baselines3 and CleanRL, and ours")
        pairs = [[f"--{name.replace('_', '-')}" for name in pair] for pair in ALIASES.items()]
        self.rows([(theirs, ours, "") for theirs, ours in pairs])

    def table(self, shown: Sequence[Entry]) -> None:
        self.rows([(entry.flag, entry.words, entry.default) for entry in shown])

    def rows(self, rows: Sequence[tuple[str, str, str]]) -> None:
        """Flag, words and default in two columns; a flag that is too wide has its own line."""
        if not rows:
            self.print("It has no settings.", indent=2)
            return
        column = min(max(len(flag) for flag, _, _ in rows), _FLAG_WIDTH) + 4
        for flag, meaning, default in rows:
            words = f"{meaning} [{default}]" if default else meaning
            width = max(self.console.width - column - 1, 20)
            lines = textwrap.wrap(words, width, break_on_hyphens=False) or [""]
            if len(flag) > _FLAG_WIDTH:
                lines.insert(0, "")
            for number, line in enumerate(lines):
                start = f"  {flag}" if number == 0 else ""
                space = " " * (column - len(start)) if line else ""
                self.console.print(Text.assemble((start, "bold"), space, line), soft_wrap=True)

    def head(self, text: str) -> None:
        """A title; with a line break in front after an empty line."""
        if text.startswith("\n"):
            self.console.print()
        self.print(text.strip(), style="bold cyan")

    def print(self, text: str, indent: int = 0, style: str = "") -> None:
        """Without rich's markup, which would read [no-] as a tag; wrapped lines keep the indent."""
        space = " " * indent
        for line in textwrap.wrap(
            text, self.console.width - 1, initial_indent=space, subsequent_indent=space
        ):
            self.console.print(Text(line, style=style), soft_wrap=True)
