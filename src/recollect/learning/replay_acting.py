"""What actors record for algorithms that replay, and how their rows explore."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from recollect.config.replay import ReplayConfig
from recollect.experience.rollout import Acting

RECORD = ("q",)
"""The field of the record that the learner must reproduce: the value of the chosen action."""


def replay_acting(config: ReplayConfig) -> Acting:
    """States at the starts of sequences, and final observations; no values."""
    explore = functools.partial(_exploration, config)
    return Acting(
        config.state_steps, keeps_finals=True, record=RECORD, needs_values=False, exploration=explore
    )


def _exploration(config: ReplayConfig, rows: int) -> Tensor:
    return torch.tensor(config.exploration(rows))
