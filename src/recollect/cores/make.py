"""From what a user gives, a name, a config, a mapping or a factory, to a core.

Cores that hold other cores (``stack``, ``pmm``) make their parts here as well. They may not import the
catalogue that lists them, so the catalogue hands itself over: ``recollect.cores`` fills ``known``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from recollect.cores.contract import Core
from recollect.errors import ConfigError, nearest


@runtime_checkable
class CoreConfig(Protocol):
    """The settings of a core, and how it is made from them.

    A config may also have ``reaching(steps) -> config``: the same, started so that it can remember over
    so many steps. The presets of tasks with a long memory use it.
    """

    def build(self, input_size: int) -> Core:
        """The core for inputs of ``input_size`` features."""
        ...


CoreSpec = str | CoreConfig | Mapping[str, Any] | Callable[[int], Core]
"""A name in ``CORES``, a config, a mapping of name and fields, or a factory that takes the input size."""

known: dict[str, Callable[[], CoreConfig]] = {}
"""The catalogue: a config by the name of the core, or of a preset."""


def core_config(name: str) -> CoreConfig:
    """The config that ``name`` stands for."""
    if name not in known:
        hint = nearest(name, known)
        raise ConfigError(f"no core is called {name!r}{hint}: the cores are {', '.join(sorted(known))}")
    return known[name]()


def as_config(spec: Any, hidden: int | None = None) -> Any:
    """``spec`` itself, but for a mapping ``{"name": "gru", "hidden": 64}``, which becomes a config.

    ``hidden``: the width of the core that it is a part of, for a mapping that says nothing about its own.
    """
    if not isinstance(spec, Mapping):
        return spec
    fields = dict(spec)
    if not isinstance(fields.get("name"), str):
        raise ConfigError(
            f"a core as a mapping needs a name, such as {{name: gru, hidden: 64}}: got {fields}"
        )
    start: Any = core_config(fields.pop("name"))
    names = [field.name for field in dataclasses.fields(start)]
    for name in fields:
        if name not in names:
            raise ConfigError(
                f"the core {spec['name']} has no setting {name!r}{nearest(str(name), names)}; "
                f"it has {', '.join(names) or 'none'}"
            )
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    if "hidden" not in values:
        start = widened(start, hidden)
    return dataclasses.replace(start, **values)


def part_config(spec: Any, hidden: int) -> Any:
    """What a part of a core of this width is made from: a name stands for a config as wide as the whole."""
    return widened(core_config(spec), hidden) if isinstance(spec, str) else spec


def widened(config: Any, hidden: int | None) -> Any:
    """The config with this width, if it has one and one is asked for."""
    has_width = hidden is not None and any(field.name == "hidden" for field in dataclasses.fields(config))
    return dataclasses.replace(config, hidden=hidden) if has_width else config


def check_part(owner: object, field: str, spec: Any) -> None:
    """Raise unless ``spec`` is something that a core can be made from."""
    if isinstance(spec, str):
        core_config(spec)  # raises for an unknown name
    elif not isinstance(spec, CoreConfig) and not callable(spec):
        raise ConfigError(
            f"{type(owner).__name__}: {field} is {spec!r}; it needs a core: a name, a config, a mapping such "
            f"as {{name: gru, hidden: 64}}, or a factory. The names are {', '.join(sorted(known))}"
        )


def as_mapping(spec: Any) -> Any:
    """The inverse of ``as_config``, for files: None where a part is made by code, which no file holds."""
    if isinstance(spec, str):
        return spec
    name = name_of(spec)
    if name is None:
        return None
    found: dict[str, Any] = {"name": name}
    for field in dataclasses.fields(spec):
        value = plain(getattr(spec, field.name))
        if value is None and getattr(spec, field.name) is not None:
            return None
        found[field.name] = value
    return found


def plain(value: Any) -> Any:
    """The value of a core's field with configs of other cores as mappings; None where one is code."""
    if isinstance(value, tuple):
        parts = [plain(part) for part in value]
        return None if None in parts else parts
    if isinstance(value, CoreConfig) or callable(value):
        return as_mapping(value)
    return value


def name_of(spec: Any) -> str | None:
    """The name of the core that a config belongs to; None for anything else."""
    return next((name for name, kind in known.items() if kind is type(spec)), None)


def make_core(spec: CoreSpec, input_size: int) -> Core:
    """The core that ``spec`` describes, for inputs of ``input_size`` features."""
    spec = as_config(spec)
    if isinstance(spec, str):
        spec = core_config(spec)
    if isinstance(spec, type) and hasattr(spec, "build"):
        raise ConfigError(f"core is the class {spec.__name__}: pass an object, {spec.__name__}(...)")
    core: Any
    if isinstance(spec, CoreConfig):
        core = spec.build(input_size)
    elif callable(spec):
        core = spec(input_size)
    else:
        raise ConfigError(
            f"core is a {type(spec).__name__}; it needs a name ({', '.join(sorted(known))}), a config "
            "such as LSTMConfig(hidden=128), or a factory that takes the input size"
        )
    if not isinstance(core, Core):
        raise ConfigError(f"the core factory made a {type(core).__name__}; it needs to make a Core")
    return core


def reaching(spec: Any, steps: int) -> Any:
    """``spec`` started so that it can remember over ``steps`` steps, where it knows how."""
    config = core_config(spec) if isinstance(spec, str) else spec
    method = getattr(config, "reaching", None)
    return spec if method is None else method(steps)
