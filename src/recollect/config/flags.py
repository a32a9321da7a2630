"""Config flags: ``--learning-rate 3e-4 --core gru --core.hidden 256 --task.horizon 100 --config FILE``.

Reading the words needs no torch; ``parse_config``, which makes the config of them, does.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recollect.config import field_docs
from recollect.config.convert import FALSE, TRUE, number
from recollect.errors import ConfigError

if TYPE_CHECKING:
    from recollect.config.settings import Built, Layer
    from recollect.config.train import TrainConfig


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a command line says."""

    env: str | None
    """The env's name, from the command line or a file."""
    config: TrainConfig
    given: dict[str, Any]
    """What the user set, by the names that ``recollect.train`` takes."""
    preset: dict[str, Any]
    """What was chosen for the task beside that."""
    notes: list[str]
    """What the user should know, in lines to print."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag with its value, or None for the name alone."""

    written: str
    value: str | None

    @property
    def name(self) -> str:
        """The name as a setting's: no dashes in front, underscores inside."""
        return self.written.lstrip("-").replace("-", "_")

    @property
    def words(self) -> list[str]:
        """As it may stand on a command line."""
        return [self.written] if self.value is None else [f"{self.written}={self.value}"]


def parse_config(
    flags: list[str], *, env: str | None = None, base: TrainConfig | None = None, presets: bool = True
) -> Parsed:
    """The config that ``flags`` describe.

    Args:
        flags: the words of the command line that are config flags (see ``split_argv``).
        env: the env as named outside of the flags; it wins over a file's.
        base: settings to start from, such as those of a run to go on with; then no preset is applied.
        presets: whether to start from what suits a built-in task, as ``recollect.train`` does.
    """
    from recollect.config import settings
    from recollect.config.train import TrainConfig

    built = _build(flags, env, base)
    preset = settings.preset(built) if presets and base is None else {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        config = (base or TrainConfig()).override(**built.given | preset)
    notes = built.notes + [str(warning.message) for warning in caught]
    return Parsed(built.env, config, built.given, preset, notes)


def parse_settings(flags: list[str], *, env: str | None = None) -> dict[str, Any]:
    """Only what ``flags`` set, by the names that ``TrainConfig.override`` takes."""
    return _build(flags, env, None).given


def parse_task_options(flags: list[str], *, env: str | None = None) -> dict[str, Any]:
    """The options of the env, for a command that takes ``--task.OPTION`` and no other setting."""
    for flag in _read(flags):
        if not flag.name.startswith(("task.", "env_kwargs.")):
            raise ConfigError(
                f"{flag.written}: there is no such flag here; options of the env are --task.NAME"
            )
    return parse_settings(flags, env=env).get("env_kwargs", {})


def split_argv(argv: list[str], own: Collection[str]) -> tuple[list[str], list[str]]:
    """Cut a command line into the words for its argparse parser and the config flags.

    argparse alone would take the value of a flag that it does not know for a positional argument.

    Args:
        argv: the words after the command.
        own: the option strings of the parser, such as ``parser._option_string_actions``.
    """
    rest: list[str] = []
    flags: list[str] = []
    at = 0
    while at < len(argv):
        word = argv[at]
        if word == "--":
            return rest + argv[at:], flags
        if not word.startswith("--") or word.split("=")[0] in own:
            rest.append(word)
            at += 1
            continue
        taken = 1 + _takes_next(word, argv[at + 1 : at + 2])
        flags += argv[at : at + taken]
        at += taken
    return rest, flags


def whole_words(flags: list[str]) -> list[str]:
    """Each flag in one word, with its value behind ``=``."""
    return [word for flag in _read(flags) for word in flag.words]


def sweep_variants(flags: list[str]) -> list[tuple[str, list[str]]]:
    """Every combination of the values that are listed, with a label of what differs.

    Commas separate the values of a setting that takes one, semicolons those of one that takes a list.

    Example:
        >>> [label for label, _ in sweep_variants(["--core", "lstm,gru", "--seed=0,1", "--gamma=0.9"])]
        ['core=lstm,seed=0', 'core=lstm,seed=1', 'core=gru,seed=0', 'core=gru,seed=1']
    """
    choices: list[list[tuple[str, Flag]]] = []
    for flag in _read(flags):
        field = _field(flag.name)
        values = [flag.value] if flag.value is None or flag.name == "config" else _alternatives(flag, field)
        is_listed = len(values) > 1
        labels = [f"{_short(flag.name)}={_shown(value, field)}" if is_listed else "" for value in values]
        if len(set(labels)) < len(labels):
            raise ConfigError(f"{flag.written} {flag.value}: a value is listed twice")
        choices.append([(label, Flag(flag.written, value)) for label, value in zip(labels, values)])
    return [
        (
            ",".join(label for label, _ in variant if label),
            [word for _, flag in variant for word in flag.words],
        )
        for variant in itertools.product(*choices)
    ]


def _build(flags: list[str], env: str | None, base: TrainConfig | None) -> Built:
    """Files first, in their order, and the flags on top."""
    from recollect.config import settings
    from recollect.config.toml_yaml import read_layer

    found = list(_read(flags))
    layers = [read_layer(_value(flag)) for flag in found if flag.name == "config"]
    top = settings.Layer()
    for flag in found:
        if flag.name != "config":
            name, value = _setting(flag)
            top.add(name, settings.Setting(value, flag.written))
    return settings.build([*layers, top], env=_agreed_env(env, top), base=base)


# Words ---------------------------------------------------------------------------------------------------


def _read(flags: list[str]) -> Iterator[Flag]:
    at = 0
    while at < len(flags):
        word = flags[at]
        if not word.startswith("--") or word == "--":
            fix = f": did you mean -{word}?" if word.startswith("-") and len(word) > 2 else ""
            before = f" after {flags[at - 1]}" if at else ""
            raise ConfigError(f"{word!r}{before} is neither a flag nor the value of one{fix}")
        written, equals, value = word.partition("=")
        taken = _takes_next(word, flags[at + 1 : at + 2])
        if equals:
            yield Flag(written, value)
        else:
            yield Flag(written, flags[at + 1] if taken else None)
        at += 1 + taken


def _takes_next(word: str, following: list[str]) -> int:
    """1 if the next word is this flag's value, else 0. ``-3`` is a value, ``--x`` is not."""
    if "=" in word or not following or following[0].startswith("--"):
        return 0
    name = Flag(word, None).name
    if name.startswith("no_") and _field(name) is None:
        return 0
    field = _field(name)
    is_switch = name == "preset" if field is None else field.is_switch
    return int(not is_switch or all(part in TRUE + FALSE for part in following[0].lower().split(",")))


def _setting(flag: Flag) -> tuple[str, str | bool]:
    """Name and value; a switch alone is true, and false with ``no``."""
    name, value = flag.name, flag.value
    section, dot, last = name.rpartition(".")
    negated = None
    if name.startswith("no_"):
        negated = name.removeprefix("no_")
    elif last.startswith("no_"):
        negated = f"{section}{dot}{last.removeprefix('no_')}"
    if negated is not None and _field(name) is None and (_is_truth(negated) or _field(negated)):
        plain = f"--{negated.replace('_', '-')}"
        if not _is_truth(negated):
            raise ConfigError(f"{flag.written}: {plain} is no switch, so that it needs a value")
        if value is not None:
            raise ConfigError(f"{flag.written} takes no value: write {plain} {value}")
        return negated, False
    if value is not None:
        return name, value
    if _is_truth(name):
        return name, True
    return name, _value(flag) if _field(name) else ""


def _is_truth(name: str) -> bool:
    """Whether true and false are values of this setting."""
    field = _field(name)
    if field is None:
        return name == "preset" or name.startswith(("task.", "env_kwargs."))
    return "bool" in field.kinds


def _value(flag: Flag) -> str:
    if flag.value is None:
        raise ConfigError(f"{flag.written} needs a value: {flag.written} ...")
    return flag.value


def _agreed_env(env: str | None, top: Layer) -> str | None:
    """The env by position or by ``--env``, not by both."""
    named = top.settings.get("env")
    if named is None:
        return env
    if env is not None and env != named.value:
        raise ConfigError(f"the env is {env}, and {named.written} says {named.value}: keep one of them")
    return str(named.value)


def _field(name: str) -> field_docs.Field | None:
    """The field that a name leads to, as far as that is known without a core or task being chosen."""
    section, _, last = name.rpartition(".")
    section = section.removeprefix("policy.")
    if section in ("", "algo", "policy", *field_docs.ALGOS):
        last = field_docs.aliases().get(last, last)
    last = last.replace("normalize", "normalise")
    if section == "core":
        tables = [core.fields for core in field_docs.cores().values()]
    elif section in ("task", "env_kwargs", "env"):
        tables = [task.fields for task in field_docs.tasks().values()]
    elif section in ("", "algo", "policy", *field_docs.ALGOS):
        tables = [field_docs.config_fields(part) for part in ("", *field_docs.ALGOS, "policy")]
    else:
        tables = [field_docs.config_fields(section)] if section in field_docs.CONFIGS else []
    return next((field for table in tables for field in table if field.name == last), None)


# Sweeps --------------------------------------------------------------------------------------------------


def _alternatives(flag: Flag, field: field_docs.Field | None) -> list[str]:
    separator = ";" if field is not None and field.is_list else ","
    parts = [part.strip() for part in _split(flag.value or "", separator)]
    if len(parts) > 1 and "" in parts:
        raise ConfigError(f"{flag.written} {flag.value}: there is nothing between two {separator!r}")
    return parts


def _split(text: str, separator: str) -> list[str]:
    """Cut at the separator, but not inside of brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == separator and depth == 0:
            parts.append("")
            continue
        parts[-1] += letter
    return parts


def _short(name: str) -> str:
    """Without the section where the name alone is clear."""
    section, _, last = name.rpartition(".")
    if section not in ("", "algo", "policy", *field_docs.ALGOS):
        return name
    field = _field(last)
    return last if field is None else field.name


def _shown(value: str | None, field: field_docs.Field | None) -> str:
    """Numbers in one way, however they were written."""
    if field is None or not field.kinds & {"int", "float"} or field.is_list:
        return str(value)
    try:
        given = number(str(value))
    except ValueError:
        return str(value)
    return str(int(given)) if "int" in field.kinds and float(given).is_integer() else repr(given)
