"""``make_env``, ``make_grouped_env``: a BatchedEnv or GroupedEnv of a name, a callable or an env instance."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeGuard

import gymnasium as gym
import torch
from gymnasium.vector import VectorEnv

from recollect.base import registry
from recollect.config.tasks import TASKS, task_name
from recollect.envs.contract import BatchedEnv
from recollect.envs.env_names import adapted, is_importing, resolve_env
from recollect.envs.group_views import group_views
from recollect.envs.groups import AgentGroups, GroupedEnv, Policies
from recollect.envs.gym_loop import GymLoop
from recollect.envs.gym_vector import GymVector
from recollect.envs.on_device import on_device
from recollect.envs.pettingzoo import (
    PREFIX,
    SeveralAgentsError,
    find_pettingzoo,
    is_pettingzoo,
    is_pettingzoo_object,
    maker,
)
from recollect.envs.pettingzoo_loop import PettingZooLoop
from recollect.envs.user_wrappers import wrapped
from recollect.errors import ConfigError, EnvError, RecollectError, nearest

__all__ = [
    "EnvMaker",
    "EnvSpec",
    "GymLoop",
    "GymVector",
    "PettingZooLoop",
    "is_multi_agent",
    "make_env",
    "make_grouped_env",
    "makes_batches",
]

EnvMaker = Callable[..., gym.Env] | Callable[..., VectorEnv] | Callable[..., BatchedEnv]
"""Returns a new env in each call; with a parameter ``num_envs``, a batch of that many."""
EnvSpec = str | EnvMaker | gym.Env | VectorEnv | BatchedEnv
"""A Gymnasium id, a task's name, ``module:attribute``, a callable that makes envs, or an env instance."""


def make_env(
    env: EnvSpec,
    num_envs: int,
    *,
    device: torch.device | str = "cpu",
    env_kwargs: dict[str, Any] | None = None,
    wrap: Sequence[Any] = (),
    drop_obs: Sequence[str] = (),
    first_slot: int = 0,
) -> BatchedEnv:
    """A BatchedEnv of ``num_envs`` slots, with its tensors on ``device``. ``env`` is one of

    * a built-in task: its short name ("delayed-cue") or its id ("recollect/DelayedCue-v0");
    * a Gymnasium id, also "module:Env-v0", which imports ``module`` first;
    * "NAME/SOURCE" or an object of a type that a registered adapter takes (``recollect.register``);
    * a callable that returns a new ``gymnasium.Env`` in each call, such as an Env class;
    * a callable with a parameter ``num_envs`` that returns a new BatchedEnv or VectorEnv of that many slots
      in each call, such as a BatchedEnv class. It also gets ``device`` if it has such a parameter;
    * a PettingZoo env, in any form that ``make_grouped_env`` takes: its agents are rows that share a policy;
    * an env instance: a ``gymnasium.Env`` (``num_envs`` is 1), a VectorEnv, or a BatchedEnv, which is
      returned unchanged. ``num_envs`` must be that of the instance, and ``env_kwargs`` empty.

    Gymnasium envs step on the CPU; for another ``device`` their tensors are transferred (``HostEnv``).

    ``env_kwargs`` are passed to the task, to ``gymnasium.make`` or to the callable. ``wrap`` and ``drop_obs``
    are for single Gymnasium envs: see ``TrainConfig``. ``first_slot``: these are the slots from that number
    on of a larger env, with the seeds of that env.
    """
    if num_envs < 1:
        raise ConfigError(f"num_envs is {num_envs}: at least one env is needed")
    env = adapted(env)
    if wrap or drop_obs:
        check_wrappable(env, wrap)
    kwargs = env_kwargs or {}
    if is_multi_agent(env):
        return _one_group(env, num_envs, device, env_kwargs=kwargs, first_slot=first_slot)
    if isinstance(env, str) and task_name(env):
        task = registry.load(registry.MAKE_TASK)(env, num_envs, device=device, **kwargs)
        task.first_slot = first_slot
        return task
    if is_made(env):
        if first_slot:
            raise ConfigError(f"first_slot is {first_slot}, and the slots of a made env begin at 0")
        _check_made(env, num_envs, torch.device(device), kwargs)
        if isinstance(env, BatchedEnv):
            return env
        if isinstance(env, VectorEnv):
            return on_device(GymVector(env), device)
        return on_device(GymLoop([lambda: wrapped(env, wrap, drop_obs)]), device)
    if makes_batches(env):
        if first_slot:
            raise ConfigError(f"first_slot is {first_slot}, but {_name(env)} makes all of its slots together")
        made = make_batch(env, num_envs, torch.device(device), kwargs)
        return _one_view(made, device) if isinstance(made, GroupedEnv) else made
    if isinstance(env, str) or callable(env):
        finish = functools.partial(_wrapped, wrap=wrap, drop_obs=drop_obs)
        try:
            return on_device(_looped(env, num_envs, kwargs, finish, first_slot), device)
        except SeveralAgentsError:  # known only once the callable has made one
            return _one_group(env, num_envs, device, env_kwargs=kwargs, first_slot=first_slot)
    raise ConfigError(
        f"env is a {type(env).__name__}: give a task's name, a Gymnasium id, a callable that returns a "
        "gymnasium.Env, a VectorEnv or a BatchedEnv"
    )


def make_grouped_env(
    env: Any,
    num_envs: int,
    *,
    policies: Policies = "shared",
    env_kwargs: dict[str, Any] | None = None,
    first_slot: int = 0,
) -> GroupedEnv:
    """A GroupedEnv of ``num_envs`` slots on the CPU, its agents in the groups of ``policies``. ``env`` is

    * the name of a PettingZoo env, such as "pettingzoo/knights_archers_zombies_v11", or its module;
    * a callable, also by name ("module:attribute"), that returns a new ParallelEnv or AECEnv in each call;
    * such an env itself (``num_envs`` is 1, ``env_kwargs`` empty);
    * a built-in task of several agents, by its short name or id;
    * a GroupedEnv, which has its groups already and is returned unchanged, or a callable with a parameter
      ``num_envs`` that makes one.

    AEC envs are converted by PettingZoo. ``policies``: see ``make_groups``; ``env_kwargs`` and
    ``first_slot``: see ``make_env``.
    """
    if num_envs < 1:
        raise ConfigError(f"num_envs is {num_envs}: at least one env is needed")
    kwargs = env_kwargs or {}
    if isinstance(env, GroupedEnv) and not isinstance(env, type):
        _check_made(env, num_envs, env.device, kwargs)
        if policies != "shared" or first_slot:
            raise ConfigError(
                f"policies = {policies!r} and first_slot = {first_slot} cannot reach a {type(env).__name__} "
                "that is made already, with its groups and slots"
            )
        return env
    task = task_name(env)
    if task is not None and TASKS[task].has_agents:
        made = make_env(env, num_envs, env_kwargs=kwargs, first_slot=first_slot)
        return AgentGroups(made, made.agent_names, policies)  # pyright: ignore[reportAttributeAccessIssue]
    make = env
    if isinstance(env, str):
        make = find_pettingzoo(env) if env.startswith(PREFIX) else resolve_env(env)
    elif isinstance(env, ModuleType):
        make = maker(env)
    if is_pettingzoo(make) and not callable(make) and not isinstance(make, str):
        if num_envs != 1 or kwargs or first_slot:
            raise ConfigError(
                f"env is one {type(env).__name__}, and num_envs = {num_envs}, env_kwargs = {kwargs}, "
                f"first_slot = {first_slot}: give a callable that makes it, such as its class"
            )
        return PettingZooLoop([lambda: env], policies)
    if not callable(make):
        name = env if isinstance(env, str) else f"a {type(env).__name__}"
        raise ConfigError(
            f"env is {name}, which has no groups of agents: policies is for PettingZoo envs "
            f"('{PREFIX}NAME', a callable, an object), GroupedEnvs and tasks of several agents "
            f"({', '.join(name for name, task in TASKS.items() if task.has_agents)}), leave it out"
        )
    if makes_batches(make):
        made = make_batch(make, num_envs, torch.device("cpu"), kwargs)
        if not isinstance(made, GroupedEnv):
            raise ConfigError(f"{_name(make)} made a {type(made).__name__}, not a GroupedEnv: use make_env")
        return make_grouped_env(made, num_envs, policies=policies, first_slot=first_slot)
    with _making(env if isinstance(env, str) else _name(make), kwargs):
        return PettingZooLoop([lambda: make(**kwargs)] * num_envs, policies, first_slot=first_slot)


def _one_group(env: Any, num_envs: int, device: torch.device | str, **options: Any) -> BatchedEnv:
    """All agents as the rows of one BatchedEnv, so that they share a policy."""
    return _one_view(make_grouped_env(env, num_envs, **options), device)


def _one_view(env: GroupedEnv, device: torch.device | str) -> BatchedEnv:
    """The rows of the env's only group."""
    if len(env.groups) > 1:
        env.close()
        raise ConfigError(
            f"this env has the groups {', '.join(env.groups)}: make_env is for one, use make_grouped_env"
        )
    (view,) = group_views(env).values()
    return on_device(view, device)


def is_multi_agent(env: Any) -> bool:
    """Whether ``env`` is for ``make_grouped_env``: a GroupedEnv, or a PettingZoo env, class, module or name.

    Nothing is made or imported: a function of the user's that returns a PettingZoo env, and a name
    "module:attribute" outside of PettingZoo, are False.
    """
    return is_pettingzoo(env) or (isinstance(env, GroupedEnv) and not isinstance(env, type))


def makes_batches(env: Any) -> bool:
    """Whether ``env`` is a callable with a parameter ``num_envs``, which makes all slots at once."""
    is_env_class = isinstance(env, type) and issubclass(env, gym.Env)
    return callable(env) and not is_env_class and not is_made(env) and "num_envs" in parameters(env)


def parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of ``make`` by name."""
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):  # some callables written in C
        return {}


def _name(make: Any) -> str:
    return getattr(getattr(make, "func", make), "__name__", "the callable")


def make_batch(
    make: Any, num_envs: int, device: torch.device, kwargs: dict[str, Any]
) -> BatchedEnv | GroupedEnv:
    """Call a callable with a parameter ``num_envs``, and validate the result."""
    if "num_envs" in kwargs:
        raise ConfigError(
            f"env_kwargs has num_envs, but {_name(make)} gets the setting of that name: num_envs=N "
            "(--num-envs N)"
        )
    where = {"device": device} if "device" in parameters(make) and "device" not in kwargs else {}
    asked = ", ".join(f"{key}={value!r}" for key, value in {"num_envs": num_envs, **where, **kwargs}.items())
    try:
        made = make(num_envs=num_envs, **where, **kwargs)
    except TypeError as error:
        raise ConfigError(
            f"{_name(make)}({asked}) failed: {error}. Options of an env are given by env_kwargs={{...}} "
            "(--task.NAME)"
        ) from error
    except RecollectError:
        raise
    except Exception as error:
        raise _not_made(_name(make), error) from error
    kind = type(made).__name__
    if not isinstance(made, VectorEnv | BatchedEnv | GroupedEnv):
        lacks = [name for name in dir(BatchedEnv) if name[0] != "_" and not hasattr(made, name)]
        raise ConfigError(
            f"{_name(make)}({asked}) made a {kind}. A callable with a parameter num_envs makes all slots at "
            f"once: it must make a BatchedEnv or a VectorEnv. To be a BatchedEnv, {kind} lacks "
            f"{', '.join(lacks)}. A callable that makes a single env must not have that parameter"
        )
    try:
        if made.num_envs != num_envs:
            raise ConfigError(
                f"{_name(make)}({asked}) made a {kind} of {made.num_envs} env slots: it must make as many as "
                "num_envs says: the share of one actor, 1 to read the spaces, up to 16 in evaluations"
            )
        if isinstance(made, VectorEnv):
            return on_device(GymVector(made), device)
        if isinstance(made, GroupedEnv):
            return made
        if not where and made.device.type == "cpu":
            return on_device(made, device)
        _check_made(made, num_envs, device, {})
    except BaseException:
        made.close()
        raise
    return made


def check_wrappable(env: Any, wrap: Sequence[Any] = ()) -> None:
    """Raise ConfigError unless ``env`` consists of single Gymnasium envs, which wrappers are for."""
    is_batch = is_made(env) and not isinstance(env, gym.Env)
    if is_multi_agent(env):
        raise ConfigError(
            f"{'wrap' if wrap else 'drop_obs'} is for Gymnasium envs, and this is a PettingZoo env: wrap it "
            "in a function of your own that makes it, and give that as the env"
        )
    if task_name(env) or is_batch or makes_batches(env):
        kind = "a built-in task" if task_name(env) else "an env"
        name = env if isinstance(env, str) else type(env).__name__ if is_made(env) else _name(env)
        raise ConfigError(
            f"{'wrap' if wrap else 'drop_obs'} is for single Gymnasium envs, and {name} is {kind} that steps "
            "all of its rows together: leave it out, or change the env itself"
        )


def _wrapped(env: Any, wrap: Sequence[Any], drop_obs: Sequence[str]) -> Any:
    """``wrapped`` for an env that a callable has made, which may be of any kind."""
    if wrap or drop_obs:
        check_wrappable(env, wrap)
    return wrapped(env, wrap, drop_obs)


def _looped(
    env: Any, num_envs: int, kwargs: dict[str, Any], finish: Callable[[Any], Any], first_slot: int
) -> GymLoop:
    """Envs of a Gymnasium id or a callable, each finished by ``finish``."""
    is_id = isinstance(env, str)
    make = functools.partial(gym.make, env, disable_env_checker=True) if is_id else env
    name = env if is_id else _name(env)
    with _making(name, kwargs):
        try:
            return GymLoop([lambda: finish(make(**kwargs))] * num_envs, first_slot=first_slot)
        except (gym.error.Error, ModuleNotFoundError) as error:
            lacks = isinstance(error, gym.error.DependencyNotInstalled)
            if isinstance(error, ModuleNotFoundError):  # of the module in the name, or of one that it imports
                module, missing = (
                    name.rpartition(":")[0],
                    error.name or getattr(error.__cause__, "name", None),
                )
                lacks = not module or not f"{module}.".startswith(f"{missing}.")
            if not is_id or lacks:
                raise _not_made(name, error) from error
            hint = nearest(name, [*TASKS, *gym.registry], _key)
            raise ConfigError(
                f"no env is registered as {name!r}{hint}. An env of another package needs its module, "
                f"'module:Env-v0', or an import before (--import MODULE). ({error})"
            ) from None


@contextmanager
def _making(name: str, kwargs: dict[str, Any]) -> Iterator[None]:
    """Name the env in the errors of its constructor."""
    try:
        yield
    except RecollectError:
        raise
    except TypeError as error:
        text = f"does not take the options {kwargs}" if kwargs else "could not be made"
        raise ConfigError(
            f"{name} {text}: {error}. Options of an env are given by env_kwargs={{...}} (--task.NAME)"
        ) from error
    except Exception as error:
        raise _not_made(name, error) from error


def _not_made(name: str, error: Exception) -> EnvError:
    return EnvError(f"{name} could not be made: it raised {type(error).__name__}: {error}")


def _key(name: str) -> str:
    """The name without module, version and case, so that "cartpole" finds CartPole-v1."""
    return name.rsplit(":")[-1].rsplit("-v", 1)[0].lower().replace("-", "").replace("_", "")


def _check_made(env: Any, num_envs: int, device: torch.device, kwargs: dict[str, Any]) -> None:
    kind = type(env).__name__
    if kwargs:
        raise ConfigError(f"env_kwargs {sorted(kwargs)} cannot reach a {kind} that is made already")
    if isinstance(env, gym.Env):
        if num_envs != 1:
            raise ConfigError(
                f"num_envs is {num_envs}, and env is one {kind}: give a callable that makes it, "
                "such as its class or lambda: MyEnv(...)"
            )
    elif env.num_envs != num_envs:
        raise ConfigError(f"num_envs is {num_envs}, and the given {kind} has {env.num_envs}")
    if isinstance(env, BatchedEnv) and env.device.type != device.type:
        fix = "give it device="
        if env.device.type == "cpu":
            fix += f", or wrap it: recollect.envs.on_device.HostEnv(env, {str(device)!r})"
        raise ConfigError(f"device is {device}, and the given {kind} is on {env.device}: {fix}")


def resolved(env: EnvSpec) -> EnvSpec:
    """The object that ``module:attribute`` names; any other ``env`` is returned unchanged."""
    env = adapted(env)
    return resolve_env(env) if isinstance(env, str) and is_importing(env) else env


def is_made(env: Any) -> TypeGuard[gym.Env | VectorEnv | BatchedEnv]:
    """Whether ``env`` is an env instance, not a name or a callable."""
    if isinstance(env, gym.Env | VectorEnv | BatchedEnv | GroupedEnv):
        return not isinstance(env, type)
    return is_pettingzoo_object(env)


def slots(env: Any) -> int:
    """Number of env slots of an env instance."""
    return 1 if isinstance(env, gym.Env) or is_pettingzoo_object(env) else env.num_envs
