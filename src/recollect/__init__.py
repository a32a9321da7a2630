"""Recollect trains reinforcement-learning agents with memory, and proves that the memory is right.

The names below are imported when they are first used: ``recollect --help`` should not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from recollect import interrupts

interrupts.end_at_once()

from recollect.registry import register_tasks  # noqa: E402 (imports Gymnasium, which takes its time)

if TYPE_CHECKING:
    from recollect.agent import Agent
    from recollect.api import load, resume, train
    from recollect.callbacks import Callback, EarlyStopping
    from recollect.config import TrainConfig
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
    from recollect.evaluate import Evaluation
    from recollect.policy.encoders import EncoderConfig
    from recollect.policy.heads import HeadConfig
    from recollect.policy.policy import Policy, PolicyConfig
    from recollect.runs import Run
    from recollect.session import Session
    from recollect.types import Step
    from recollect.verification.run import verify

__version__ = "0.1.0"

_HOMES = {
    "Agent": "agent",
    "Callback": "callbacks",
    "Core": "cores",
    "EarlyStopping": "callbacks",
    "EncoderConfig": "policy.encoders",
    "Evaluation": "evaluate",
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
    "Run": "runs",
    "SLSTMConfig": "cores",
    "Session": "session",
    "StackConfig": "cores",
    "Step": "types",
    "TrainConfig": "config",
    "WindowConfig": "cores",
    "load": "api",
    "resume": "api",
    "train": "api",
    "verify": "verification.run",
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
