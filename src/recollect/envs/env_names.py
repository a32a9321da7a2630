"""Envs by name: a built-in task, a Gymnasium id, or ``module:attr``.

``my_package.worlds:MyEnv`` imports the module and takes the Env class or the function that makes an env;
``worlds.py:MyEnv`` does the same with a file. ``module:Env-v0``, with a version, is Gymnasium's syntax to
import a module that registers ids.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from recollect.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class Portable:
    """An env name or callable, with the registry entries that another process needs."""

    env: Any
    specs: tuple[EnvSpec, ...] = ()
    """Entries of Gymnasium's registry, which a script fills in its own process only."""


def portable(env: Any) -> Portable:
    """Prepare ``env``, a name or a callable, for another process. Sent by cloudpickle."""
    if not isinstance(env, str):
        return Portable(env)
    source, _, attr = env.rpartition(":")
    if source.endswith(".py"):
        return Portable(f"{Path(source).resolve()}:{attr}")
    if source and not _is_versioned(attr):
        return Portable(env)
    # All versions: a name without a version means the newest.
    stem = attr.split("-v")[0]
    return Portable(env, tuple(_by_value(s) for s in gym.registry.values() if s.id.split("-v")[0] == stem))


def restored(given: Portable) -> Any:
    """In the other process: the name or callable that ``portable`` was called with."""
    for spec in given.specs:
        gym.registry[spec.id] = spec
    return given.env


def _by_value(spec: EnvSpec) -> EnvSpec:
    """The spec with the class itself if its entry point is in ``__main__``, which differs by process."""
    if isinstance(spec.entry_point, str) and spec.entry_point.startswith("__main__:"):
        return replace(spec, entry_point=load_env_creator(spec.entry_point))
    return spec


def is_importing(name: str) -> bool:
    """Whether this env name imports a module or file."""
    return ":" in name


def resolve_env(name: str) -> str | Callable[..., Any]:
    """The name itself, or the callable that ``module:attr`` names."""
    if not is_importing(name):
        return name
    source, _, attr = name.rpartition(":")
    if not source or not attr:
        raise ConfigError(f"the env {name!r} is neither a name nor 'module:attr': a side of ':' is empty")
    is_file = source.endswith(".py")
    # As with `python -m`: modules in the current folder can be imported.
    _put_on_path(Path.cwd())
    if _is_versioned(attr):
        if not is_file:
            return name
        _load_file(Path(source), name)
        return attr
    module = _load_file(Path(source), name) if is_file else _load_module(source, name)
    return _attribute(module, attr, name)


def _is_versioned(attr: str) -> bool:
    return re.search(r"-v\d+$", attr) is not None


def _put_on_path(folder: Path) -> None:
    if not {"", str(folder)} & set(sys.path):
        sys.path.insert(0, str(folder))


def _load_module(source: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{source}.".startswith(f"{error.name}."):
            raise ConfigError(_failed(source, name, error)) from error
        raise ConfigError(
            f"the env {name!r}: there is no module {error.name!r} in {Path.cwd()} or among the installed "
            "packages: run from the folder that holds it, or give a file, 'path/to/file.py:attr'"
        ) from None
    except Exception as error:
        raise ConfigError(_failed(source, name, error)) from error


def _load_file(path: Path, name: str) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise ConfigError(f"the env {name!r}: there is no file {path}")
    for module_name in (path.stem, f"_env_{path.stem}"):  # a file may be called random.py
        known = sys.modules.get(module_name)
        if known is None:
            break
        file = getattr(known, "__file__", None)
        if file is not None and Path(file).resolve() == path:
            return known
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"the env {name!r}: {path} cannot be imported")
    _put_on_path(path.parent)  # as for a script: its neighbours can be imported
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise ConfigError(_failed(path.name, name, error)) from error
    return module


def _failed(source: str, name: str, error: Exception) -> str:
    """The error message, with the last line of the traceback, which is in the user's code."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    at = f"{error.filename}, line {error.lineno}" if isinstance(error, SyntaxError) else None
    return (
        f"the env {name!r}: importing {source} failed with {type(error).__name__}: {error} "
        f"({at or f'{last.filename}, line {last.lineno}'})"
    )


def _attribute(module: ModuleType, attr: str, name: str) -> Callable[..., Any]:
    found: Any = module
    for part in attr.split("."):
        if not hasattr(found, part):
            owner = getattr(found, "__name__", attr)
            public = [other for other in dir(found) if not other.startswith("_")]
            raise ConfigError(f"the env {name!r}: {owner} has no {part!r}{nearest(part, public)}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(
            f"the env {name!r} is of type {type(found).__name__}: it must be an Env class, or a "
            "function that makes a new env in each call"
        )
    return found


def display_name(env: Any) -> str | None:
    """The name or id of an env, or the name of the class or function that makes it."""
    if env is None or isinstance(env, str):
        return env
    if isinstance(env, functools.partial):
        return display_name(env.func)
    spec_id = getattr(getattr(env, "spec", None), "id", None)
    if spec_id is not None:
        return str(spec_id)
    name = env.__name__ if callable(env) and hasattr(env, "__name__") else type(env).__name__
    return None if name == "<lambda>" else name
