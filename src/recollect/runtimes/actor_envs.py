"""The envs of a run's actors: the slots of each, with the wrappers of the config."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeVar, cast

import gymnasium as gym
import torch

from recollect.config.curriculum import settings_at
from recollect.config.league import LEAGUE, league_config
from recollect.config.train import TrainConfig
from recollect.envs.contract import Adjustable, BatchedEnv, Player
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
from recollect.envs.on_device import HostEnv, on_device
from recollect.envs.versus import SELF, Versus, against
from recollect.envs.workers import GroupedWorkerEnv, WorkerEnv
from recollect.envs.wrappers import LastActionReward
from recollect.errors import ConfigError, nearest
from recollect.league.cast import Cast

E = TypeVar("E", bound=Any)
MakePlayer = Callable[[Any], Player]
"""Makes a player for a two-sided env."""


def open_env(
    env: EnvSpec,
    config: TrainConfig,
    num_envs: int | None = None,
    env_kwargs: dict[str, Any] | None = None,
    first_slot: int = 0,
    player: MakePlayer | None = None,
) -> BatchedEnv | Groups:
    """The env as rows, with the wrappers of the config; as ``Groups`` if its agents have several policies.

    Without ``num_envs`` and ``env_kwargs``, an env object is used as it is, and any other as in the config.
    ``first_slot``: the number of its first slot in the run, which chooses the sides of learners (``Versus``).
    ``player`` makes the opponent, instead of that of the config.
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
        made = prepared(made, config, env_kwargs, first_slot, player)
        if isinstance(made, GroupedEnv):
            return as_groups(made, config)
        return _with_last_action(made, config)
    if has_groups(found, config):
        if more.get("wrap") or more.get("drop_obs"):
            check_wrappable(found, config.wrap)
        grouped = make_grouped_env(found, num_envs, policies=config.policies, env_kwargs=env_kwargs)
        return as_groups(prepared(grouped, config, env_kwargs, closes=not is_made(env)), config)
    batched = make_env(found, num_envs, device=device, env_kwargs=env_kwargs, **more)
    batched = prepared(batched, config, env_kwargs, first_slot, player, closes=not is_made(env))
    return _with_last_action(batched, config)


def prepared(
    env: E,
    config: TrainConfig,
    env_kwargs: dict[str, Any],
    first_slot: int = 0,
    player: MakePlayer | None = None,
    *,
    closes: bool = True,
) -> E:
    """``env`` with the opponent of the config, and in the last stage of its curriculum, which is validated.

    Args:
        env: as it was made, with ``env_kwargs``.
        config: of the run.
        env_kwargs: options that differ from those of the config are kept in all stages.
        first_slot: the number of its first slot in the run.
        player: makes the opponent, instead of that of the config.
        closes: whether to close ``env`` if this fails.
    """
    try:
        if isinstance(env, HostEnv) and config.vs is not None:  # the player is on the CPU, too
            inner = prepared(env.env, config, env_kwargs, first_slot, player, closes=False)
            return cast(E, env if inner is env.env else on_device(inner, env.device))
        found: Any = _opposed(env, config, first_slot, player)
        chosen = changed(env_kwargs, config)
        for start in config.curriculum:
            adjust(found, settings_at(config.curriculum, start), but=chosen)
        return found
    except BaseException:
        if closes:
            env.close()
        raise


def _opposed(env: Any, config: TrainConfig, first_slot: int, player: MakePlayer | None) -> Any:
    """``env`` with the opponent of the config, or the one that ``player`` makes, on one side."""
    if player is not None:
        return Versus(against(env, SELF, {}), player(env), first_slot)
    if config.vs != LEAGUE or isinstance(env, Versus):
        return against(env, config.vs, config.vs_kwargs, first_slot)
    against(env, SELF, {})  # raises unless the env is two-sided
    league = league_config(config.vs_kwargs)
    make = functools.partial(config.policy.build, env.observation_space, env.action_space)
    where = {"seed": config.seed, "first_slot": first_slot}
    return Versus(env, Cast(env, league, league_folder(config), make=make, **where), first_slot)


def league_folder(config: TrainConfig) -> Path | None:
    """The folder of the run's league; None: it has none."""
    given = league_config(config.vs_kwargs).folder
    if config.run is not None:
        return Path(config.run) / LEAGUE
    return None if given is None else Path(given)


def changed(env_kwargs: dict[str, Any], config: TrainConfig) -> set[str]:
    """The options of an env that are not those of the config."""
    return {name for name, value in env_kwargs.items() if config.env_kwargs.get(name, config) != value}


def adjust(env: Any, settings: Mapping[str, Any], but: Collection[str] = ()) -> None:
    """Change the settings of an env, each at the next reset of a slot, without those in ``but``."""
    names = env.adjustable if isinstance(env, Adjustable) else ()
    for name in settings:
        if name not in names:
            raise ConfigError(
                f"curriculum has {name!r}{nearest(name, names)}, and this env can change "
                f"{', '.join(names) or 'no settings'} (envs.Adjustable): give those, or leave it out"
            )
    if names:
        env.adjust(**{name: value for name, value in settings.items() if name not in but})


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
        return open_env(env, config, count, config.env_kwargs, index * count)
    how = {
        "workers": config.env_workers,
        "timeout": config.env_timeout,
        "name": "env worker" if config.actors == 1 else f"actor {index}, env worker",
    }
    if has_groups(env, config):
        make = functools.partial(make_grouped_slots, portable(env), config)
        return as_groups(GroupedWorkerEnv(make, count, **how), config)
    make = functools.partial(make_slots, portable(env), config, index * count)
    return _with_last_action(on_device(WorkerEnv(make, count, **how), config.device), config)


def _with_last_action(env: BatchedEnv, config: TrainConfig) -> BatchedEnv:
    return LastActionReward(env) if config.last_action_reward else env


def make_slots(env: Portable, config: TrainConfig, start: int, first_slot: int, count: int) -> BatchedEnv:
    """Make ``count`` slots starting at ``first_slot`` of an actor, in an env worker.

    ``start``: the number of the actor's first slot in the run.
    """
    options = {"env_kwargs": config.env_kwargs, "wrap": config.wrap, "drop_obs": config.drop_obs}
    made = make_env(resolved(restored(env)), count, first_slot=first_slot, **options)
    return prepared(made, config, config.env_kwargs, start + first_slot)


def make_grouped_slots(env: Portable, config: TrainConfig, first_slot: int, count: int) -> GroupedEnv:
    """``make_slots`` for an env whose agents are in groups."""
    options = {"policies": config.policies, "env_kwargs": config.env_kwargs, "first_slot": first_slot}
    return prepared(make_grouped_env(resolved(restored(env)), count, **options), config, config.env_kwargs)


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
