"""The agent as training sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from recollect.acting.evaluate import Evaluation
from recollect.config.train import TrainConfig
from recollect.envs.contract import BatchedEnv
from recollect.policy.policy import Policy
from recollect.training.metrics import Advisor, History


class Trainee(Protocol):
    """What a training and its callbacks use of ``recollect.Agent``, which this package must not import."""

    policy: Policy
    config: TrainConfig
    history: History
    env: Any
    """As the user gave it."""
    preset: dict[str, Any]
    """The settings that a preset chose."""
    advisor: Advisor

    @property
    def env_name(self) -> str | None:
        """The name of the env; None if the user gave an object or a function."""
        ...

    @property
    def can_make_env(self) -> bool:
        """Whether the env can be made once more."""
        ...

    def make_env(self, num_envs: int) -> BatchedEnv:
        """The env once more, without the wrappers of the config."""
        ...

    def evaluate(self, episodes: int, *, env: BatchedEnv, cancelled: Callable[[], bool] | None) -> Evaluation:
        """Play ``episodes`` episodes with the present weights."""
        ...
