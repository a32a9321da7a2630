"""Recognises PettingZoo envs, which are not supported yet, without importing PettingZoo."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from recollect.envs.contract import BatchedEnv
from recollect.errors import ConfigError


def refuse_pettingzoo(env: Any) -> None:
    """Raise if ``env`` is a PettingZoo env, a function or module of the package, or the name of one."""
    if is_pettingzoo(env):
        name = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
        raise ConfigError(
            f"PettingZoo envs are not supported yet, and {name} is one: it has several agents. Wrap it as a "
            "gymnasium.Env of one agent that steps the others itself, or write a BatchedEnv, which can have "
            "several agents per env (docs/own-env.md)"
        )


def is_pettingzoo(env: Any) -> bool:
    """Whether ``env`` is from the package, or has its interface: a list of agents, and spaces by agent."""
    if isinstance(env, gym.Env | gym.vector.VectorEnv | BatchedEnv):
        return False
    homes = (
        [env] if isinstance(env, str) else [getattr(env, name, None) for name in ("__module__", "__name__")]
    )
    if any(isinstance(home, str) and home.split(".")[0] == "pettingzoo" for home in homes):
        return True
    has_agents = not isinstance(env, type) and (hasattr(env, "possible_agents") or hasattr(env, "agents"))
    return has_agents and all(
        callable(getattr(env, f"{kind}_space", None)) for kind in ("observation", "action")
    )
