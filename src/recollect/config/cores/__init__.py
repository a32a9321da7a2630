"""The configs of all cores by name. ``recollect.cores`` holds their code."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from recollect.config.cores.base import CoreConfig
from recollect.config.cores.ffm import FFMConfig
from recollect.config.cores.gru import GRUConfig
from recollect.config.cores.lru import LRUConfig
from recollect.config.cores.lstm import LSTMConfig
from recollect.config.cores.mamba import MambaConfig
from recollect.config.cores.mingru import MinGRUConfig
from recollect.config.cores.minlstm import MinLSTMConfig
from recollect.config.cores.mlstm import MLSTMConfig
from recollect.config.cores.none import NoneConfig
from recollect.config.cores.pmm import PMMConfig
from recollect.config.cores.rtu import RTUConfig
from recollect.config.cores.slstm import SLSTMConfig
from recollect.config.cores.specs import known
from recollect.config.cores.stack import StackConfig
from recollect.config.cores.window import WindowConfig

CORES: dict[str, type[CoreConfig]] = {
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

PRESETS: dict[str, CoreConfig] = {"mamba_gru": StackConfig(cores=("mamba", "gru"))}
"""Named settings of a core in ``CORES``."""

known.update(CORES)
known.update({name: partial(replace, config) for name, config in PRESETS.items()})  # pyright: ignore
