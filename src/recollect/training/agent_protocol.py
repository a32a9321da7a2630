"""The interface of an agent that training uses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from recollect.acting.evaluate import Evaluation
from recollect.acting.versus_games import Games
from recollect.config.train import EvalMode, TrainConfig
from recollect.envs.contract import BatchedEnv
from recollect.envs.group_views import Groups
from recollect.policy.policies import Network
from recollect.training.advice import Advisor
from recollect.training.metrics import History


class Trainee(Protocol):
    """The part of ``recollect.Agent`` that training uses; this package must not import the class."""

    network: Network
    config: TrainConfig
    history: History
    env: Any
    """The env as the user gave it."""
    preset: dict[str, Any]
    """The settings that a preset chose."""
    advisor: Advisor

    @property
    def env_name(self) -> str | None:
        """The name of the env; None if the user gave an instance or a function."""
        ...

    @property
    def can_make_env(self) -> bool:
        """Whether a second instance of the env can be made."""
        ...

    @property
    def steps(self) -> int:
        """Env steps trained so far."""
        ...

    def opened(self, num_envs: int) -> AbstractContextManager[BatchedEnv | Groups]:
        """Open the env for playing, with the wrappers of the config."""
        ...

    def make_env(self, num_envs: int) -> Any:
        """A new instance of the env, a BatchedEnv or GroupedEnv without the wrappers of the config."""
        ...

    def against(self, vs: str, games: int, *, eval_mode: EvalMode, vs_kwargs: dict[str, Any]) -> Games:
        """Play games against an opponent with the current weights."""
        ...

    def evaluate(self, episodes: int, *, env: BatchedEnv, cancelled: Callable[[], bool] | None) -> Evaluation:
        """Play ``episodes`` episodes with the current weights."""
        ...
