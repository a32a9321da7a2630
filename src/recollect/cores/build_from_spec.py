"""Build cores from specs: a name, a config, a mapping of name and fields, or a factory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from recollect.config.core_choice import as_config, core_config, known
from recollect.config.cores import CoreConfig
from recollect.cores.contract import Core
from recollect.errors import ConfigError

CoreSpec = str | CoreConfig | Mapping[str, Any] | Callable[[int], Core]
"""A name in ``CORES``, a config, a mapping of name and fields, or a factory that takes the input size."""


def make_core(spec: CoreSpec, input_size: int, setting: str = "core") -> Core:
    """The core that ``spec`` describes, for inputs of ``input_size`` features.

    ``setting``: the name of the spec in error messages.
    """
    config: Any = as_config(spec)
    if isinstance(config, str):
        config = core_config(config)
    if isinstance(config, type) and hasattr(config, "build"):
        raise ConfigError(f"{setting} is the class {config.__name__}: pass an object, {config.__name__}(...)")
    if hasattr(config, "build"):
        core = config.build(input_size)
    elif callable(config):
        core = config(input_size)
    else:
        raise ConfigError(
            f"{setting} is a {type(config).__name__}; it needs a name ({', '.join(sorted(known))}), a config "
            "such as LSTMConfig(hidden=128), a mapping such as {name: gru, hidden: 64}, or a factory that "
            "takes the input size"
        )
    if not isinstance(core, Core):
        raise ConfigError(f"the {setting} factory made a {type(core).__name__}; it must make a Core")
    return core
