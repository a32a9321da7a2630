"""Specs of cores: a name, a config, a mapping of name and fields, or a factory.

Configs that hold other cores (``stack``, ``pmm``) resolve their parts here. They cannot import the catalogue
that lists them, so ``recollect.config.cores`` fills ``known``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from recollect.errors import ConfigError, nearest

known: dict[str, Callable[[], Any]] = {}
"""The catalogue: makes a config, by the name of the core or of a preset."""


def core_config(name: str) -> Any:
    """The config that ``name`` stands for."""
    if name not in known:
        hint = nearest(name, known)
        raise ConfigError(f"no core is called {name!r}{hint}: the cores are {', '.join(sorted(known))}")
    return known[name]()


def as_config(spec: Any, hidden: int | None = None) -> Any:
    """``spec`` itself; but a mapping such as ``{"name": "gru", "hidden": 64}`` becomes a config.

    ``hidden``: the width of the core that contains it, for a mapping without a width.
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
    if "hidden" not in fields:
        start = widened(start, hidden)
    return dataclasses.replace(start, **fields)


def part_config(spec: Any, hidden: int) -> Any:
    """The spec of a part inside a core of this width: a name becomes a config as wide as the whole."""
    return widened(core_config(spec), hidden) if isinstance(spec, str) else spec


def widened(config: Any, hidden: int | None) -> Any:
    """The config with this width, if it has one and ``hidden`` is given."""
    has_width = hidden is not None and any(field.name == "hidden" for field in dataclasses.fields(config))
    return dataclasses.replace(config, hidden=hidden) if has_width else config


def name_of(spec: Any) -> str | None:
    """The name of the core that a config belongs to; None for anything else."""
    return next((name for name, kind in known.items() if kind is type(spec)), None)


def reaching(spec: Any, steps: int) -> Any:
    """``spec`` initialised so that it can remember over ``steps`` steps, where its config supports that."""
    config = core_config(spec) if isinstance(spec, str) else spec
    method = getattr(config, "reaching", None)
    return spec if method is None else method(steps)
