"""Config flags: ``--learning-rate 3e-4 --core gru --core.hidden 256 --task.horizon 100 --config FILE``."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, get_origin

from recollect.base.parts import PARTS, import_parts
from recollect.config import settings
from recollect.config.algo_choice import ALGOS
from recollect.config.convert import FALSE, NOTHING, TRUE, number, options, plain_value
from recollect.config.core_choice import CORES
from recollect.config.fields import hints
from recollect.config.own_code import INPUTS
from recollect.config.policy import HEADS, PolicyConfig, encoder_configs
from recollect.config.tasks import TASKS
from recollect.config.toml_yaml import file_imports, read_layer
from recollect.config.train import TrainConfig, our_name
from recollect.errors import ConfigError

REPEATED = ("wrap", "drop_obs", "imports", "critic_obs")
"""Flags that may be given several times: their values are joined."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag with its value, or None for the name alone."""

    written: str
    value: str | None

    @property
    def name(self) -> str:
        """The name of the setting: no dashes in front, underscores inside."""
        name = self.written.lstrip("-").replace("-", "_")
        return "imports" if name == "import" else name  # a keyword of Python

    @property
    def word(self) -> str:
        """The flag as one word of a command line."""
        return self.written if self.value is None else f"{self.written}={self.value}"


def build_flags(
    flags: list[str], *, env: str | None = None, base: TrainConfig | None = None
) -> settings.Built:
    """The settings of ``flags``: the files among them in their order, and the flags on top.

    Args:
        flags: the words of the command line that are config flags (see ``split_argv``).
        env: the env as named outside of the flags; it wins over that of a file.
        base: settings to start from, such as those of a run to resume.
    """
    found = list(_read(flags))
    layers = [read_layer(_value(flag)) for flag in found if flag.name == "config"]
    top = settings.Layer()
    for flag in found:
        if flag.name not in ("config", *REPEATED):
            name, value = _setting(flag)
            top.add(name, settings.Setting(value, flag.written))
    for name in REPEATED:
        if values := [_value(flag) for flag in found if flag.name == name]:
            listed = [value for text in values for value in _listed(text)]
            written = next(flag.written for flag in found if flag.name == name)
            top.add(name, settings.Setting(listed, written))
    return settings.build([*layers, top], env=_agreed_env(env, top), base=base)


def parse_settings(flags: list[str], *, env: str | None = None) -> dict[str, Any]:
    """The settings of ``flags`` as keywords of ``TrainConfig.override``."""
    return build_flags(flags, env=env).given


def parse_repeated(flags: list[str], *, env: str | None = None) -> dict[str, Any]:
    """Options of the env and own code, as keywords of ``recollect.load``: see ``training.trusted_settings``.

    For a command that takes these settings of a run again, and no other setting.
    """
    for flag in _read(flags):
        if flag.name.partition(".")[0] not in ("task", "imports", *INPUTS):
            raise ConfigError(
                f"{flag.written}: there is no such flag here; options of the env are --task.NAME, and your "
                "own code is named again by --import, --core, --encoder, --head, --policy and --wrap"
            )
    return {"env_kwargs": {}} | parse_settings(flags, env=env)


def import_named(argv: list[str]) -> list[str]:
    """Import the modules that a command line names, by ``--import`` or in its config files.

    Before its flags are read: the modules register the parts that flags are for. Returns the words without
    ``--import``.
    """
    end = argv.index("--") if "--" in argv else len(argv)
    rest: list[str] = []
    for group in _groups(argv[:end]):
        flag = next(_read(group)) if group[0].startswith("--") else None
        if flag is not None and flag.name == "imports":
            import_parts(_listed(_value(flag)))
            continue
        if flag is not None and flag.name == "config":
            import_parts(file_imports(_value(flag)))
        rest += group
    return rest + argv[end:]


def split_argv(argv: list[str], own: Collection[str]) -> tuple[list[str], list[str]]:
    """Split a command line into the words for its argparse parser and the config flags.

    argparse alone would read the value of an unknown flag as a positional argument.

    Args:
        argv: the words after the command.
        own: the option strings of the parser, such as ``parser._option_string_actions``.
    """
    end = argv.index("--") if "--" in argv else len(argv)
    rest: list[str] = []
    flags: list[str] = []
    for first, *value in _groups(argv[:end]):
        is_config = first.startswith("--") and first.split("=")[0] not in own
        (flags if is_config else rest).extend([first, *value])
    return rest + argv[end:], flags


def whole_words(flags: list[str]) -> list[str]:
    """Each flag as one word, with its value after ``=``."""
    return [flag.word for flag in _read(flags)]


def sweep_variants(flags: list[str]) -> list[tuple[str, list[str]]]:
    """Every combination of the listed values, with a label of the differences.

    Commas separate the values of a setting; semicolons those of a setting that is a list itself.

    Example:
        >>> [label for label, _ in sweep_variants(["--core", "lstm,gru", "--seed=0,1", "--gamma=0.9"])]
        ['core=lstm,seed=0', 'core=lstm,seed=1', 'core=gru,seed=0', 'core=gru,seed=1']
    """
    choices: list[list[tuple[str, Flag]]] = []
    for flag in _read(flags):
        hint = _hint(flag.name)
        is_whole = flag.value is None or flag.name in ("config", "imports")
        values = [flag.value] if is_whole else _alternatives(flag, hint)
        is_listed = len(values) > 1
        labels = [f"{_short(flag.name)}={_shown(value, hint)}" if is_listed else "" for value in values]
        if len(set(labels)) < len(labels):
            raise ConfigError(f"{flag.written} {flag.value}: a value is listed twice")
        choices.append([(label, Flag(flag.written, value)) for label, value in zip(labels, values)])
    return [
        (",".join(label for label, _ in variant if label), [flag.word for _, flag in variant])
        for variant in itertools.product(*choices)
    ]


# Words ---------------------------------------------------------------------------------------------------


def _groups(argv: list[str]) -> Iterator[list[str]]:
    """Each flag with the word that is its value, if any; other words alone."""
    at = 0
    while at < len(argv):
        size = 2 if at + 1 < len(argv) and _is_value(argv[at], argv[at + 1]) else 1
        yield argv[at : at + size]
        at += size


def _is_value(flag: str, following: str) -> bool:
    """Whether the next word is this flag's value; ``-3`` is one, ``--x`` is not."""
    if not flag.startswith("--") or "=" in flag or following.startswith("--"):
        return False
    name = Flag(flag, None).name
    hint = _hint(name)
    if name.startswith("no_") and hint is None:
        return False
    is_switch = hint is bool or name == "preset"
    return not is_switch or all(part in TRUE + FALSE for part in following.lower().split(","))


def _read(flags: list[str]) -> Iterator[Flag]:
    before = ""
    for first, *value in _groups(flags):
        if not first.startswith("--") or first == "--":
            fix = f": did you mean -{first}?" if first.startswith("-") and len(first) > 2 else ""
            raise ConfigError(f"{first!r}{before} is neither a flag nor the value of one{fix}")
        written, equals, given = first.partition("=")
        yield Flag(written, given if equals else next(iter(value), None))
        before = f" after {[first, *value][-1]}"


def _setting(flag: Flag) -> tuple[str, str | bool]:
    """Name and value; a switch without a value is true, and with ``no-`` in front false."""
    name, value = flag.name, flag.value
    negated = name.removeprefix("no_")
    if negated != name and _hint(name) is None and (_is_truth(negated) or _hint(negated)):
        plain = f"--{negated.replace('_', '-')}"
        if not _is_truth(negated):
            raise ConfigError(f"{flag.written}: {plain} is no switch and needs a value")
        if value is not None:
            raise ConfigError(f"{flag.written} takes no value: write {plain} {value}")
        return negated, False
    if value is None and _is_truth(name):
        return name, True
    return name, _value(flag) if _hint(name) else value or ""


def _listed(text: str) -> list[Any]:
    """The values of a list: separated by commas, or a YAML list or mapping."""
    if text.startswith(("{", "[")):
        value = plain_value(text)
        return value if isinstance(value, list) else [value]
    return [] if text.lower() in NOTHING else [part.strip() for part in text.split(",")]


def _is_truth(name: str) -> bool:
    """Whether true and false are values of this setting."""
    hint = _hint(name)
    if hint is None:
        return name == "preset" or name.startswith(("task.", "vs."))
    return bool in options(hint)


def _value(flag: Flag) -> str:
    if flag.value is None:
        raise ConfigError(f"{flag.written} needs a value: {flag.written} ...")
    return flag.value


def _agreed_env(env: str | None, top: settings.Layer) -> str | None:
    """The env by position or by ``--env``, not by both."""
    named = top.settings.get("env")
    if named is None:
        return env
    if env is not None and env != named.value:
        raise ConfigError(f"the env is {env}, and {named.written} says {named.value}: keep one of them")
    return str(named.value)


def _hint(name: str) -> Any:
    """The type of a setting, as far as it is known before a core or task is chosen; None if it is unknown."""
    section, _, last = _short(name).rpartition(".")
    run = (TrainConfig, *ALGOS.values(), PolicyConfig)
    kinds: dict[str, Collection[type]] = {"": run, "core": CORES.values(), "task": _task_options()}
    kinds |= {"encoder": encoder_configs(), "head": HEADS.values()}
    return next((hints(kind)[last] for kind in kinds.get(section, ()) if last in hints(kind)), None)


def _task_options() -> list[type]:
    """The options of every task and registered env."""
    return [*TASKS.values(), *(part.config for part in PARTS["env"].values() if part.config is not None)]


# Sweeps --------------------------------------------------------------------------------------------------


def _alternatives(flag: Flag, hint: Any) -> list[str]:
    separator = ";" if get_origin(hint) is tuple else ","
    parts = [part.strip() for part in _split(flag.value or "", separator)]
    if len(parts) > 1 and "" in parts:
        raise ConfigError(f"{flag.written} {flag.value}: there is nothing between two {separator!r}")
    return parts


def _split(text: str, separator: str) -> list[str]:
    """Split at the separator, but not inside of brackets or quotes."""
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
    """Our name for a setting, without the section where the name alone is clear."""
    section, _, last = name.rpartition(".")
    return our_name(last) if section in ("", "algo", "policy") and last != "batch_size" else name


def _shown(value: str | None, hint: Any) -> str:
    """The value, numbers in one notation."""
    kinds = options(hint)
    if int not in kinds and float not in kinds:
        return str(value)
    try:
        given = number(str(value))
    except ValueError:
        return str(value)
    return str(int(given)) if int in kinds and float(given).is_integer() else repr(given)
