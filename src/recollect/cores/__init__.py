"""Cores: what carries over time. ``make_core("lstm", input_size)`` builds one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from recollect.cores.base import Core
from recollect.cores.gru import GRU, GRUConfig
from recollect.cores.lstm import LSTM, LSTMConfig
from recollect.cores.make import CoreConfig, CoreSpec, known, make_core
from recollect.cores.none import NoMemory, NoneConfig
from recollect.cores.stack import Stack, StackConfig

__all__ = [
    "CORES",
    "GRU",
    "LSTM",
    "PRESETS",
    "Core",
    "CoreConfig",
    "CoreSpec",
    "GRUConfig",
    "LSTMConfig",
    "NoMemory",
    "NoneConfig",
    "Stack",
    "StackConfig",
    "make_core",
]


CORES: dict[str, Callable[[], CoreConfig]] = {
    "gru": GRUConfig,
    "lstm": LSTMConfig,
    "none": NoneConfig,
    "stack": StackConfig,
}
"""The config of every core by its name; all their fields have defaults."""

PRESETS: dict[str, CoreConfig] = {
    "mamba_gru": StackConfig(cores=("mamba", "gru")),
}
"""Names for settings of a core in ``CORES`` that are worth a name."""

known.update(CORES)
known.update({name: partial(replace, config) for name, config in PRESETS.items()})  # pyright: ignore
