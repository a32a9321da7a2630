"""Config files: a run's settings as TOML or YAML, with the names that flags and keywords have too.

env: delayed-cue
steps: 300k
learning_rate: 3e-4        # flat, as in recollect.train ...
algo: {gamma: 0.995}       # ... or in its section
core: {name: gru, hidden: 256}
task: {horizon: 100}
"""

from __future__ import annotations

import dataclasses
import textwrap
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from recollect.algos.catalog import ALGOS, algo_name
from recollect.config import field_docs
from recollect.config.convert import Loader, to_yaml
from recollect.config.plain import CUSTOM
from recollect.config.settings import NAMED, SECTIONS, SYNONYMS, Layer, Setting, build, own_fields
from recollect.config.train import TrainConfig
from recollect.cores.make import as_mapping, name_of, plain
from recollect.errors import ConfigError
from recollect.policy.encoders import EncoderConfig
from recollect.policy.policy import PolicyConfig

SUFFIXES = (".toml", ".yaml", ".yml")
_COMMENTS_FROM = 34
"""The column where comments start, if the value leaves room."""
_COMMENT_WIDTH = 80


def read_config(path: str | Path) -> dict[str, Any]:
    """The settings of a file by the names that ``recollect.train`` takes, ``env`` among them if it is there.

    Example:
        >>> rc.train(**read_config("runs/cue/config.yaml"))  # doctest: +SKIP
    """
    built = build([read_layer(path)])
    for note in built.notes:
        warnings.warn(note, UserWarning, stacklevel=2)
    env = {} if built.env is None else {"env": built.env}
    return env | built.given | ({} if built.use_preset else {"preset": False})


def read_layer(path: str | Path) -> Layer:
    """The settings of a file as they are written, for ``settings.build``."""
    layer = Layer()
    for name, value in _flat(_parse(Path(path)), "", str(path)):
        # Options of an env are somebody's keyword arguments: they stay as they are.
        is_option = name.rpartition(".")[0] in ("task", "env_kwargs", "env")
        layer.add(name if is_option else name.replace("-", "_"), Setting(value, name, str(path)))
    return layer


def write_config(
    path: str | Path, config: TrainConfig, env: Any = None, *, custom_policy: bool = False
) -> Path:
    """Write every setting of ``config`` to a YAML file, each with what it means.

    Reading it back gives an equal config, but for ``run``: a run that is made from the file has a folder
    of its own. Whatever was made by Python code is written as ``custom``, which reading refuses.

    Args:
        path: the file.
        config: what to write.
        env: the env's name; anything else is code.
        custom_policy: whether the network was made by a factory and not from ``config.policy``.
    """
    path = Path(path)
    path.write_text(config_text(config, env, custom_policy=custom_policy), encoding="utf-8")
    return path


def config_text(config: TrainConfig, env: Any = None, *, custom_policy: bool = False) -> str:
    """What ``write_config`` writes."""
    return "\n".join(_lines(config, env, custom_policy)) + "\n"


# Reading -------------------------------------------------------------------------------------------------


def _parse(path: Path) -> dict[Any, Any]:
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: a config file ends in {', '.join(SUFFIXES)}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file (looked in {path.parent.resolve()})") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    try:
        if path.suffix.lower() == ".toml":
            return tomllib.loads(text)
        data = yaml.load(text, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = "" if mark is None else f" line {mark.line + 1}, column {mark.column + 1}:"
        raise ConfigError(f"{path}:{at} this is no YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: this is no YAML: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: this is no TOML: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path}: it holds a {type(data).__name__}: it needs names and values, 'steps: 300k'"
        )
    return data


def _flat(data: dict[Any, Any], section: str, source: str) -> Iterator[tuple[str, Any]]:
    """Dotted names and values; a section is looked into, the value of a setting is not."""
    for key, value in data.items():
        if not isinstance(key, str):
            raise ConfigError(f"{source}: {key!r} is no name of a setting: put it in quotes if it is one")
        name = f"{section}.{key}" if section else key
        home = SYNONYMS.get(name, name)
        is_section = home in SECTIONS and section != "task"
        is_value = not isinstance(value, dict)
        is_name = name in ("env", "policy") or (home in NAMED and name not in ALGOS)
        if name == "algo" and value is None:
            continue  # a section that is still empty
        if not is_section or (is_value and is_name):
            yield name, value
        elif not is_value:
            yield from _flat(value, name, source)
        elif value == CUSTOM:
            raise ConfigError(
                f"{source}: {name}: custom stands for what Python code made, which a file cannot hold: take "
                "the line out and set what you need, or train from Python"
            )
        elif value is not None:
            more = "; the name of the env goes into env" if home == "task" else ""
            raise ConfigError(f"{source}: {name} is a section: give it names and values{more}")


# Writing -------------------------------------------------------------------------------------------------


def _lines(config: TrainConfig, env: Any, custom_policy: bool) -> Iterator[str]:
    yield "# Every setting of a run, for `recollect train --config FILE`; flags go on top."
    if isinstance(env, str):
        yield _line("env", env, "The world.")
    else:
        yield _line("env", None, "It was made by Python code: name one here or on the command line.")
    # The presets' choices stand here already; one more would change the run.
    yield _line("preset", False, "What a preset chose is written below.")
    docs = {field.name: field.short_doc for field in field_docs.config_fields("")}
    for name in own_fields():
        if name == "run":
            yield "# run: left out, so that every run gets a folder of its own"
        else:
            yield _line(name, getattr(config, name), docs.get(name, ""))
    yield from _task_lines(config.env_kwargs)
    yield "algo:"
    algo = algo_name(config.algo)
    yield _line("name", algo, "The algorithm.", indent=2)
    yield from _fields(config.algo, field_docs.config_fields(algo))
    if custom_policy:
        yield _line("policy", CUSTOM, "A factory in Python made the network.")
        return
    yield from _policy_lines(config.policy)


def _policy_lines(policy: PolicyConfig) -> Iterator[str]:
    yield from _section("policy", policy, skip=("encoder", "core", "head"))
    core = policy.core
    name = name_of(core)
    if isinstance(core, str):
        yield _line("core", core, "What carries over time.")
    elif name is None or as_mapping(core) is None:
        yield _line("core", CUSTOM, "A factory in Python made it.")
    else:
        yield "core:"
        yield _line("name", name, "What carries over time.", indent=2)
        yield from _fields(core, field_docs.cores()[name].fields)
    if isinstance(policy.encoder, EncoderConfig):
        yield from _section("encoder", policy.encoder)
    elif policy.encoder is None or isinstance(policy.encoder, str):
        yield _line("encoder", policy.encoder, "auto, mlp or conv; null: auto.")
    else:
        yield _line("encoder", CUSTOM, "A factory in Python made it.")
    yield from _section("head", policy.head)


def _task_lines(options: dict[str, Any]) -> Iterator[str]:
    if not options:
        yield _line("task", {}, "Options of the env.")
        return
    try:
        lines = [_line(name, value, "", indent=2) for name, value in options.items()]
    except yaml.YAMLError:
        yield _line("task", CUSTOM, "Options that only Python code can make.")
        return
    yield "task:  # Options of the env."
    yield from lines


def _section(section: str, config: Any, skip: tuple[str, ...] = ()) -> Iterator[str]:
    yield f"{section}:"
    yield from _fields(config, [f for f in field_docs.config_fields(section) if f.name not in skip])


def _fields(config: Any, docs: list[field_docs.Field]) -> Iterator[str]:
    known = {doc.name: doc.short_doc for doc in docs}
    for field in dataclasses.fields(config):
        if field.name in known:
            yield _line(field.name, getattr(config, field.name), known[field.name], indent=2)


def _line(name: str, value: Any, doc: str, indent: int = 0) -> str:
    text = f"{' ' * indent}{to_yaml(name)}: {to_yaml(plain(value))}"
    short = textwrap.shorten(doc, _COMMENT_WIDTH, placeholder=" ...")
    return f"{text:<{_COMMENTS_FROM}}  # {short}" if doc else text
