"""Cores: what carries over time. ``make_core("lstm", input_size)`` builds one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from recollect.cores.base import Core
from recollect.cores.gru import GRU, GRUConfig
from recollect.cores.lstm import LSTM, LSTMConfig
from recollect.cores.none import NoMemory, NoneConfig
from recollect.errors import ConfigError, nearest

__all__ = [
    "CORES",
    "GRU",
    "LSTM",
    "Core",
    "CoreConfig",
    "CoreSpec",
    "GRUConfig",
    "LSTMConfig",
    "NoMemory",
    "NoneConfig",
    "make_core",
]


@runtime_checkable
class CoreConfig(Protocol):
    """The settings of a core, and how it is made from them.

    A config may also have ``reaching(steps) -> config``: the same, started so that it can remember over
    so many steps. The presets of tasks with a long memory use it.
    """

    def build(self, input_size: int) -> Core:
        """The core for inputs of ``input_size`` features."""
        ...


CoreSpec = str | CoreConfig | Callable[[int], Core]
"""A name in ``CORES``, a config, or a factory that takes the input size."""

CORES: dict[str, Callable[[], CoreConfig]] = {
    "gru": GRUConfig,
    "lstm": LSTMConfig,
    "none": NoneConfig,
}
"""The config of every core by its name; all their fields have defaults."""


def make_core(spec: CoreSpec, input_size: int) -> Core:
    """The core that ``spec`` describes, for inputs of ``input_size`` features."""
    if isinstance(spec, str):
        if spec not in CORES:
            hint = nearest(spec, CORES)
            raise ConfigError(f"no core is called {spec!r}{hint}: the cores are {', '.join(sorted(CORES))}")
        spec = CORES[spec]()
    if isinstance(spec, type) and hasattr(spec, "build"):
        raise ConfigError(f"core is the class {spec.__name__}: pass an object, {spec.__name__}(...)")
    core: Any
    if isinstance(spec, CoreConfig):
        core = spec.build(input_size)
    elif callable(spec):
        core = spec(input_size)
    else:
        raise ConfigError(
            f"core is a {type(spec).__name__}; it needs a name ({', '.join(sorted(CORES))}), a config "
            "such as LSTMConfig(hidden=128), or a factory that takes the input size"
        )
    if not isinstance(core, Core):
        raise ConfigError(f"the core factory made a {type(core).__name__}; it needs to make a Core")
    return core
