"""Config files: the settings of a run as TOML or YAML, under the names of flags and keywords.

env: delayed-cue
steps: 300k
learning_rate: 3e-4        # flat, as in recollect.train ...
algo: {gamma: 0.995}       # ... or in its section
core: {name: gru, hidden: 256}
task: {horizon: 100}
"""

from __future__ import annotations

import textwrap
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from recollect.base.parts import import_parts
from recollect.config.convert import Loader, to_yaml
from recollect.config.fields import fields_of
from recollect.config.policy import EncoderConfig
from recollect.config.serialise import CUSTOM, config_to_json
from recollect.config.settings import NAMED, SECTIONS, Layer, Setting, build
from recollect.config.train import TrainConfig
from recollect.errors import ConfigError

SUFFIXES = (".toml", ".yaml", ".yml")
_COMMENTS_FROM = 34
"""The column where comments start, if the value leaves room."""
_COMMENT_WIDTH = 80


def read_config(path: str | Path) -> dict[str, Any]:
    """The settings of a file as keywords of ``recollect.train``, ``env`` among them if the file has it.

    Example:
        >>> rc.train(**read_config("runs/cue/config.yaml"))  # doctest: +SKIP
    """
    import_parts(file_imports(path))
    built = build([read_layer(path)])
    for note in built.notes:
        warnings.warn(note, UserWarning, stacklevel=2)
    env = {} if built.env is None else {"env": built.env}
    return env | built.given | ({} if built.use_preset else {"preset": False})


def read_layer(path: str | Path) -> Layer:
    """The settings of a file as they are written, for ``settings.build``."""
    layer = Layer()
    for name, value in _flat(_parse(Path(path)), str(path)):
        # Options of an env are its keyword arguments and keep their spelling.
        ours = name if name.startswith("task.") else name.replace("-", "_")
        layer.add(ours, Setting(value, name, str(path)))
    return layer


def file_imports(path: str | Path) -> list[str]:
    """The modules that a file names by ``imports``, before its other settings can be understood."""
    found = _parse(Path(path)).get("imports") or []
    return [found] if isinstance(found, str) else [str(name) for name in found]


def write_config(
    path: str | Path, config: TrainConfig, env: Any = None, *, made_by: str | None = None
) -> Path:
    """Write every setting of ``config`` to a YAML file, each with its docstring.

    Reading it back gives an equal config, except for ``run``: a run from the file gets its own folder.
    Anything made by Python code is written as ``custom``, which cannot be read back: an ``env`` that is not a
    name, or a network whose factory has no name. ``made_by``: as in ``config_to_json``.
    """
    path = Path(path)
    path.write_text(config_text(config, env, made_by=made_by), encoding="utf-8")
    return path


def config_text(config: TrainConfig, env: Any = None, *, made_by: str | None = None) -> str:
    """The text that ``write_config`` writes."""
    return "\n".join(_lines(config, env, made_by)) + "\n"


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


def _flat(data: dict[Any, Any], source: str, section: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values; the settings of a section one by one."""
    for key, value in data.items():
        if not isinstance(key, str):
            raise ConfigError(f"{source}: {key!r} is no name of a setting: put it in quotes if it is one")
        if section or key not in SECTIONS:
            yield (f"{section}.{key}" if section else key), value
        elif isinstance(value, dict):
            yield from _flat(value, source, key)
        elif key in NAMED and (value is not None or key in ("core", "encoder", "head")):
            yield key, value
        elif value == CUSTOM:
            raise ConfigError(
                f"{source}: {key}: custom stands for options made by Python code, which a file cannot hold: "
                "remove the line and set what you need, or train from Python"
            )
        elif value is not None:
            more = "; the name of the env goes into env" if key == "task" else ""
            raise ConfigError(f"{source}: {key} is a section: give it names and values{more}")


# Writing -------------------------------------------------------------------------------------------------


def _lines(config: TrainConfig, env: Any, made_by: str | None) -> Iterator[str]:
    data = config_to_json(config, config.policy, made_by=made_by)
    network, algo, options = data.pop("policy"), data.pop("algo"), data.pop("env_kwargs")
    player = {"name": data.pop("vs")} | data.pop("vs_kwargs")
    yield "# Every setting of a run, for `recollect train --config FILE`; flags go on top."
    if isinstance(env, str):
        yield _line("env", env, "The env.")
    else:
        yield _line("env", None, "It was made by Python code: name one here or on the command line.")
    yield _line("preset", False, "The choices of a preset are written below.")
    docs = _docs(config)
    for name, value in data.items():
        if name == "run":
            yield "# run: left out, so that every run gets its own folder"
        else:
            yield _line(name, value, docs[name])
    try:
        yield from list(_section("task", options, {}, "Options of the env."))
    except yaml.YAMLError:
        yield _line("task", CUSTOM, "Options made by Python code.")
    docs_of_player = dict.fromkeys(player, "") | {"name": docs["vs"]}
    yield from _section("vs", player if player["name"] else None, docs_of_player, docs["vs"])
    yield from _section("algo", algo, _docs(config.algo), "The algorithm.")
    if (factory := network.pop("policy")) is not None:
        yield _line("policy", factory, "A factory in Python made the network.")
        return
    core, encoder, head = (network.pop(part) for part in ("core", "encoder", "head"))
    if isinstance(config.policy.encoder, EncoderConfig):
        del encoder["name"]
    yield from _section("policy", network, _docs(config.policy), "")
    yield from _section("core", core, _docs(config.policy.core), "The memory.")
    yield from _section("encoder", encoder, _docs(config.policy.encoder), "How observations become features.")
    yield from _section("head", head, _docs(config.policy.head), "How the memory's output becomes actions.")


def _docs(config: Any) -> dict[str, str]:
    """The comments of a config's fields; none for a name or a factory."""
    if not hasattr(config, "__dataclass_fields__"):
        return {}
    return {field.name: field.short_doc for field in fields_of(config)}


def _section(section: str, values: Any, docs: dict[str, str], doc: str) -> Iterator[str]:
    """A section with a line for each setting; one line for a name alone, and for no settings."""
    if not isinstance(values, dict) or not values:
        yield _line(section, values, doc)
        return
    yield f"{section}:"
    for name, value in values.items():
        yield _line(name, value, doc if name == "name" and docs else docs.get(name, ""), indent=2)


def _line(name: str, value: Any, doc: str, indent: int = 0) -> str:
    value = list(value) if isinstance(value, tuple) else value
    text = f"{' ' * indent}{to_yaml(name)}: {to_yaml(value)}"
    short = textwrap.shorten(doc, _COMMENT_WIDTH, placeholder=" ...")
    return f"{text:<{_COMMENTS_FROM}}  # {short}" if doc else text
