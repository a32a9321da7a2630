"""Settings by their written names, from flags and files, put together to a TrainConfig.

A setting has one path: ``steps``, ``algo.learning_rate``, ``policy.value_decay``, ``core`` (its name),
``core.hidden``, ``core.controller.hidden`` (of a core inside a core), ``encoder``, ``encoder.hidden``,
``head.squash``, ``task.horizon``, ``env``, ``preset``, ``policy`` and ``algo`` (their names).
What people write leads there: ``learning_rate``, ``ppo.lr``, ``policy.core.hidden``, ``env_kwargs.horizon``.
A layer is one source (a file, or all flags) by path; later layers go on top of earlier ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from recollect.algos.catalog import ALGOS, algo_fields, algo_name, check_has
from recollect.config.convert import convert, plain_value
from recollect.config.parts import Setting, as_written, field_names, part_values, with_fields
from recollect.config.plain import CUSTOM
from recollect.config.train import ALIASES, TrainConfig
from recollect.cores import CORES
from recollect.cores.make import core_config, known, name_of
from recollect.errors import ConfigError, nearest
from recollect.policy.encoders import NAMES as ENCODERS
from recollect.policy.encoders import EncoderConfig
from recollect.policy.heads import HeadConfig
from recollect.policy.policy import PolicyConfig
from recollect.policy.zoo import POLICIES, named_policy
from recollect.tasks import TASKS, is_task, task_class, task_options
from recollect.training.presets import preset as preset_of

SECTIONS = ("algo", "policy", "core", "encoder", "head", "task")
NAMED = ("algo", "core", "encoder")
"""Sections that are also a setting: the name of the part."""
SYNONYMS = {
    "env_kwargs": "task",
    "env": "task",
    "policy.core": "core",
    "policy.encoder": "encoder",
    "policy.head": "head",
    **dict.fromkeys(ALGOS, "algo"),
}
"""Other spellings of a section."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The settings of one source by path, and what there is to say about them."""

    settings: dict[str, Setting] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, setting: Setting) -> None:
        """Take in what was written as ``name`` (with underscores)."""
        path, alias_of = _path(name, setting)
        if alias_of is not None:
            ours = as_written(alias_of, setting)
            source = f"{setting.source}: " if setting.source else ""
            self.notes.append(f"{source}{setting.written} is called {ours} here")
        if path in self.settings:
            before = self.settings[path].written
            if before == setting.written:
                raise ConfigError(f"{setting.where} is given twice: keep one of them")
            raise ConfigError(f"{setting.where} and {before} are the same setting: keep one of them")
        self.settings[path] = setting


@dataclass(frozen=True, slots=True)
class Built:
    """What the layers amount to."""

    env: str | None
    given: dict[str, Any]
    """What was set, by the names that ``TrainConfig.override`` takes."""
    paths: frozenset[str]
    """The same as paths."""
    use_preset: bool
    notes: list[str]


def own_fields() -> list[str]:
    """The fields of TrainConfig that are settings of their own and no section."""
    return [name for name in field_names(TrainConfig) if name not in ("policy", "algo", "env_kwargs")]


def build(layers: Sequence[Layer], *, env: str | None = None, base: TrainConfig | None = None) -> Built:
    """Put ``layers`` on top of each other and convert every value to its field's type."""
    notes = [note for layer in layers for note in layer.notes]
    settings = _merged(layers, notes, env)
    base = base or TrainConfig()
    named = settings.pop("env", None)
    if env is None and named is not None:
        env = convert(named.value, str | None, named.where)
    chosen = settings.pop("preset", None)
    use_preset = True if chosen is None else convert(chosen.value, bool, chosen.where)
    given: dict[str, Any] = {}
    start = base.policy
    network = settings.pop("policy", None)
    if network is not None and network.value is not None:
        given["policy"] = _part_name(network, list(POLICIES), "policy")
        start = named_policy(given["policy"])
    by_section: dict[str, dict[str, Setting]] = {section: {} for section in SECTIONS}
    for path, setting in settings.items():
        section, _, name = path.partition(".")
        if name:
            by_section[section][name] = setting
        elif path not in NAMED:
            given[path] = _converted(TrainConfig, path, setting)
    if "algo" in settings:
        given["algo"] = _part_name(settings["algo"], list(ALGOS), "algorithm")
    given |= _algo_values(given.get("algo") or algo_name(base.algo), by_section["algo"])
    given |= {name: _converted(PolicyConfig, name, s) for name, s in by_section["policy"].items()}
    if "core" in settings or by_section["core"]:
        given["core"] = _core(settings.get("core"), by_section["core"], start.core)
    if "encoder" in settings or by_section["encoder"]:
        given["encoder"] = _encoder(settings.get("encoder"), by_section["encoder"], start.encoder)
    if by_section["head"]:
        values = {name: _converted(HeadConfig, name, s) for name, s in by_section["head"].items()}
        given["head"] = dataclasses.replace(start.head, **values)
    if by_section["task"]:
        given["env_kwargs"] = base.env_kwargs | _task_values(env, by_section["task"])
    return Built(env, given, frozenset(settings), use_preset, notes)


def preset(built: Built) -> dict[str, Any]:
    """What the preset chooses beside what was given, as in ``recollect.train``.

    A core of which only the size was given hides its gates from the preset; a note says so.
    """
    if built.env is None or not built.use_preset:
        return {}
    # The name of a policy leaves the core open.
    asked = {name: value for name, value in built.given.items() if name != "policy"}
    core = asked.get("core")
    if dataclasses.is_dataclass(core) and not isinstance(core, type):
        suits = preset_of(built.env, asked | {"core": name_of(core)}).get("core")
        fields = [] if suits is None else dataclasses.fields(suits)
        other = [
            f"--core.{field.name.replace('_', '-')} {value}"
            for field in fields
            if f"core.{field.name}" not in built.paths
            and isinstance(value := getattr(suits, field.name), int | float)
            and value != getattr(core, field.name)
        ]
        if other:
            built.notes.append(
                f"this task would suit {' '.join(other)}: the preset leaves a core alone of which "
                "fields are given"
            )
    return preset_of(built.env, asked)


# Names ---------------------------------------------------------------------------------------------------


def _path(name: str, setting: Setting) -> tuple[str, str | None]:
    """The path that ``name`` leads to, and our name for it where it is another library's."""
    if name in ("env", "preset", "policy", *NAMED):
        return name, None
    if name == "policy.name":
        return "policy", None
    inside = name.removeprefix("policy.")
    if inside.startswith("core.") and inside.count(".") > 1:
        return inside.removesuffix(".name"), None  # a core inside a core
    spelled, _, last = name.rpartition(".")
    section = SYNONYMS.get(spelled, spelled)
    if section == "task":
        return ("env" if name == "env.name" else f"task.{last}"), None
    if section in ("core", "encoder"):
        return (section if last == "name" else f"{section}.{last}"), None
    if name == "algo.name":
        return "algo", None
    if section not in ("", "algo", "policy", "head"):
        raise ConfigError(
            f"{setting.where}: there is no section {section!r}{nearest(section, SECTIONS)}; "
            f"the sections are {', '.join(SECTIONS)}"
        )
    ours = _ours(last, setting)
    path = _known().get(ours)
    if section == "head":
        path = f"head.{last}" if last in field_names(HeadConfig) else None
    elif path is not None and section and path not in NAMED and not path.startswith(f"{section}."):
        at = f"in {path.split('.')[0]}" if "." in path else "at the top, without a section"
        raise ConfigError(f"{setting.where}: {spelled} has no setting {last!r}: it belongs {at}")
    if path is None:
        raise ConfigError(_unknown(section, spelled, last, setting))
    return path, (ours if ours != last else None)


def _known() -> dict[str, str]:
    """The path of every setting that has a flat name."""
    found = {name: name for name in own_fields()}
    found |= {name: f"algo.{name}" for name in algo_fields()}
    found |= {name: f"policy.{name}" for name in field_names(PolicyConfig) if name != "head"}
    return found | {name: name for name in NAMED}


def _ours(name: str, setting: Setting) -> str:
    """Our name for a setting that may have another library's."""
    if name == "batch_size":
        try:
            TrainConfig().override(batch_size=0)
        except ConfigError as error:  # it says what to use instead
            raise ConfigError(f"{setting.where}: {error}") from None
    spelled = name.replace("normalize", "normalise")
    if spelled in _known():
        return spelled
    return ALIASES.get(name, name)


def _unknown(section: str, spelled: str, name: str, setting: Setting) -> str:
    known: Iterable[str]
    if section == "head":
        known = field_names(HeadConfig)
    elif section:
        known = [n for n, path in _known().items() if path.startswith(f"{section}.") or section == "policy"]
    else:
        known = [*_known(), *ALIASES, "env", "preset", "config"]
    places = [f"core.{name}" for kind in CORES.values() if name in field_names(type(kind()))][:1]
    places += [f"encoder.{name}"] * (name in field_names(EncoderConfig))
    places += [f"head.{name}"] * (name in field_names(HeadConfig) and section != "head")
    places += [f"task.{name}"] * any(name in task_options(task) for task in TASKS.values())
    if name in (*SECTIONS, *SYNONYMS):
        inside = as_written(_inside(name), setting)
        return f"{setting.where} holds settings and is none itself: give one of them, such as {inside}"
    hint = nearest(name, known)
    if places:
        hint = f" (did you mean {' or '.join(as_written(place, setting) for place in places)}?)"
    elif hint and not setting.source:
        close = hint.split("'")[1]
        hint = f" (did you mean {as_written(f'{spelled}.{close}' if spelled else close, setting)}?)"
    what = "flag" if not setting.source else "setting"
    more = "" if setting.source else ". recollect train --help lists them"
    return f"{setting.where}: there is no such {what}{hint}{more}"


def _inside(section: str) -> str:
    examples = {"policy": "normalise_value", "head": "squash"}
    examples |= dict.fromkeys(("algo", *ALGOS), "learning_rate")
    return f"{section}.{examples.get(section, 'horizon')}"


# Layers --------------------------------------------------------------------------------------------------


def _merged(layers: Sequence[Layer], notes: list[str], env: str | None) -> dict[str, Setting]:
    """Later layers win. Another core, encoder, algorithm or env takes the old one's settings along."""
    merged: dict[str, Setting] = {}
    for layer in layers:
        for name, section in (*((part, part) for part in NAMED), ("env", "task")):
            _drop_if_changed(merged, notes, name, section, layer.settings.get(name))
        if "policy" in layer.settings:  # its name is a choice of the encoder
            merged = {path: s for path, s in merged.items() if path.partition(".")[0] != "encoder"}
        merged |= layer.settings
    if env is not None:
        _drop_if_changed(merged, notes, "env", "task", Setting(env, env), only_files=True)
    return merged


def _drop_if_changed(
    merged: dict[str, Setting],
    notes: list[str],
    name: str,
    section: str,
    new: Setting | None,
    only_files: bool = False,
) -> None:
    old = merged.get(name)
    if old is None or new is None or _same_part(old.value, new.value):
        return
    gone = [
        path for path, s in merged.items() if path.startswith(f"{section}.") and (s.source or not only_files)
    ]
    for path in gone:
        del merged[path]
    if gone:
        notes.append(f"{name} is {new.value}: {', '.join(gone)} of {old.value} ({old.source}) are left out")


def _same_part(one: Any, other: Any) -> bool:
    def short(name: Any) -> Any:
        return task_class(name).name if is_task(name) else name

    return short(one) == short(other)


# Values --------------------------------------------------------------------------------------------------


def _converted(kind: type, name: str, setting: Setting) -> Any:
    return convert(setting.value, get_type_hints(kind)[name], setting.where)


def _algo_values(algo: str, fields: dict[str, Setting]) -> dict[str, Any]:
    """By the types of the algorithm's own fields; those of another one are refused."""
    for name, setting in fields.items():
        choose = "algo: {}" if setting.source else "--algo {}"
        check_has(algo, name, setting.where, choose)
        section = setting.written.lstrip("-").partition(".")[0]
        if section in ALGOS and section != algo:
            raise ConfigError(f"{setting.where}: the algorithm is {algo}: leave {section} out, or choose it")
    return {name: _converted(ALGOS[algo], name, s) for name, s in fields.items()}


def _core(named: Setting | None, fields: dict[str, Setting], base: Any) -> Any:
    """A name alone stays a name, so that a preset may choose its gates; with fields, a config."""
    if named is not None:
        name = _part_name(named, list(known), "core")
        start: Any = core_config(name)
        if not fields:
            # A config without fields can only be told from its name by how it was written.
            is_config = named.written.endswith(".name") and not field_names(type(start))
            return start if is_config else name
        start = base if type(base) is type(start) else start
    elif isinstance(base, str):
        start, name = core_config(base), base
    else:
        start = base
        name = name_of(base)
        if name is None:
            first = next(iter(fields.values()))
            raise ConfigError(f"{first.where}: the core is made by code, which this cannot reach")
    return with_fields(f"the core {name}", start, fields)


def _encoder(named: Setting | None, fields: dict[str, Setting], base: Any) -> Any:
    name: str | None = None
    if named is not None:
        if named.value is not None and str(named.value).lower() not in ("none", "null"):
            name = _part_name(named, list(ENCODERS), "encoder")
        if not fields:
            return name
        start = ENCODERS[name or "auto"]
    elif base is None or isinstance(base, str):
        start = ENCODERS[base or "auto"]
    elif isinstance(base, EncoderConfig):
        start = base
    else:
        first = next(iter(fields.values()))
        raise ConfigError(f"{first.where}: the encoder is made by code, which this cannot reach")
    return dataclasses.replace(start, **part_values("the encoder", EncoderConfig, fields))


def _part_name(named: Setting, known: list[str], part: str) -> str:
    name = "none" if named.value is None and part == "core" else named.value
    if name == CUSTOM and CUSTOM not in known:
        raise ConfigError(
            f"{named.where}: custom stands for one made by Python code, which a file cannot hold: "
            f"choose {', '.join(known)}, or train from Python with {part}=..."
        )
    if name not in known:
        raise ConfigError(
            f"{named.where} {name}: there is no such {part}{nearest(str(name), known)}; "
            f"choose {', '.join(known)}"
        )
    return name


def _task_values(env: str | None, fields: dict[str, Setting]) -> dict[str, Any]:
    """Typed by the built-in task's signature; for any other env, as YAML would read them."""
    if not is_task(env):
        return {
            name: plain_value(s.value) if isinstance(s.value, str) and not s.source else s.value
            for name, s in fields.items()
        }
    task = task_class(str(env))
    known, hints = task_options(task), get_type_hints(task.__init__)
    for name, setting in fields.items():
        if name not in known:
            raise ConfigError(
                f"{setting.where}: {task.name} has no option {name!r}{nearest(name, known)}; "
                f"its options are {', '.join(known) or 'none'}"
            )
    return {name: convert(s.value, hints[name], s.where) for name, s in fields.items()}
