"""Code that a user names: ``package.module:attribute``, or ``path/to/file.py:attribute``.

Envs, wrappers, cores, encoders and policies of the user's own are named so. Only a name that the user has
given, or has trusted, may come here: it is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from recollect.errors import ConfigError, nearest


def is_importing(name: Any) -> bool:
    """Whether ``name`` is a text that names code: a module or file, and an attribute of it."""
    return isinstance(name, str) and ":" in name


def import_attribute(name: str, what: str, fix: str) -> Callable[..., Any]:
    """The class or function that ``module:attribute`` names.

    Args:
        name: the name.
        what: its role, such as "env", for errors.
        fix: the end of the error if it cannot be called.
    """
    source, _, attr = name.rpartition(":")
    if not source or not attr:
        raise ConfigError(f"the {what} {name!r} is neither a name nor 'module:attr': a side of ':' is empty")
    found: Any = import_module(source, name, what)
    for part in attr.split("."):
        if not hasattr(found, part):
            owner = getattr(found, "__name__", attr)
            public = [other for other in dir(found) if not other.startswith("_")]
            raise ConfigError(f"the {what} {name!r}: {owner} has no {part!r}{nearest(part, public)}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"the {what} {name!r} is of type {type(found).__name__}: {fix}")
    return found


def import_module(source: str, name: str, what: str) -> ModuleType:
    """The module or file ``source``; ``name`` and ``what`` are for errors."""
    # As with `python -m`: modules in the current folder can be imported.
    put_on_path(Path.cwd())
    text = f"the {what} {name!r}"
    if source.endswith(".py"):
        return _load_file(Path(source), text)
    return _load_module(source, text, ":attr" if is_importing(name) else "")


def put_on_path(folder: Path) -> None:
    """Let modules in ``folder`` be imported."""
    if not {"", str(folder)} & set(sys.path):
        sys.path.insert(0, str(folder))


def absolute(name: str) -> str:
    """The name with the whole path of its file, for a process with another current folder."""
    source, _, attr = name.rpartition(":")
    return f"{Path(source).resolve()}:{attr}" if source.endswith(".py") else name


def place(name: str) -> str | None:
    """The file or folder that ``name`` would be imported from, without importing it; None if there is none.

    Of a package it is the folder of its topmost one: finding a module inside would import the package.
    """
    source = name.rpartition(":")[0]
    if source.endswith(".py"):
        return str(Path(source).resolve()) if Path(source).is_file() else None
    here, top = str(Path.cwd()), source.partition(".")[0]
    path = [entry or here for entry in sys.path]
    try:
        spec = PathFinder.find_spec(top, path if here in path else [here, *path])
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    where = spec.origin or next(iter(spec.submodule_search_locations or ()), None)
    return None if where is None else str(Path(where).resolve())


def _load_module(source: str, text: str, attr: str) -> ModuleType:
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{source}.".startswith(f"{error.name}."):
            raise ConfigError(_failed(source, text, error)) from error
        raise ConfigError(
            f"{text}: there is no module {error.name!r} in {Path.cwd()} or among the installed "
            f"packages: run from the folder that holds it, or give a file, 'path/to/file.py{attr}'"
        ) from None
    except Exception as error:
        raise ConfigError(_failed(source, text, error)) from error


def _load_file(path: Path, text: str) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise ConfigError(f"{text}: there is no file {path}")
    for module_name in (path.stem, f"_env_{path.stem}"):  # a file may be called random.py
        known = sys.modules.get(module_name)
        if known is None:
            break
        file = getattr(known, "__file__", None)
        if file is not None and Path(file).resolve() == path:
            return known
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{text}: {path} cannot be imported")
    put_on_path(path.parent)  # as for a script: its neighbours can be imported
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise ConfigError(_failed(path.name, text, error)) from error
    return module


def _failed(source: str, text: str, error: Exception) -> str:
    """The error message, with the last line of the traceback, which is in the user's code."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    at = f"{error.filename}, line {error.lineno}" if isinstance(error, SyntaxError) else None
    return (
        f"{text}: importing {source} failed with {type(error).__name__}: {error} "
        f"({at or f'{last.filename}, line {last.lineno}'})"
    )
