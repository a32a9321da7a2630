"""Specs of cores: a name, a config, a mapping of name and fields, or a factory.

Two cores contain other cores, each given by a spec: ``pmm`` and ``stack``. Their settings are here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from recollect.base import parts
from recollect.config import cores
from recollect.config.cores import CoreConfig
from recollect.config.fields import check_names, field_names
from recollect.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class PMMConfig(CoreConfig):
    """Settings of the core with an external memory."""

    code = "recollect.cores.pmm:PMM"
    at_least_1 = ("hidden", "slots", "width", "read_heads")

    hidden: int = 128
    """Size of the output, and of a controller that is given by name."""
    slots: int = 16
    """Number of memory slots."""
    width: int = 32
    """Size of a slot."""
    read_heads: int = 1
    """Reads per step."""
    controller: Any = "lstm"
    """The core that reads and writes: a name, a config, a mapping such as {name: gru, hidden: 64}, or a
    factory. With none, the external memory is the only one."""
    erase_bias: float = 0.0
    """Initial bias of the erase gate; a negative one remembers for longer."""

    def __post_init__(self) -> None:
        CoreConfig.__post_init__(self)
        object.__setattr__(self, "controller", as_config(self.controller, self.hidden))

    def reaching(self, steps: int) -> PMMConfig:
        """With a controller that reaches that far, and writes that initially leave 1/e after ``steps``."""
        share = min(0.5, self.slots / max(steps, 1))  # an undecided write reaches every slot by 1 / slots
        bias = min(self.erase_bias, math.log(share / (1 - share)))
        return replace(self, controller=reaching(self.part(), steps), erase_bias=bias)

    def part(self) -> Any:
        """The controller's spec: a name becomes a config of this width."""
        return part_config(self.controller, self.hidden)


@dataclass(frozen=True, slots=True)
class StackConfig(CoreConfig):
    """Settings of a stack of cores."""

    code = "recollect.cores.stack:Stack"
    at_least_1 = ("hidden",)

    cores: tuple[Any, ...] = ("gru", "gru")
    """The cores, first to last: names, configs, mappings such as {name: gru, hidden: 64}, or factories."""
    hidden: int = 128
    """Width of the stream between the cores, of cores that are given by name, and of the output."""
    residual: bool = True
    """Whether every core adds to the stream; otherwise each one replaces it."""
    layer_norm: bool = True
    """Whether the input of every core and the output are normalised."""

    def __post_init__(self) -> None:
        CoreConfig.__post_init__(self)
        if not self.cores:
            raise ConfigError("core.cores is empty: give a list such as ('mamba', 'gru')")
        object.__setattr__(self, "cores", tuple(as_config(core, self.hidden) for core in self.cores))

    def reaching(self, steps: int) -> StackConfig:
        """With every core that has ``reaching`` made to reach that far."""
        return replace(self, cores=tuple(reaching(part, steps) for part in self.parts()))

    def parts(self) -> list[Any]:
        """The spec of each core: a name becomes a config of this width."""
        return [part_config(core, self.hidden) for core in self.cores]


BUILT_IN: dict[str, type[CoreConfig]] = {
    "ffm": cores.FFMConfig,
    "frames": cores.FramesConfig,
    "gru": cores.GRUConfig,
    "lru": cores.LRUConfig,
    "lstm": cores.LSTMConfig,
    "mamba": cores.MambaConfig,
    "mingru": cores.MinGRUConfig,
    "minlstm": cores.MinLSTMConfig,
    "mlstm": cores.MLSTMConfig,
    "none": cores.NoneConfig,
    "pmm": PMMConfig,
    "rtu": cores.RTUConfig,
    "slstm": cores.SLSTMConfig,
    "stack": StackConfig,
    "window": cores.WindowConfig,
}
"""The config of every built-in core; all their fields have defaults."""
parts.add_built_in("core", {name: (config, config.code) for name, config in BUILT_IN.items()})
CORES = parts.Configs("core")
"""The config of every core by its name, including those that users register."""


def core_config(name: str) -> Any:
    """The config that ``name`` stands for."""
    if name not in known:
        hint = nearest(name, known)
        raise ConfigError(
            f"no core is called {name!r}{hint}: the cores are {', '.join(sorted(known))}; {parts.IF_OWN}"
        )
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
    check_names(f"the core {spec['name']}", type(start), fields)
    if "hidden" not in fields:
        start = widened(start, hidden)
    return replace(start, **fields)


def part_config(spec: Any, hidden: int) -> Any:
    """The spec of a part inside a core of this width: a name becomes a config as wide as the whole."""
    return widened(core_config(spec), hidden) if isinstance(spec, str) else spec


def widened(config: Any, hidden: int | None) -> Any:
    """The config with this width, if it has one and ``hidden`` is given."""
    has_width = hidden is not None and "hidden" in field_names(type(config))
    return replace(config, hidden=hidden) if has_width else config


def name_of(spec: Any) -> str | None:
    """The name of the core that a config belongs to; None for anything else."""
    return next((name for name, kind in known.items() if kind is type(spec)), None)


def reaching(spec: Any, steps: int) -> Any:
    """``spec`` initialised so that it can remember over ``steps`` steps, where its config supports that."""
    config = core_config(spec) if isinstance(spec, str) else spec
    method = getattr(config, "reaching", None)
    return spec if method is None else method(steps)


PRESETS: dict[str, CoreConfig] = {"mamba_gru": StackConfig(cores=("mamba", "gru"))}
"""Named settings of a core."""
known = parts.Configs(
    "core",
    {name: partial(replace, config) for name, config in PRESETS.items()},  # pyright: ignore
)
"""Makes a config, by the name of a core or of a preset."""
