"""Games of a trained run in the mech arena."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from recollect.acting.mech_games import record_games, side_of
from recollect.agent import Agent
from recollect.tasks.mech.replays import Replay


def record_run(
    agent: Agent,
    *,
    name: str,
    games: int = 1,
    seed: int = 0,
    deterministic: bool = True,
    env_kwargs: dict[str, Any] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> list[Replay]:
    """Record games that the agent plays against itself, or as the run's ``vs`` says.

    ``name``: of the agent. ``env_kwargs`` are added to those of the training.
    """
    name = f"{name}, {agent.steps:,} steps"
    with agent.opened(1, env_kwargs=agent.config.env_kwargs | (env_kwargs or {})) as env:
        opponent = agent.config.vs
        names = {None: (name, name), "blue": (name, opponent), "red": (opponent, name)}[side_of(env)]
        return record_games(
            agent.network,
            env,
            games=games,
            seed=seed,
            deterministic=deterministic,
            names=names,
            cancelled=cancelled,
        )
