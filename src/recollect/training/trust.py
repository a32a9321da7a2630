"""What the folder of a run or a saved agent may not decide by itself (decision 024).

A folder may come from anybody. Reading one executes nothing and sends nothing. Settings that would reach out
of this machine, or code that is not Recollect's own, take effect only if the user names them again:

=====================  =============================================  ================================
saved                  what it could do                               named again by
=====================  =============================================  ================================
env ``module:Env``     import code                                    ``env=`` (``--env``)
``env_kwargs``         reach any env that is no task of Recollect's   ``env_kwargs=`` (``--task.NAME``)
``ray_address``        join a cluster                                 ``ray_address=``
``sinks``: "wandb"     send metrics to a server                       ``sinks=``
=====================  =============================================  ================================

Sizes are bounded: a folder cannot ask for more memory or processes than the runs that are meant here.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from recollect.base import provenance
from recollect.base.files import short
from recollect.config.convert import plain_value
from recollect.config.tasks import task_name
from recollect.config.train import TrainConfig
from recollect.envs.factory import EnvSpec, is_made
from recollect.envs.named import is_importing
from recollect.errors import ConfigError
from recollect.experience.rollout import rollout_size
from recollect.policy.policy import Policy

REMOTE_SINKS = ("wandb",)
"""Those that send metrics away from this machine."""
UNKNOWN = "the env of this agent is not known by name: give it again with env=... (--env)"


@dataclass(frozen=True, slots=True)
class Unnamed:
    """What only the folder of an agent names, and the user does not."""

    env: str = UNKNOWN
    """Why there is no env, if there is none, and what to do."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings that reach out of this machine."""
    where: Path | None = None

    def check(self, config: TrainConfig) -> None:
        """Raise if training with ``config`` would use a setting that only the folder has named."""
        for name, value in self.settings.items():
            if getattr(config, name) == value:
                raise ConfigError(_outward_words(self.where, name, value))


def named_env(
    where: Path,
    known: str | None,
    options: dict[str, Any],
    env: EnvSpec | None,
    given: dict[str, Any] | None,
) -> tuple[EnvSpec | None, dict[str, Any], str]:
    """The env and its options; no env, and why, if the user has not named what has to be named.

    Args:
        where: the folder.
        known: the name of the env in the folder.
        options: those in the folder.
        env: as the user has named it.
        given: options that the user has named.
    """
    if env is None:
        if known is None:
            return None, options, UNKNOWN
        if is_importing(known):
            return None, options, _code_words(known)
        env = known
    elif isinstance(env, str) and env != known and not is_importing(env):
        options = {}  # another world: its options would be another's
    if is_made(env):
        return env, options, ""
    named = given or {}
    missing = {} if task_name(env) else {name: options[name] for name in options if name not in named}
    if missing:
        return None, options, _option_words(where, env, missing)
    return env, options | named, ""


def outward(config: TrainConfig, given: Collection[str]) -> dict[str, Any]:
    """The settings of ``config`` that reach out of this machine and are not among the ``given`` names."""
    found: dict[str, Any] = {}
    if config.ray_address is not None:
        found["ray_address"] = config.ray_address
    if set(REMOTE_SINKS) & set(config.sinks):
        found["sinks"] = config.sinks
    return {name: value for name, value in found.items() if name not in given}


def check_memory(config: TrainConfig, policy: Policy) -> None:
    """Refuse, before anything is allocated, rollouts that this machine has no memory for."""
    algo, have = config.algo, provenance.memory()
    if config.device.startswith("cuda"):  # several learners share the rows
        have = sum(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))
    need = rollout_size(algo, policy, config.num_envs).total
    if have is not None and need > have:
        raise ConfigError(
            f"a rollout of {algo.rollout} steps x {config.num_envs} env slots takes {need / 1e9:,.1f} GB, "
            f"and this machine has {have / 1e9:,.1f} GB: start a new training with a smaller num_envs "
            "or rollout (init_from=...)"
        )


def option_flags(options: dict[str, Any]) -> list[str]:
    """Options of an env as words of a command line."""
    return [f"--task.{name}={_word(value)}" for name, value in options.items()]


def _word(value: Any) -> str:
    """As ``--task.NAME`` reads it back."""
    return value if isinstance(value, str) and plain_value(value) == value else json.dumps(value)


def _code_words(known: str) -> str:
    return (
        f"the env of this agent is somebody's own code, {known}, which is never imported by itself: "
        f"if you trust it, give it again with env={known!r} (--env {known})"
    )


def _option_words(where: Path, env: EnvSpec, missing: dict[str, Any]) -> str:
    name = env if isinstance(env, str) else getattr(env, "__name__", "that is given")
    flags, options = short(shlex.join(option_flags(missing))), short(repr(missing))
    return (
        f"{where} holds options for the env {name}, which is not one of Recollect's tasks. Only you may pass "
        f"options to such an env: if you trust these, repeat them, {flags} (in Python env_kwargs={options})"
    )


def _outward_words(where: Path | None, name: str, value: Any) -> str:
    if name == "ray_address":
        return (
            f"{where} names the Ray cluster {value!r}. Only you may choose the cluster: if you trust it, "
            f"repeat it, --ray-address {shlex.quote(value)} (in Python ray_address={value!r}); for a cluster "
            "on this machine give --ray-address none (ray_address=None)"
        )
    remote = " and ".join(sink for sink in value if sink in REMOTE_SINKS)
    kept = tuple(sink for sink in value if sink not in REMOTE_SINKS)
    return (
        f"{where} sends its metrics to {remote}. Only you may send metrics away from this machine: repeat "
        f"--sinks {','.join(value)} (in Python sinks={tuple(value)!r}), or send nothing with "
        f"--sinks {','.join(kept) or 'none'} (sinks={kept!r})"
    )
