"""Parts of a run by kind and name: those that are built in, and those that users register.

A built-in part names its code, which is imported when it is first used, so that help needs no torch. A part
of the user's own is registered (``recollect.register``) when its module is imported: by Python, by
``--import MODULE``, or in another process by unpickling ``Carried``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from recollect.base.import_code import import_module
from recollect.base.registry import load
from recollect.errors import ConfigError

NONE_YET: Mapping[str, Any] = MappingProxyType({})
IF_OWN = "if it is your own: --import MODULE (in Python, import its module first)"
"""The end of an error about a name that is not known."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its settings and its code."""

    kind: str
    """A key of ``PARTS``."""
    name: str
    config: Any
    """The class of its settings, or a function that makes them; None: it has none."""
    code: Any
    """A class, function or object; of a built-in part its name, ``module:attribute`` or ``module``."""
    source: str | None = None
    """The module or file that registers it; None: it is built in, or ``__main__`` registers it."""
    accepts: type | None = None
    """The type of the objects that an env adapter takes, beside names."""
    is_own: bool = False
    """Whether a user has registered it."""

    def load(self) -> Any:
        """Its code, imported if necessary."""
        return load(self.code) if isinstance(self.code, str) else self.code


PARTS: dict[str, dict[str, Part]] = {
    kind: {} for kind in ("core", "algo", "encoder", "head", "env", "runtime")
}
"""All parts by kind and name."""
_imported: dict[str, None] = {}
"""What ``import_parts`` has imported, in order, with the whole paths of files."""
_importing: list[str] = []


class Configs(Mapping[str, Any]):
    """The settings of all parts of a kind by name; parts that are registered later appear here, too."""

    def __init__(self, kind: str, more: Mapping[str, Callable[[], Any]] = NONE_YET):
        """``more``: other names of settings, such as presets."""
        self._parts, self._more = PARTS[kind], more

    def __getitem__(self, name: str) -> Any:
        return self._parts[name].config if name in self._parts else self._more[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._parts
        yield from self._more

    def __len__(self) -> int:
        return len(self._parts) + len(self._more)


def add_built_in(kind: str, codes: Mapping[str, tuple[Any, str]]) -> None:
    """Add built-in parts, given by name as their settings and the name of their code."""
    PARTS[kind] |= {name: Part(kind, name, config, code) for name, (config, code) in codes.items()}


def own_parts() -> list[Part]:
    """The parts that users have registered, of all kinds."""
    return [part for parts in PARTS.values() for part in parts.values() if part.is_own]


def part_of(kind: str, config: Any) -> Part | None:
    """The part that a config belongs to; None if there is none."""
    return next((part for part in PARTS[kind].values() if part.config is type(config)), None)


def import_parts(sources: Iterable[str]) -> None:
    """Import modules and files that register parts. Only names that the user has given, or has trusted."""
    for source in sources:
        if not source or ":" in source:
            raise ConfigError(
                f"--import {source}: give a module or a file, such as my_parts or path/to/my_parts.py"
            )
        _importing.append(source)
        try:
            import_module(source, source, "import")
        finally:
            _importing.pop()
        _imported[str(Path(source).resolve()) if source.endswith(".py") else source] = None


def current_source(module: str) -> str | None:
    """The name under which code of ``module``, which is being imported, can be imported again."""
    return _importing[0] if _importing else None if module == "__main__" else module


class Carried:
    """All registered parts, for another process: unpickling this imports and registers them there."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (_Imports(), own_parts())  # unpickled in this order: parts refer to their modules


class _Imports:
    def __reduce__(self) -> tuple[Any, ...]:
        return import_parts, (list(_imported),)


def _receive(_: None, parts: list[Part]) -> None:
    for part in parts:
        PARTS[part.kind].setdefault(part.name, part)
