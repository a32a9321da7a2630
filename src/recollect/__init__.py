"""Recollect trains reinforcement-learning agents with memory, and proves that the memory is right."""

import recollect.tasks  # noqa: F401  (registers the built-in tasks with Gymnasium)
from recollect.agent import Agent, load, train
from recollect.config import TrainConfig
from recollect.cores import Core, GRUConfig, LSTMConfig, NoneConfig
from recollect.evaluate import Evaluation
from recollect.policy.encoders import EncoderConfig
from recollect.policy.heads import HeadConfig
from recollect.policy.policy import Policy, PolicyConfig
from recollect.session import Session
from recollect.types import Step

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Core",
    "EncoderConfig",
    "Evaluation",
    "GRUConfig",
    "HeadConfig",
    "LSTMConfig",
    "NoneConfig",
    "Policy",
    "PolicyConfig",
    "Session",
    "Step",
    "TrainConfig",
    "load",
    "train",
]
