"""The envs of a run's actors: the slots of each, with the wrappers of the config."""

from __future__ import annotations

import functools
from contextlib import ExitStack, closing
from typing import Any

import gymnasium as gym
import torch

from recollect.config.train import TrainConfig
from recollect.envs.contract import BatchedEnv
from recollect.envs.env_names import Portable, display_name, portable, restored
from recollect.envs.factory import (
    EnvSpec,
    check_wrappable,
    is_made,
    make_batch,
    make_env,
    make_grouped_env,
    makes_batches,
    resolved,
    slots,
)
from recollect.envs.group_views import Groups, group_views
from recollect.envs.groups import GroupedEnv
from recollect.envs.on_device import on_device
from recollect.envs.workers import GroupedWorkerEnv, WorkerEnv
from recollect.envs.wrappers import LastActionReward
from recollect.errors import ConfigError


def open_env(
    env: EnvSpec, config: TrainConfig, num_envs: int | None = None, env_kwargs: dict[str, Any] | None = None
) -> BatchedEnv | Groups:
    """The env as rows, with the wrappers of the config; as ``Groups`` if its agents have several policies.

    Without ``num_envs`` and ``env_kwargs``, an env object is used as it is, and any other as in the config.
    """
    own_size, own_kwargs = (slots(env), {}) if is_made(env) else (config.num_envs, config.env_kwargs)
    num_envs = own_size if num_envs is None else num_envs
    env_kwargs = own_kwargs if env_kwargs is None else env_kwargs
    # A batch of envs has its wrappers already (``Agent.make_env``); check_remakable reports any other.
    is_batch = is_made(env) and not isinstance(env, gym.Env)
    more = {} if is_batch else {"wrap": config.wrap, "drop_obs": config.drop_obs}
    device, found = torch.device(config.device), resolved(env)
    if makes_batches(found) and not more.get("wrap") and not more.get("drop_obs"):
        if config.policies != "shared":
            raise ConfigError(
                f"policies = {config.policies!r}, but {display_name(env)} makes all of its slots, with their "
                "groups: leave policies out"
            )
        made = make_batch(found, num_envs, device, env_kwargs)
        if isinstance(made, GroupedEnv):
            return as_groups(made, config)
        return _with_last_action(made, config)
    if has_groups(found, config):
        if more.get("wrap") or more.get("drop_obs"):
            check_wrappable(found, config.wrap)
        return as_groups(
            make_grouped_env(found, num_envs, policies=config.policies, env_kwargs=env_kwargs), config
        )
    batched = make_env(found, num_envs, device=device, env_kwargs=env_kwargs, **more)
    return _with_last_action(batched, config)


def has_groups(env: EnvSpec, config: TrainConfig) -> bool:
    """Whether the agents of ``env`` are to be in groups: by the config, or because the env has several."""
    return config.policies != "shared" or (isinstance(env, GroupedEnv) and len(env.groups) > 1)


def as_groups(env: GroupedEnv, config: TrainConfig) -> BatchedEnv | Groups:
    """The views of all groups on the config's device, with its wrappers; of a single group, its view."""
    views = {
        name: _with_last_action(on_device(view, config.device), config)
        for name, view in group_views(env).items()
    }
    if len(views) == 1:
        return next(iter(views.values()))
    return Groups(views, {name: group.agents for name, group in env.groups.items()})


def open_actor_env(env: EnvSpec, config: TrainConfig, index: int = 0) -> BatchedEnv | Groups:
    """The env of actor ``index`` with its share of the slots, in env workers if the config has any."""
    count = config.num_envs // config.actors
    if config.env_workers == 0:
        return open_env(env, config, count, config.env_kwargs)
    how = {
        "workers": config.env_workers,
        "timeout": config.env_timeout,
        "name": "env worker" if config.actors == 1 else f"actor {index}, env worker",
    }
    if has_groups(env, config):
        make = functools.partial(make_grouped_slots, portable(env), config.env_kwargs, config.policies)
        return as_groups(GroupedWorkerEnv(make, count, **how), config)
    make = functools.partial(
        make_slots, portable(env), config.env_kwargs, wrap=config.wrap, drop_obs=config.drop_obs
    )
    return _with_last_action(on_device(WorkerEnv(make, count, **how), config.device), config)


def _with_last_action(env: BatchedEnv, config: TrainConfig) -> BatchedEnv:
    return LastActionReward(env) if config.last_action_reward else env


def make_slots(
    env: Portable, env_kwargs: dict[str, Any], first_slot: int, count: int, **wrappers: Any
) -> BatchedEnv:
    """Make ``count`` slots starting at ``first_slot``, in an env worker."""
    return make_env(resolved(restored(env)), count, env_kwargs=env_kwargs, first_slot=first_slot, **wrappers)


def make_grouped_slots(
    env: Portable, env_kwargs: dict[str, Any], policies: Any, first_slot: int, count: int
) -> GroupedEnv:
    """``make_slots`` for an env whose agents are in groups."""
    found = resolved(restored(env))
    return make_grouped_env(found, count, policies=policies, env_kwargs=env_kwargs, first_slot=first_slot)


def open_envs(env: EnvSpec, config: TrainConfig, *, is_new: bool = False) -> list[BatchedEnv | Groups]:
    """The env of every actor, all in this process.

    An env object must fit the config of a new agent; a loaded agent uses it as it is.
    """
    check_remakable(env, config)
    if is_made(env):
        num_envs, env_kwargs = (config.num_envs, config.env_kwargs) if is_new else (None, None)
        return [open_env(env, config, num_envs, env_kwargs)]
    with ExitStack() as opened:
        envs = [
            opened.enter_context(closing(open_actor_env(env, config, index)))
            for index in range(config.actors)
        ]
        opened.pop_all()
        return envs


def check_remakable(env: EnvSpec, config: TrainConfig) -> None:
    """Validate that the env can be made again for every actor or in other processes.

    An env object cannot. An env that steps all its rows together cannot be split over env workers: each would
    seed its rows alike. Wrappers are for single envs.
    """
    if config.wrap or config.drop_obs:
        check_wrappable(resolved(env), config.wrap)
    if config.env_workers and makes_batches(resolved(env)):
        raise ConfigError(
            f"env_workers = {config.env_workers}, but this env steps all of its rows together, which "
            "cannot be split over workers: use actors (--runtime processes --actors N)"
        )
    if not is_made(env):
        return
    for name, usual in (("actors", 1), ("env_workers", 0), ("runtime", "inline")):
        value = getattr(config, name)
        if value != usual:
            raise ConfigError(
                f"{name} = {value!r}, but the env is an object, which cannot be recreated: "
                "give its name or a function that makes it"
            )
