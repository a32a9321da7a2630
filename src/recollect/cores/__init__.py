"""Cores: what carries over time. ``make_core("lstm", input_size)`` builds one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from recollect.cores.contract import Core
from recollect.cores.ffm import FFM, FFMConfig
from recollect.cores.gru import GRU, GRUConfig
from recollect.cores.lru import LRU, LRUConfig
from recollect.cores.lstm import LSTM, LSTMConfig
from recollect.cores.make import CoreConfig, CoreSpec, known, make_core
from recollect.cores.mamba import Mamba, MambaConfig
from recollect.cores.mingru import MinGRU, MinGRUConfig
from recollect.cores.minlstm import MinLSTM, MinLSTMConfig
from recollect.cores.mlstm import MLSTM, MLSTMConfig
from recollect.cores.none import NoMemory, NoneConfig
from recollect.cores.pmm import PMM, PMMConfig
from recollect.cores.rtu import RTU, RTUConfig
from recollect.cores.slstm import SLSTM, SLSTMConfig
from recollect.cores.stack import Stack, StackConfig
from recollect.cores.window import Window, WindowConfig

__all__ = [
    "CORES",
    "FFM",
    "GRU",
    "LRU",
    "LSTM",
    "MLSTM",
    "PMM",
    "PRESETS",
    "RTU",
    "SLSTM",
    "Core",
    "CoreConfig",
    "CoreSpec",
    "FFMConfig",
    "GRUConfig",
    "LRUConfig",
    "LSTMConfig",
    "MLSTMConfig",
    "Mamba",
    "MambaConfig",
    "MinGRU",
    "MinGRUConfig",
    "MinLSTM",
    "MinLSTMConfig",
    "NoMemory",
    "NoneConfig",
    "PMMConfig",
    "RTUConfig",
    "SLSTMConfig",
    "Stack",
    "StackConfig",
    "Window",
    "WindowConfig",
    "make_core",
]


CORES: dict[str, Callable[[], CoreConfig]] = {
    "ffm": FFMConfig,
    "gru": GRUConfig,
    "lru": LRUConfig,
    "lstm": LSTMConfig,
    "mamba": MambaConfig,
    "mingru": MinGRUConfig,
    "minlstm": MinLSTMConfig,
    "mlstm": MLSTMConfig,
    "none": NoneConfig,
    "pmm": PMMConfig,
    "rtu": RTUConfig,
    "slstm": SLSTMConfig,
    "stack": StackConfig,
    "window": WindowConfig,
}
"""The config of every core by its name; all their fields have defaults."""

PRESETS: dict[str, CoreConfig] = {
    "mamba_gru": StackConfig(cores=("mamba", "gru")),
}
"""Names for settings of a core in ``CORES`` that are worth a name."""

known.update(CORES)
known.update({name: partial(replace, config) for name, config in PRESETS.items()})  # pyright: ignore
