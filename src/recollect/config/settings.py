"""Settings of flags and files by their names, combined to the keywords of ``TrainConfig.override``.

A setting has one path: ``steps``, ``algo.learning_rate``, ``policy.value_decay``, ``core`` (its name),
``core.hidden``, ``core.controller.hidden`` (of a core inside a core), ``encoder``, ``encoder.hidden``,
``head.squash``, ``task.horizon``, ``env``, ``preset``, ``policy`` and ``algo`` (their names). Flat names such
as ``learning_rate`` lead there too. A layer holds the settings of one source (a file, or all flags) by path;
later layers override earlier ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recollect.base.import_code import is_importing
from recollect.base.parts import IF_OWN, PARTS, part_of
from recollect.config.algo_choice import ALGOS, algo_name, check_has
from recollect.config.convert import convert, plain_value
from recollect.config.core_choice import CORES, core_config, known, name_of
from recollect.config.fields import field_names, hints
from recollect.config.nested_settings import Setting, as_written, part_values, with_fields
from recollect.config.own_code import INPUTS, OwnCode
from recollect.config.policy import (
    ENCODERS,
    HEADS,
    POLICIES,
    EncoderConfig,
    HeadConfig,
    PolicyConfig,
    encoder_configs,
    named_policy,
)
from recollect.config.serialise import CUSTOM
from recollect.config.tasks import TASKS, task_name
from recollect.config.train import ALIASES, TrainConfig, homes, our_name
from recollect.errors import ConfigError, nearest

SECTIONS = {"algo": "learning_rate", "policy": "normalise_value", "core": "hidden", "encoder": "hidden"}
SECTIONS |= {"head": "squash", "task": "horizon", "vs": "lethality"}
"""The sections, each with a setting of it as an example."""
CLASSES = {"": TrainConfig, "policy": PolicyConfig, "encoder": EncoderConfig, "head": HeadConfig}
"""The config class of each section but the algorithm, the core and the task."""
MEANT = {"env_kwargs": "task", "vs_kwargs": "vs", **dict.fromkeys(ALGOS, "algo")}
"""Names that someone may write for a section."""
NAMED = ("algo", "policy", "core", "encoder", "head", "vs")
"""Sections that are also a setting: the name of the part."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The settings of one source by path, and notes about them for the user."""

    settings: dict[str, Setting] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, setting: Setting) -> None:
        """Add the setting that was written as ``name`` (with underscores)."""
        path, alias_of = _path(name, setting)
        if alias_of is not None:
            source = f"{setting.source}: " if setting.source else ""
            self.notes.append(f"{source}{setting.written} is called {as_written(alias_of, setting)} here")
        if path in self.settings:
            before = self.settings[path].written
            if before == setting.written:
                raise ConfigError(f"{setting.where} is given twice: keep one of them")
            raise ConfigError(f"{setting.where} and {before} are the same setting: keep one of them")
        self.settings[path] = setting


@dataclass(frozen=True, slots=True)
class Built:
    """The result of all layers."""

    env: str | None
    given: dict[str, Any]
    """The settings, by the keywords of ``TrainConfig.override``."""
    paths: frozenset[str]
    """The settings by path."""
    use_preset: bool
    notes: list[str]


def build(layers: Sequence[Layer], *, env: str | None = None, base: TrainConfig | None = None) -> Built:
    """Merge ``layers`` and convert every value to the type of its field."""
    notes = [note for layer in layers for note in layer.notes]
    settings = _merged(layers, notes, env)
    base = base or TrainConfig()
    named = settings.pop("env", None)
    if env is None and named is not None:
        env = convert(named.value, str | None, named.where)
    chosen = settings.pop("preset", None)
    use_preset = True if chosen is None else convert(chosen.value, bool, chosen.where)
    given: dict[str, Any] = {}
    start = base.chosen_policy
    network = settings.pop("policy", None)
    if network is not None and network.value is not None:
        given["policy"] = _part_name(network, list(POLICIES), "policy")
        start = named_policy(given["policy"]) if given["policy"] in POLICIES else start
    fields: dict[str, dict[str, Setting]] = {section: {} for section in ("", *SECTIONS)}
    for path, setting in settings.items():
        section, dot, name = path.partition(".")
        if dot:
            fields[section][name] = setting
        elif path not in NAMED:
            fields[""][path] = setting
    given |= part_values("the run", TrainConfig, fields[""])
    if "algo" in settings:
        given["algo"] = _part_name(settings["algo"], list(ALGOS), "algorithm")
    algo = given.get("algo") or algo_name(base.algo)
    for name, setting in fields["algo"].items():
        check_has(algo, name, setting.where, "algo: {}" if setting.source else "--algo {}")
    given |= part_values(algo, ALGOS[algo], fields["algo"])
    given |= part_values("the policy", PolicyConfig, fields["policy"])
    if "core" in settings or fields["core"]:
        given["core"] = _core(settings.get("core"), fields["core"], start.core)
    if "encoder" in settings or fields["encoder"]:
        own = settings.get("encoder"), fields["encoder"], start.encoder
        given["encoder"] = _part("encoder", ENCODERS, "auto", *own)
    if "head" in settings or fields["head"]:
        own = settings.get("head"), fields["head"], start.head
        given["head"] = _part("head", HEADS, ALGOS[algo].default_head, *own)
    if "vs" in settings:
        given["vs"] = convert(settings["vs"].value, str | None, settings["vs"].where)
    if fields["vs"]:
        given["vs_kwargs"] = ({} if "vs" in given else base.vs_kwargs) | _plain_values(fields["vs"])
    if fields["task"]:
        given["env_kwargs"] = base.env_kwargs | _task_values(env, fields["task"])
    return Built(env, given, frozenset(settings), use_preset, notes)


# Names ---------------------------------------------------------------------------------------------------


def _path(name: str, setting: Setting) -> tuple[str, str | None]:
    """The path that ``name`` leads to, and our name for it where it is another library's."""
    section, dot, last = name.partition(".")
    if name in (*NAMED, "env", "preset"):
        return name, None
    if not dot:
        section, last = "", name
    elif section in NAMED and last == "name":
        return section, None
    elif section in ("task", "core", "encoder", "head", "vs"):
        return (name if section in ("task", "vs") else name.removesuffix(".name")), None
    elif section not in SECTIONS:
        hint = nearest(MEANT.get(section, section), SECTIONS)
        raise ConfigError(
            f"{setting.where}: there is no section {section!r}{hint}; the sections are {', '.join(SECTIONS)}"
        )
    try:
        ours = our_name(last)
    except ConfigError as error:
        raise ConfigError(f"{setting.where}: {error}") from None
    home = None if ours in (*SECTIONS, "env_kwargs", "vs_kwargs") else homes().get(ours)
    if home is None:
        raise ConfigError(_unknown(section, last, setting))
    if section not in ("", home):
        at = f"in {home}" if home else "at the top, without a section"
        raise ConfigError(f"{setting.where}: {section} has no setting {last!r}: it belongs {at}")
    return (f"{home}.{ours}" if home else ours), (ours if ours != last else None)


def _unknown(section: str, name: str, setting: Setting) -> str:
    meant = MEANT.get(name, name)
    if meant in SECTIONS and not section:
        example = as_written(f"{meant}.{SECTIONS[meant]}", setting)
        return f"{setting.where} is a section: give one of its settings, such as {example}"
    if section:
        names = [known for known, home in homes().items() if home == section]
    else:
        names = [*homes(), *ALIASES, "env", "preset", "config"]
    places = {
        "core": any(name in hints(kind) for kind in CORES.values()),
        "encoder": any(name in hints(kind) for kind in encoder_configs()),
        "head": any(name in hints(kind) for kind in HEADS.values()),
        "task": any(name in hints(task) for task in TASKS.values()),
    }
    near = [f"{place}.{name}" for place, has in places.items() if has]
    hint = nearest(name, names)
    if near:
        hint = f" (did you mean {' or '.join(as_written(place, setting) for place in near)}?)"
    elif hint and not setting.source:
        close = hint.split("'")[1]
        hint = f" (did you mean {as_written(f'{section}.{close}' if section else close, setting)}?)"
    if setting.source:
        return f"{setting.where}: there is no such setting{hint}"
    own = "" if hint else "; if a part of your own has it: --import MODULE"
    return f"{setting.where}: there is no such flag{hint}. recollect train --help lists them{own}"


# Layers --------------------------------------------------------------------------------------------------


def _merged(layers: Sequence[Layer], notes: list[str], env: str | None) -> dict[str, Setting]:
    """Later layers win. Another core, encoder, head, algorithm or env drops the settings of the old one."""
    merged: dict[str, Setting] = {}
    for layer in layers:
        for name in ("algo", "core", "encoder", "head", "vs", "env"):
            _drop_if_changed(merged, notes, name, layer.settings.get(name))
        if "policy" in layer.settings:  # its name chooses the encoder
            merged = {path: s for path, s in merged.items() if path.partition(".")[0] != "encoder"}
        merged |= layer.settings
    if env is not None:
        _drop_if_changed(merged, notes, "env", Setting(env, env), only_files=True)
    return merged


def _drop_if_changed(
    merged: dict[str, Setting], notes: list[str], name: str, new: Setting | None, only_files: bool = False
) -> None:
    old = merged.get(name)
    if old is None or new is None:
        return
    if (task_name(old.value) or old.value) == (task_name(new.value) or new.value):
        return
    section = "task." if name == "env" else f"{name}."
    gone = [path for path, s in merged.items() if path.startswith(section) and (s.source or not only_files)]
    for path in gone:
        del merged[path]
    if gone:
        notes.append(f"{name} is {new.value}: {', '.join(gone)} of {old.value} ({old.source}) are left out")


# Values --------------------------------------------------------------------------------------------------


def _core(named: Setting | None, fields: dict[str, Setting], base: Any) -> Any:
    """A name alone stays a name, so that a preset can choose its gates; with fields, a config."""
    if named is not None:
        name = _part_name(named, list(known), "core")
        if name not in known:
            return _own_code("core", name, fields)
        start: Any = core_config(name)
        if not fields:
            # A config without fields differs from its name only in the way that it was written.
            is_config = named.written.endswith(".name") and not field_names(type(start))
            return start if is_config else name
        start = base if type(base) is type(start) else start
    else:
        if isinstance(base, OwnCode):
            return OwnCode("core", base.name, base.options | _plain_values(fields))
        start = core_config(base) if isinstance(base, str) else base
        name = base if isinstance(base, str) else name_of(base)
        if name is None:
            raise _is_factory("core", fields)
    return with_fields(f"the core {name}", start, fields)


def _part(
    part: str,
    known: Mapping[str, Any],
    default: str,
    named: Setting | None,
    fields: dict[str, Setting],
    base: Any,
) -> Any:
    """An encoder or head; ``default``: the name that None stands for."""
    name: str | None = None
    if named is not None:
        if named.value is not None and str(named.value).lower() not in ("none", "null"):
            name = _part_name(named, list(known), part)
            if name not in known:
                return _own_code(part, name, fields)
        if not fields:
            return name
        start = known[name or default]()
    elif base is None or isinstance(base, str):
        start = known[base or default]()
    elif part_of(part, base) is not None:
        start = base
    elif isinstance(base, OwnCode):
        return OwnCode(part, base.name, base.options | _plain_values(fields))
    else:
        raise _is_factory(part, fields)
    return dataclasses.replace(start, **part_values(f"the {part}", type(start), fields))


def _is_factory(part: str, fields: dict[str, Setting]) -> ConfigError:
    first = next(iter(fields.values()))
    return ConfigError(f"{first.where}: the {part} is made by a factory and has no settings")


def _part_name(named: Setting, known: list[str], part: str) -> str:
    name = "none" if named.value is None and part == "core" else named.value
    if name == CUSTOM:
        raise ConfigError(
            f"{named.where}: custom stands for one made by Python code, which a file cannot hold: "
            f"choose {', '.join(known)}, or train from Python with {part}=..."
        )
    if name not in known and not (part in INPUTS and is_importing(name)):
        raise ConfigError(
            f"{named.where} {name}: there is no such {part}{nearest(str(name), known)}; "
            f"choose {', '.join(known)}; {IF_OWN}"
        )
    return str(name)


def _task_values(env: str | None, fields: dict[str, Setting]) -> dict[str, Any]:
    """By the types of the options of a built-in task or a registered env; else as YAML reads them."""
    task = task_name(env)
    if task is not None:
        return part_values(task, TASKS[task], fields, "option")
    adapter = PARTS["env"].get((env or "").partition("/")[0])
    if adapter is not None and adapter.config is not None:
        return part_values(adapter.name, adapter.config, fields, "option")
    return _plain_values(fields)


def _plain_values(fields: dict[str, Setting]) -> dict[str, Any]:
    """Options of code, whose types are not known here: of flags as YAML reads them."""
    return {
        name: plain_value(s.value) if isinstance(s.value, str) and not s.source else s.value
        for name, s in fields.items()
    }


def _own_code(part: str, name: str, fields: dict[str, Setting]) -> OwnCode:
    """A part that is the user's own code, which checks its options when it is made."""
    return OwnCode(part, name, _plain_values(fields))
