"""PettingZoo envs by name, callable or object, without importing PettingZoo until one is made."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import gymnasium as gym

from recollect.envs.contract import BatchedEnv
from recollect.errors import ConfigError, nearest

PREFIX = "pettingzoo/"
"""Of the name of a PettingZoo env, such as "pettingzoo/knights_archers_zombies_v11"."""
_PACKAGES = ("pettingzoo.butterfly", "pettingzoo.classic", "pettingzoo.sisl", "pettingzoo.atari")
_MPE = ("pettingzoo.mpe", "mpe2")
"""The old and the new home of the particle envs."""


class SeveralAgentsError(ConfigError):
    """An env of PettingZoo where a single Gymnasium env is needed."""


def refuse_pettingzoo(env: Any) -> None:
    """Close ``env`` and raise if it is a PettingZoo env."""
    if is_pettingzoo(env):
        with contextlib.suppress(Exception):  # it may not be ready to close
            env.close()
        raise SeveralAgentsError(
            f"{type(env).__name__} is a PettingZoo env, which has several agents: make_env and "
            "make_grouped_env take it, GymLoop does not"
        )


def is_pettingzoo(env: Any) -> bool:
    """Whether ``env`` is from the package, or has its interface: a list of agents, and spaces by agent."""
    if isinstance(env, gym.Env | gym.vector.VectorEnv | BatchedEnv):
        return False
    if isinstance(env, functools.partial):
        return is_pettingzoo(env.func)
    if isinstance(env, str):
        homes = [env.replace("/", ".")]
    elif isinstance(env, type):
        homes = [base.__module__ for base in env.__mro__]
    else:
        homes = [getattr(env, name, None) for name in ("__module__", "__name__")]
    if any(isinstance(home, str) and home.split(".")[0] in ("pettingzoo", "mpe2") for home in homes):
        return True
    has_agents = not isinstance(env, type) and (hasattr(env, "possible_agents") or hasattr(env, "agents"))
    return has_agents and all(
        callable(getattr(env, f"{kind}_space", None)) for kind in ("observation", "action")
    )


def is_pettingzoo_object(env: Any) -> bool:
    """Whether ``env`` is a PettingZoo env that is made already: no name, class, function or module."""
    return not isinstance(env, str | type | ModuleType) and not callable(env) and is_pettingzoo(env)


def find_pettingzoo(name: str) -> Callable[..., Any]:
    """The function that makes the env ``name``, such as "pettingzoo/simple_speaker_listener_v4"."""
    short = name.removeprefix(PREFIX)
    if importlib.util.find_spec("pettingzoo") is None:
        raise ConfigError(f"{name} needs PettingZoo: pip install 'recollect[pettingzoo]'")
    known = {found: package for package in (*_PACKAGES, *_MPE) for found in _names(package)}
    if short not in known:
        mpe = "" if importlib.util.find_spec("mpe2") else ". The particle envs (MPE) need the package mpe2"
        raise ConfigError(
            f"no PettingZoo env is named {name!r}{nearest(name, [PREFIX + found for found in known])}{mpe}"
        )
    package = known[short]
    try:
        module = importlib.import_module(f"{package}.{short}")
    except ImportError as error:
        what = package.replace("pettingzoo.", "pettingzoo[") + ("]" if "." in package else "")
        raise ConfigError(f"{name} cannot be imported: {error}. Try pip install '{what}'") from error
    return maker(module)


def maker(module: ModuleType) -> Callable[..., Any]:
    """``parallel_env`` of a module of PettingZoo, else its ``env``."""
    make = getattr(module, "parallel_env", None) or getattr(module, "env", None)
    if make is None:
        raise ConfigError(
            f"module {module.__name__} has neither parallel_env nor env: give a function that makes one"
        )
    return make


def as_parallel(env: Any) -> Any:
    """``env`` with the parallel interface: an AEC env is converted by PettingZoo."""
    if not hasattr(env, "agent_iter"):
        return env
    from pettingzoo.utils.conversions import aec_to_parallel

    if not env.metadata.get("is_parallelizable", False):
        raise ConfigError(
            f"{env} is turn-based (its metadata has no is_parallelizable), so that its agents cannot step "
            "together: give a function that converts it, such as lambda: turn_based_aec_to_parallel(make()) "
            "of pettingzoo.utils.conversions"
        )
    return aec_to_parallel(env)


def _names(package: str) -> list[str]:
    """The envs of a package; none if it is not installed."""
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:
        return []
    places = spec.submodule_search_locations if spec is not None else None
    return [found.name for found in pkgutil.iter_modules(places or []) if re.search(r"_v\d+$", found.name)]
