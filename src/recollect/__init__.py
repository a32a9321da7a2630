"""Recollect trains reinforcement-learning agents with memory, and proves that the memory is right.

The names below are imported when they are first used: ``recollect --help`` should not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from recollect.base import interrupts

interrupts.end_at_once()

from recollect.base.registry import register_tasks  # noqa: E402 (imports Gymnasium, which takes its time)

if TYPE_CHECKING:
    from recollect.acting.evaluate import Evaluation
    from recollect.acting.session import Session
    from recollect.agent import Agent
    from recollect.api import load, resume, train
    from recollect.audit.run import verify
    from recollect.base.types import Step
    from recollect.config.train import TrainConfig
    from recollect.cores import (
        Core,
        FFMConfig,
        GRUConfig,
        LRUConfig,
        LSTMConfig,
        MambaConfig,
        MinGRUConfig,
        MinLSTMConfig,
        MLSTMConfig,
        NoneConfig,
        PMMConfig,
        RTUConfig,
        SLSTMConfig,
        StackConfig,
        WindowConfig,
    )
    from recollect.policy.encoders import EncoderConfig
    from recollect.policy.heads import HeadConfig
    from recollect.policy.policy import Policy, PolicyConfig
    from recollect.training.callbacks import Callback, EarlyStopping
    from recollect.training.run_folder import Run

__version__ = "0.1.0"

_HOMES = {
    "Agent": "agent",
    "Callback": "training.callbacks",
    "Core": "cores",
    "EarlyStopping": "training.callbacks",
    "EncoderConfig": "policy.encoders",
    "Evaluation": "acting.evaluate",
    "FFMConfig": "cores",
    "GRUConfig": "cores",
    "HeadConfig": "policy.heads",
    "LRUConfig": "cores",
    "LSTMConfig": "cores",
    "MLSTMConfig": "cores",
    "MambaConfig": "cores",
    "MinGRUConfig": "cores",
    "MinLSTMConfig": "cores",
    "NoneConfig": "cores",
    "PMMConfig": "cores",
    "Policy": "policy.policy",
    "PolicyConfig": "policy.policy",
    "RTUConfig": "cores",
    "Run": "training.run_folder",
    "SLSTMConfig": "cores",
    "Session": "acting.session",
    "StackConfig": "cores",
    "Step": "base.types",
    "TrainConfig": "config.train",
    "WindowConfig": "cores",
    "load": "api",
    "resume": "api",
    "train": "api",
    "verify": "audit.run",
}

__all__ = [
    "Agent",
    "Callback",
    "Core",
    "EarlyStopping",
    "EncoderConfig",
    "Evaluation",
    "FFMConfig",
    "GRUConfig",
    "HeadConfig",
    "LRUConfig",
    "LSTMConfig",
    "MLSTMConfig",
    "MambaConfig",
    "MinGRUConfig",
    "MinLSTMConfig",
    "NoneConfig",
    "PMMConfig",
    "Policy",
    "PolicyConfig",
    "RTUConfig",
    "Run",
    "SLSTMConfig",
    "Session",
    "StackConfig",
    "Step",
    "TrainConfig",
    "WindowConfig",
    "load",
    "resume",
    "train",
    "verify",
]

register_tasks()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'recollect' has no attribute {name!r}")
    value = getattr(import_module(f"recollect.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
