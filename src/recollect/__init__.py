"""Recollect trains reinforcement-learning agents with memory, and proves that the memory is right.

The names below are imported when they are first used, so that ``recollect --help`` imports neither torch nor
Gymnasium.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from recollect.base import interrupts

interrupts.end_at_once()

from recollect.base.registry import register_agents, register_tasks, when_imported  # noqa: E402

if TYPE_CHECKING:
    from recollect.acting.evaluate import Evaluation
    from recollect.acting.session import Session
    from recollect.agent import Agent
    from recollect.api import load, resume, train
    from recollect.audit.run import verify
    from recollect.base.types import Step
    from recollect.config.algo_shared import AlgoConfig, LearnerConfig
    from recollect.config.core_choice import PMMConfig, StackConfig
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
    from recollect.config.policy import EncoderConfig, HeadConfig, PolicyConfig
    from recollect.config.q_heads import QHeadConfig, QuantileHeadConfig
    from recollect.config.register import register
    from recollect.config.replay import ReplayConfig
    from recollect.config.train import TrainConfig
    from recollect.cores.contract import Core
    from recollect.policy.policy import Policy
    from recollect.training.callbacks import Callback, EarlyStopping
    from recollect.training.run_folder import Run

__version__ = "0.1.0"

_MODULES = {
    "acting.evaluate": "Evaluation",
    "acting.session": "Session",
    "agent": "Agent",
    "api": "load resume train",
    "audit.run": "verify",
    "base.types": "Step",
    "config.algo_shared": "AlgoConfig LearnerConfig",
    "config.core_choice": "PMMConfig StackConfig",
    "config.cores": (
        "CoreConfig FFMConfig FramesConfig GRUConfig LRUConfig LSTMConfig MLSTMConfig MambaConfig "
        "MinGRUConfig MinLSTMConfig NoneConfig RTUConfig SLSTMConfig WindowConfig"
    ),
    "config.policy": "EncoderConfig HeadConfig PolicyConfig",
    "config.q_heads": "QHeadConfig QuantileHeadConfig",
    "config.register": "register",
    "config.replay": "ReplayConfig",
    "config.train": "TrainConfig",
    "cores.contract": "Core",
    "policy.policy": "Policy",
    "training.callbacks": "Callback EarlyStopping",
    "training.run_folder": "Run",
}
"""The public names by module."""
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = ["Agent", "Callback", "Core", "EarlyStopping", "Evaluation", "Policy", "Run", "Session", "Step"]
__all__ += ["load", "register", "resume", "train", "verify"]
__all__ += ["EncoderConfig", "HeadConfig", "PolicyConfig", "QHeadConfig", "QuantileHeadConfig", "TrainConfig"]
__all__ += ["AlgoConfig", "CoreConfig", "LearnerConfig", "ReplayConfig"]
__all__ += ["FFMConfig", "FramesConfig", "GRUConfig", "LRUConfig", "LSTMConfig", "MLSTMConfig", "MambaConfig"]
__all__ += ["MinGRUConfig", "MinLSTMConfig", "NoneConfig", "PMMConfig", "RTUConfig", "SLSTMConfig"]
__all__ += ["StackConfig", "WindowConfig"]


def _ids(has_agents: bool) -> dict[str, str]:
    from recollect.config.tasks import TASKS

    return {name: options.id for name, options in TASKS.items() if options.has_agents == has_agents}


when_imported("gymnasium", lambda: register_tasks(_ids(has_agents=False)))
when_imported("pettingzoo", lambda: register_agents(_ids(has_agents=True)))


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'recollect' has no attribute {name!r}")
    value = getattr(import_module(f"recollect.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
