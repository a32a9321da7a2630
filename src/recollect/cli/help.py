"""Help for the config flags: examples first, then the most used flags, then all by topic.

Cores and algorithms share names of fields and give them different defaults; an entry holds all of them, so
help never shows the default of one core as that of another.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from recollect.base.parts import IF_OWN, PARTS, own_parts
from recollect.cli import help_texts as texts
from recollect.cli.help_page import Page
from recollect.config.algo_choice import ALGOS
from recollect.config.convert import options
from recollect.config.core_choice import known
from recollect.config.fields import Field, fields_of, first_paragraph
from recollect.config.league import LEAGUE, LeagueConfig
from recollect.config.policy import ENCODERS, HEADS, POLICIES
from recollect.config.settings import CLASSES
from recollect.config.tasks import TASKS, TaskOptions
from recollect.config.train import ALIASES, homes
from recollect.errors import ConfigError, nearest

Row = tuple[str, str, str]
"""A flag, its help and its default."""


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
        if self.path == "vs_kwargs":
            return "--vs.NAME VALUE"
        if self.path == "imports":
            return "--import MODULE, --imports A,B"
        return f"--[no-]{name}" if self.field.is_switch else f"--{name} {metavar(self.field)}"

    @property
    def words(self) -> str:
        """The docstring, with the choices if it does not name them."""
        if self.path in texts.WORDS:
            return _filled(texts.WORDS[self.path])
        text = self.field.doc.replace("None:", "none:")
        if any(choice not in text for choice in self.field.choices):
            text = f"{text} One of {', '.join(self.field.choices)}."
        if any(field.doc != self.field.doc for _, field in self.owned):
            text = f"{text} (As {self.owned[0][0]} has it; others: --help NAME.)"
        return text

    @property
    def default(self) -> str:
        """The default as a flag takes it, with its owners where they differ; empty if there is none."""
        if self.path in texts.DEFAULTS:
            return texts.DEFAULTS[self.path]
        owners: dict[str, list[str]] = {}
        for name, field in self.owned or (("", self.field),):
            owners.setdefault(written(field.default), []).append(name)
        if len(owners) == 1:
            return next(iter(owners))
        return "; ".join(f"{', '.join(names)}: {text}" for text, names in owners.items())

    @property
    def row(self) -> Row:
        """The flag, its help and its default."""
        return self.flag, self.words, self.default


def written(value: Any) -> str:
    """A value as a flag takes it."""
    if isinstance(value, tuple | dict):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


def entries(chosen: Collection[str] = ()) -> list[Entry]:
    """Every flag once; with ``chosen`` cores or algorithms, without those of others of their kind."""
    run, network = fields_of(CLASSES[""]), fields_of(CLASSES["policy"])
    found = [Entry(field.name, field) for field in (*run, *network)]
    found += _shared({name: fields_of(kind) for name, kind in _only(ALGOS, chosen).items()}, "")
    cores = {name: fields_of(make()) for name, make in _only(known, chosen).items()}
    found += _shared(dict(sorted(cores.items(), key=lambda item: -len(item[1]))), "core.")
    encoders = {name: fields_of(make) for name, make in _only(own_encoders(), chosen).items()}
    found += _shared(encoders, "encoder.")
    heads = {name: fields_of(make) for name, make in _only(HEADS, chosen).items()}
    found += _shared(heads, "head.")
    found += _shared({LEAGUE: fields_of(LeagueConfig)}, "vs.")
    return found


def own_encoders() -> dict[str, Callable[[], Any]]:
    """The encoders with settings of their own: the built-in one and those that are registered."""
    return {name: make for name, make in ENCODERS.items() if isinstance(make, type)}


def _only(parts: Mapping[str, Callable[[], Any]], chosen: Collection[str]) -> Mapping[str, Callable[[], Any]]:
    return {name: part for name, part in parts.items() if name in chosen} or parts


def _shared(parts: dict[str, list[Field]], prefix: str) -> list[Entry]:
    """The fields of all parts, each once, with type and docstring of the first part that has it."""
    owned: dict[str, list[tuple[str, Field]]] = {}
    for part, fields in parts.items():
        for field in fields:
            owned.setdefault(field.name, []).append((part, field))
    return [Entry(f"{prefix}{name}", f[0][1], tuple(f)) for name, f in owned.items()]


def metavar(field: Field) -> str:
    """The placeholder for a flag's value."""
    if field.is_list:
        return "A,B"
    kinds = () if field.choices else options(field.hint)
    words = {int: "N", float: "X", bool: "BOOL", str: "TEXT"}
    return next((word for kind, word in words.items() if kind in kinds), "NAME")


def groups(flags: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Flags by topic."""
    found: dict[str, list[Entry]] = {topic: [] for topic in texts.TOPICS if topic not in ("names", "all")}
    for entry in flags:
        found[_topic(entry.path)].append(entry)
    return found


def _topic(path: str) -> str:
    for topic, members in texts.MEMBERS.items():
        if path in members:
            return topic
    if path.endswith(("_schedule", "_end", "_warmup")):
        return "schedules"
    section, dot, _ = path.partition(".")
    sections = {"": "run", "core": "memory", "encoder": "network", "head": "network", "policy": "network"}
    sections |= {"vs": "env"}
    return sections.get(section if dot else homes()[path], "algo")


def _filled(text: str) -> str:
    return text.format(
        algos=" or ".join(ALGOS), cores=", ".join(known), policies=", ".join(POLICIES), heads=", ".join(HEADS)
    )


def wants_help(argv: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """The topics after ``--help`` (none: the first page) and the parts chosen before it; None without it."""
    for at, word in enumerate(argv):
        if word in ("-h", "--help", "--help-all"):
            topics = [topic for topic in argv[at:] if topic not in ("-h", "--help")]
            return ["all"] if "--help-all" in topics else topics, chosen_parts(argv[:at])
    return None


def chosen_parts(argv: Sequence[str]) -> list[str]:
    """The cores and algorithms that a command line names; a sweep may list several."""
    names = {"--core": tuple(known), "--algo": tuple(ALGOS)}
    for kind in ("encoder", "head"):
        if any(part.kind == kind for part in own_parts()):  # else all names have the same settings
            names[f"--{kind}"] = tuple(PARTS[kind])
    found: list[str] = []
    for word, following in zip(argv, [*argv[1:], ""]):
        flag, equals, value = word.partition("=")
        for name in (value if equals else following).split(",") if flag in names else ():
            if name not in names[flag]:
                raise ConfigError(
                    f"{flag} {name}: there is none of this name{nearest(name, names[flag])}; {IF_OWN}"
                )
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


def print_help(parser: argparse.ArgumentParser, argv: Sequence[str], *, refused: Collection[str]) -> bool:
    """Print the help that ``argv`` asks for, of a command with settings; False if it asks for none."""
    asked = wants_help(argv)
    if asked is None:
        return False
    topics, chosen = asked
    opening = None if parser.description is None else f"{parser.description}\n\n{parser.epilog}"
    own, command = own_options(parser), parser.prog
    render_help(Console(), topics, own, command=command, opening=opening, chosen=chosen, refused=refused)
    return True


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
    """Print help: the first page, or those that are ``asked`` for: topics, cores, tasks, flags.

    Args:
        console: the output.
        asked: topics, and names of cores, algorithms, tasks and flags.
        own: flags of the command that are no settings, with their help (``own_options``).
        command: the command.
        opening: the beginning of the first page, in place of the examples of ``recollect train``.
        chosen: the cores and algorithms to show, in place of all.
        refused: settings that the command does not accept.
    """
    flags = [entry for entry in entries(chosen) if entry.path not in refused]
    page = _Help(console, console.width - 1, flags)
    if not asked:
        page.first(own, command, opening)
    for number, topic in enumerate(asked):
        if number:
            page.line()
        page.topic(topic)
        if topic == "all":
            page.own(own)


@dataclass(frozen=True, slots=True)
class _Help(Page):
    entries: list[Entry]

    def first(self, own: Sequence[tuple[str, str]], command: str, opening: str | None) -> None:
        if opening is None:
            self.title("Examples")
            for example, meaning in texts.EXAMPLES:
                self.print(example, indent=2, style="bold")
                self.print(meaning, indent=6)
        else:
            self.line(opening.rstrip())
        self.title("\nThe most used flags")
        by_path = {entry.path: entry for entry in self.entries}
        shown = [
            (by_path[path], _filled(words)) for path, words in texts.MOST_USED.items() if path in by_path
        ]
        self.flags((entry.flag, words, entry.default) for entry, words in shown)
        self.print("Numbers may be written 300k, 1m, 3e5 or 300_000.", indent=2)
        self.own(own)
        self.title(f"\nMore: {command} --help TOPIC")
        self.flags((topic, _filled(meaning), "") for topic, meaning in texts.TOPICS.items())
        self.print("Also a core, a task or a flag: --help lstm, --help t-maze, --help clip.", indent=2)

    def own(self, own: Sequence[tuple[str, str]]) -> None:
        if own:
            self.title("\nFlags of the command itself")
            self.flags((flag, meaning, "") for flag, meaning in own)

    def topic(self, topic: str) -> None:
        if topic == "all":
            for one in (*groups(self.entries), *TASKS, "names"):
                self.topic(one)
                self.line()
        elif topic == "names":
            self.names()
        elif topic in texts.TOPICS:
            self.group(topic)
        elif topic in known:
            self.title(f"--core {topic}")
            self.flags(core_rows(known[topic]()))
        elif topic in ALGOS:
            self.title(f"--algo {topic}")
            self.flags(Entry(field.name, field).row for field in fields_of(ALGOS[topic]))
        elif topic in own_encoders():
            self.title(f"--encoder {topic}")
            self.flags(Entry(f"encoder.{field.name}", field).row for field in fields_of(ENCODERS[topic]))
        elif topic in HEADS:
            self.title(f"--head {topic}")
            self.flags(Entry(f"head.{field.name}", field).row for field in fields_of(HEADS[topic]))
        elif topic == LEAGUE:
            self.title(f"--vs {LEAGUE}")
            self.flags(Entry(f"vs.{field.name}", field).row for field in fields_of(LeagueConfig))
        elif topic in PARTS["env"]:
            self.title(f"recollect train {topic}/SOURCE")
            options = PARTS["env"][topic].config
            self.flags(Entry(f"task.{f.name}", f).row for f in (fields_of(options) if options else ()))
        elif topic in TASKS:
            self.title(f"recollect train {topic}")
            self.print(first_paragraph(TASKS[topic]), indent=2)
            self.flags(task_rows(TASKS[topic]))
        else:
            self.flag(topic)

    def flag(self, topic: str) -> None:
        name = topic.lstrip("-").replace("-", "_")
        ours = ALIASES.get(name, name)
        found = [entry for entry in self.entries if ours in (entry.path, entry.path.rpartition(".")[2])]
        if not found:
            names = [*texts.TOPICS, *known, *TASKS, *(entry.path.replace("_", "-") for entry in self.entries)]
            raise ConfigError(
                f"there is no help about {topic!r}{nearest(topic.lstrip('-'), names)}; the topics are "
                f"{', '.join(texts.TOPICS)}, every core, every task and every flag"
            )
        if ours != name:
            self.print(f"{topic} is called --{ours.replace('_', '-')} here.")
        self.flags(entry.row for entry in found)

    def group(self, topic: str) -> None:
        self.title(f"{topic}: {_filled(texts.TOPICS[topic])}")
        self.flags(entry.row for entry in groups(self.entries)[topic])
        if topic == "memory":
            cores = (entry for entry in self.entries if entry.path.startswith("core."))
            shown = {name for entry in cores for name, _ in entry.owned} or {"none"}
            for name in (name for name in known if name in shown):
                fields = ", ".join(f.name.replace("_", "-") for f in fields_of(known[name]()))
                self.print(f"--core {name} has: {fields or 'no settings'}", indent=2)
        if topic in texts.NOTES:
            self.print(texts.NOTES[topic], indent=2)

    def names(self) -> None:
        self.title("Config files and presets")
        preset = "Whether a built-in task starts from settings that suit it."
        self.flags([("--config FILE", texts.FILES, ""), ("--[no-]preset", preset, "on")])
        self.title("\nNames of Stable-Baselines3 and CleanRL, and ours")
        pairs = ([f"--{name.replace('_', '-')}" for name in pair] for pair in ALIASES.items())
        self.flags((theirs, ours, "") for theirs, ours in pairs)


def core_rows(core: Any) -> Iterator[Row]:
    """The settings of a core's config."""
    return (Entry(f"core.{field.name}", field).row for field in fields_of(core))


def task_rows(task: type[TaskOptions]) -> Iterator[Row]:
    """The options of a task; the size decides those without a default."""
    for field in fields_of(task):
        words = f"{task.sizes_text()}." if field.name == "size" else field.doc
        by_size = any(field.name in sizes for sizes in task.sizes.values())
        words += " Default: by the size." if by_size else ""
        default = "" if field.default is None else written(field.default)
        yield Entry(f"task.{field.name}", field).flag, words, default
