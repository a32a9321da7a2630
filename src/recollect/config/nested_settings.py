"""Put settings into the config of a part, also of a part inside a part.

``core.hidden`` is a field of the core, ``core.controller.hidden`` a field of the core inside it, and
``core.cores.0.hidden`` a field of the first core of a stack.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from recollect.config.convert import convert
from recollect.config.core_choice import core_config
from recollect.config.fields import check_names, hints
from recollect.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Setting:
    """One value as it was written."""

    value: Any
    """Text from a flag, a plain value from a file."""
    written: str
    """The name as the user wrote it: ``--lr`` or ``algo.lr``."""
    source: str = ""
    """The file; empty for a flag."""

    @property
    def where(self) -> str:
        """The flag, or the file and the key, for errors."""
        return f"{self.source}: {self.written}" if self.source else self.written


def with_fields(part: str, config: Any, fields: dict[str, Setting]) -> Any:
    """``config`` with its own fields and those of its parts, such as ``controller.hidden``."""
    own = {name: setting for name, setting in fields.items() if "." not in name}
    config = dataclasses.replace(config, **part_values(part, type(config), own))
    for head, settings in _by_head(fields).items():
        if head not in hints(type(config)):
            check_names(f"{next(iter(settings.values())).where}: {part}", type(config), [head])  # raises
        value = getattr(config, head)
        if isinstance(value, tuple):
            new: Any = _each_with_fields(f"{part}: {head}", config.parts(), settings)
        else:
            whole = getattr(config, "part", None)  # a name stands for a config of the whole's width
            new = _inner_with_fields(f"{head} of {part}", value if whole is None else whole(), settings)
        config = dataclasses.replace(config, **{head: new})
    return config


def _by_head(fields: dict[str, Setting]) -> dict[str, dict[str, Setting]]:
    """Settings with a dot in their name, by the part before it."""
    found: dict[str, dict[str, Setting]] = {}
    for name, setting in fields.items():
        head, dot, rest = name.partition(".")
        if dot:
            found.setdefault(head, {})[rest] = setting
    return found


def _each_with_fields(part: str, cores: list[Any], settings: dict[str, Setting]) -> tuple[Any, ...]:
    """The cores of a stack, the fields of each under its number."""
    numbers = [str(i) for i in range(len(cores))]
    for name, setting in settings.items():
        number, _, rest = name.partition(".")
        if number not in numbers or not rest:
            raise ConfigError(
                f"{setting.where}: {part} has numbers from 0 to {len(cores) - 1}, such as "
                f"{as_written('core.cores.0.hidden', setting)}"
            )
    by_number = _by_head(settings)
    return tuple(
        _inner_with_fields(f"{part}[{i}]", core, by_number[i]) if i in by_number else core
        for i, core in zip(numbers, cores)
    )


def _inner_with_fields(part: str, spec: Any, settings: dict[str, Setting]) -> Any:
    config = core_config(spec) if isinstance(spec, str) else spec
    if not dataclasses.is_dataclass(config):
        first = next(iter(settings.values()))
        raise ConfigError(f"{first.where}: {part} is a factory or no core, and has no settings")
    return with_fields(part, config, settings)


def part_values(part: str, kind: type, fields: dict[str, Setting], what: str = "setting") -> dict[str, Any]:
    """The values of ``fields``, converted to the types of ``kind``; ``part`` and ``what`` are for errors."""
    for name, setting in fields.items():
        check_names(f"{setting.where}: {part}", kind, [name], what)
    return {name: convert(s.value, hints(kind)[name], s.where) for name, s in fields.items()}


def as_written(path: str, setting: Setting) -> str:
    """``path`` as its source would write it: a flag has dashes."""
    return path if setting.source else f"--{path.replace('_', '-')}"
