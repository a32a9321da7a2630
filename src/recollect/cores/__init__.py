"""Cores: what carries over time. ``make_core("lstm", input_size)`` builds one."""

from recollect.config.core_choice import CORES, PRESETS, PMMConfig, StackConfig
from recollect.config.cores import (
    CoreConfig,
    FFMConfig,
    FramesConfig,
    GRUConfig,
    LRUConfig,
    LSTMConfig,
    MambaConfig,
    MinGRUConfig,
    MinLSTMConfig,
    MLSTMConfig,
    NoneConfig,
    RTUConfig,
    SLSTMConfig,
    WindowConfig,
)
from recollect.cores.build_from_spec import CoreSpec, make_core
from recollect.cores.contract import Core
from recollect.cores.ffm import FFM
from recollect.cores.frames import Frames
from recollect.cores.gru import GRU
from recollect.cores.lru_rtu import LRU, RTU
from recollect.cores.lstm import LSTM
from recollect.cores.mamba import Mamba
from recollect.cores.mingru_minlstm import MinGRU, MinLSTM
from recollect.cores.mlstm import MLSTM
from recollect.cores.none import NoMemory
from recollect.cores.pmm import PMM
from recollect.cores.slstm import SLSTM
from recollect.cores.stack import Stack
from recollect.cores.window import Window

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
    "Frames",
    "FramesConfig",
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
