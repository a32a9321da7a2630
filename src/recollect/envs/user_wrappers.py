"""The user's wrappers of single Gymnasium envs (``wrap``), and dropped observations (``drop_obs``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from recollect.base.spaces import LEAVES
from recollect.errors import ConfigError, SpaceError, nearest


def wrapped(env: Any, wrap: Sequence[Any], drop_obs: Sequence[str]) -> Any:
    """``env`` with the wrappers in their order, and without the dropped parts of its observations."""
    for wrapper in wrap:
        env = wrapper(env)
        if not isinstance(env, gym.Env):
            name = getattr(wrapper, "__name__", None) or repr(wrapper)
            raise ConfigError(
                f"wrap: {name} made a {type(env).__name__}, not a gymnasium.Env: it must be a "
                "gymnasium.Wrapper, or a function that takes an env and returns one"
            )
    return DropObservations(env, drop_obs) if drop_obs else env


class DropObservations(gym.ObservationWrapper):
    """Leaves out these parts of Dict and Tuple observations: "mission", or "outer.inner"."""

    def __init__(self, env: gym.Env, parts: Sequence[str]):
        super().__init__(env)
        self._parts = frozenset(parts)
        known = dict(_parts(env.observation_space))
        for part in parts:
            if part not in known:
                has = f"its parts are {', '.join(known)}" if known else "it is no Dict or Tuple"
                raise ConfigError(
                    f"drop_obs: the observation has no part {part!r}{nearest(part, known)}: {has}"
                )
        left = self._space(env.observation_space, "")
        if left is None:
            raise ConfigError(f"drop_obs = {','.join(parts)} leaves nothing of the observation: keep a part")
        self.observation_space: gym.Space = left

    def observation(self, observation: Any) -> Any:
        """The observation without the dropped parts."""
        return self._value(self.env.observation_space, observation, "")

    def _space(self, space: gym.Space, path: str) -> gym.Space | None:
        """The space of what is left; None if nothing is."""
        if not isinstance(space, spaces.Dict | spaces.Tuple):
            return space
        left = {key: self._space(sub, at) for key, at, sub in _children(space, path) if at not in self._parts}
        kept = {key: sub for key, sub in left.items() if sub is not None}
        if not kept:
            return None
        return spaces.Dict(kept) if isinstance(space, spaces.Dict) else spaces.Tuple(list(kept.values()))

    def _value(self, space: gym.Space, value: Any, path: str) -> Any:
        if not isinstance(space, spaces.Dict | spaces.Tuple):
            return value
        left = {
            key: self._value(sub, value[key], at)
            for key, at, sub in _children(space, path)
            if at not in self._parts and self._space(sub, at) is not None
        }
        return left if isinstance(space, spaces.Dict) else tuple(left.values())


def check_observation_space(space: gym.Space, env: str) -> None:
    """Raise SpaceError if a part of the space is not supported; the error names the fix."""
    wrong = [(path, part) for path, part in _parts(space) if not _is_supported(part)]
    if not wrong and _is_supported(space):
        return
    wrap = (
        "wrap the env (--wrap module:Wrapper) so that it becomes Box, Discrete, MultiDiscrete, MultiBinary, "
        "or a Dict or Tuple of these"
    )
    if not wrong:
        raise SpaceError(
            f"observation_space of {env} is a {type(space).__name__}, which is not supported: {wrap}"
        )
    found = ", ".join(f"{path} (a {type(part).__name__})" for path, part in wrong)
    paths = [path for path, _ in wrong]
    raise SpaceError(
        f"observation_space of {env}: {found} {'is' if len(wrong) == 1 else 'are'} not supported. Leave it "
        f"out with --drop-obs {','.join(paths)} (drop_obs={paths}), or {wrap}"
    )


def _is_supported(space: gym.Space) -> bool:
    return isinstance(space, (*LEAVES, spaces.Dict, spaces.Tuple))


def _children(space: spaces.Dict | spaces.Tuple, path: str) -> Iterator[tuple[Any, str, gym.Space]]:
    """Key, path and space of each part."""
    items = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    return ((key, f"{path}.{key}" if path else str(key), sub) for key, sub in items)


def _parts(space: gym.Space, path: str = "") -> Iterator[tuple[str, gym.Space]]:
    """All parts, also those that have parts themselves, by path."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for _, at, sub in _children(space, path):
            yield at, sub
            yield from _parts(sub, at)
