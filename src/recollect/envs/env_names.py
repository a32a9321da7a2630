"""Envs by name: a built-in task, a Gymnasium id, ``module:attr``, or ``NAME/SOURCE`` of a registered adapter.

``my_package.worlds:MyEnv`` imports the module and takes the Env class or the function that makes an env;
``worlds.py:MyEnv`` does the same with a file. ``module:Env-v0``, with a version, is Gymnasium's syntax to
import a module that registers ids.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from recollect.base.import_code import absolute, import_attribute, import_module, is_importing, put_on_path
from recollect.base.parts import PARTS


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
    if source.endswith(".py") or (source and not _is_versioned(attr)):
        return Portable(absolute(env))
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


def adapted(env: Any) -> Any:
    """The callable that makes an env of a registered adapter, by ``NAME/SOURCE`` or by the type of an object.

    Any other ``env`` is returned unchanged.
    """
    name, slash, source = env.partition("/") if isinstance(env, str) else ("", "", env)
    for part in PARTS["env"].values():
        if (slash and part.name == name) or (part.accepts is not None and isinstance(env, part.accepts)):
            usual = None if part.config is None else part.config()
            options = {} if usual is None else {f.name: getattr(usual, f.name) for f in fields(usual)}
            return functools.partial(part.load(), source, **options)
    return env


def resolve_env(name: str) -> str | Callable[..., Any]:
    """The name itself, or the callable that ``module:attr`` names."""
    if not is_importing(name):
        return name
    source, _, attr = name.rpartition(":")
    if not source or not attr or not _is_versioned(attr):
        fix = "it must be an Env class, or a function that makes a new env in each call"
        return import_attribute(name, "env", fix)
    if not source.endswith(".py"):
        put_on_path(Path.cwd())
        return name
    import_module(source, name, "env")
    return attr


def _is_versioned(attr: str) -> bool:
    return re.search(r"-v\d+$", attr) is not None


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
