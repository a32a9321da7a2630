"""From whatever a user calls an env to a BatchedEnv."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium as gym
import torch
from gymnasium.vector import VectorEnv

from recollect.envs.batched import BatchedEnv
from recollect.envs.gym_loop import GymLoop
from recollect.envs.gym_vector import GymVector
from recollect.envs.on_device import on_device
from recollect.errors import ConfigError

__all__ = ["EnvLike", "GymLoop", "GymVector", "make_env"]

EnvLike = str | Callable[..., gym.Env] | gym.Env | VectorEnv | BatchedEnv
"""What ``make_env`` takes."""


def make_env(
    env: EnvLike,
    num_envs: int,
    *,
    device: torch.device | str = "cpu",
    env_kwargs: dict[str, Any] | None = None,
    first_slot: int = 0,
) -> BatchedEnv:
    """A BatchedEnv of ``num_envs`` slots, with its tensors on ``device``. ``env`` is one of

    * a built-in task: its short name ("delayed-cue") or its id ("recollect/DelayedCue-v0");
    * a Gymnasium id, also "module:Env-v0", which imports ``module`` first;
    * a callable that returns a new ``gymnasium.Env`` in each call, such as an Env class;
    * one ``gymnasium.Env`` (then ``num_envs`` is 1), a VectorEnv, or a BatchedEnv, which comes back as
      it is. These are made already, so that ``num_envs`` must be theirs and ``env_kwargs`` empty.

    What Gymnasium makes steps on the CPU; with another ``device`` its numbers travel (``HostEnv``).

    ``env_kwargs`` go to the task, to ``gymnasium.make`` or to the callable. With ``first_slot`` they are the
    slots from that number on of a larger env, with the seeds that they would have in there.
    """
    if num_envs < 1:
        raise ConfigError(f"num_envs is {num_envs}: at least one env is needed")
    kwargs = env_kwargs or {}
    if isinstance(env, str):
        return _from_name(env, num_envs, device, kwargs, first_slot)
    if isinstance(env, gym.Env | VectorEnv | BatchedEnv) and not isinstance(env, type):
        if first_slot:
            raise ConfigError(f"first_slot is {first_slot}, and the slots of a made env begin at 0")
        _check_made(env, num_envs, torch.device(device), kwargs)
        if isinstance(env, BatchedEnv):
            return env
        if isinstance(env, VectorEnv):
            return on_device(GymVector(env), device)
        return on_device(GymLoop([lambda: env]), device)
    if callable(env):
        return _looped(
            functools.partial(env, **kwargs),
            getattr(env, "__name__", "the callable"),
            num_envs,
            device,
            kwargs,
            first_slot,
        )
    raise ConfigError(
        f"env is a {type(env).__name__}: give a task's name, a Gymnasium id, a callable that returns a "
        "gymnasium.Env, a VectorEnv or a BatchedEnv"
    )


def _from_name(
    name: str, num_envs: int, device: torch.device | str, kwargs: dict[str, Any], first_slot: int
) -> BatchedEnv:
    from recollect.tasks import TASKS, make_task  # the tasks are built on envs, so only here

    tasks = [*TASKS, *(task.id for task in TASKS.values())]
    if name in tasks:
        task = make_task(name, num_envs, device=device, **kwargs)
        task.first_slot = first_slot
        return task
    make = functools.partial(gym.make, name, disable_env_checker=True, **kwargs)
    try:
        return _looped(make, name, num_envs, device, kwargs, first_slot)
    except (gym.error.Error, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and ":" not in name:
            raise  # a dependency of a known env, not the env
        raise ConfigError(_unknown(name, [*tasks, *gym.registry], error)) from None


def _looped(
    make: Callable[[], gym.Env],
    name: str,
    num_envs: int,
    device: torch.device | str,
    kwargs: dict[str, Any],
    first_slot: int,
) -> BatchedEnv:
    try:
        loop = GymLoop([make] * num_envs, first_slot=first_slot)
    except TypeError as error:
        text = f"does not take the options {kwargs}" if kwargs else "could not be made"
        raise ConfigError(
            f"{name} {text}: {error}. Options of an env are given by env_kwargs={{...}} (--task.NAME)"
        ) from error
    return on_device(loop, device)


def _unknown(name: str, known: Iterable[str], error: Exception) -> str:
    # Compared without version and case, so that "cartpole" finds CartPole-v1.
    by_key: dict[str, str] = {}
    for other in known:
        by_key[_key(other)] = other  # the last of several versions
    near = difflib.get_close_matches(_key(name), by_key, n=1)
    hint = f": did you mean {by_key[near[0]]!r}?" if near else "."
    return (
        f"no env is registered as {name!r}{hint} An env of another package needs its module, "
        f"'module:Env-v0', or an import before. ({error})"
    )


def _key(name: str) -> str:
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
