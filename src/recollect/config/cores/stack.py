"""The settings of a stack of cores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from recollect.config.cores.base import CoreConfig
from recollect.config.cores.specs import as_config, part_config, reaching
from recollect.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StackConfig(CoreConfig):
    """Settings of a stack of cores."""

    code = "recollect.cores.stack:Stack"

    cores: tuple[Any, ...] = ("gru", "gru")
    """The cores, first to last: names, configs, mappings such as {name: gru, hidden: 64}, or factories."""
    hidden: int = 128
    """Width of the stream between the cores, of cores that are given by name, and of the output."""
    residual: bool = True
    """Whether every core adds to the stream; otherwise each one replaces it."""
    layer_norm: bool = True
    """Whether the input of every core and the output are normalised."""

    def __post_init__(self) -> None:
        self.check("hidden")
        if not self.cores:
            raise ConfigError("core.cores is empty: give a list such as ('mamba', 'gru')")
        object.__setattr__(self, "cores", tuple(as_config(core, self.hidden) for core in self.cores))

    def reaching(self, steps: int) -> StackConfig:
        """With every core that has ``reaching`` made to reach that far."""
        return replace(self, cores=tuple(reaching(part, steps) for part in self.parts()))

    def parts(self) -> list[Any]:
        """The spec of each core: a name becomes a config of this width."""
        return [part_config(core, self.hidden) for core in self.cores]
