"""The keys of an observation that only the critic sees (``PolicyConfig.critic_obs``)."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium as gym
from gymnasium import spaces

from recollect.base.spaces import ACTION_MASK
from recollect.base.types import Tree
from recollect.errors import ConfigError, nearest


def actor_space(observation_space: gym.Space, critic_obs: Sequence[str]) -> gym.Space:
    """The observation space of the actor; raises unless it has the keys of the critic, and others."""
    if not critic_obs:
        return observation_space
    named = f"critic_obs = {','.join(critic_obs)}"
    if not isinstance(observation_space, spaces.Dict):
        raise ConfigError(
            f"{named}: these are keys of a Dict observation, and the observation is {observation_space}: "
            "leave critic_obs out, or let the env return a dict"
        )
    known = [key for key in observation_space.spaces if key != ACTION_MASK]
    for key in critic_obs:
        if key == ACTION_MASK:
            raise ConfigError(f"{named}: the actor needs {ACTION_MASK}: leave it out of critic_obs")
        if key not in known:
            raise ConfigError(
                f"{named}: the observation has no key {key!r}{nearest(key, known)}: choose from "
                f"{', '.join(known)}"
            )
    if set(known) <= set(critic_obs):
        raise ConfigError(f"{named} leaves nothing for the actor to see: leave a key out of critic_obs")
    return space_without(observation_space, critic_obs)


def space_without(space: gym.Space, critic_obs: Sequence[str]) -> gym.Space:
    """``space`` without these keys, where it has them."""
    if not critic_obs or not isinstance(space, spaces.Dict):
        return space
    return spaces.Dict({key: sub for key, sub in space.spaces.items() if key not in critic_obs})


def obs_without(obs: Tree, critic_obs: Sequence[str]) -> Tree:
    """``obs`` without these keys, where it has them."""
    return {key: part for key, part in obs.items() if key not in critic_obs} if critic_obs else obs
