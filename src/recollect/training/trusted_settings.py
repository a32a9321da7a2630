"""Settings of a run or saved agent that take effect only if the user repeats them (decision 024).

A folder may come from a stranger. Reading one executes no code and sends nothing. These settings import code
or connect to other machines, so the user has to name them again:

=====================  ==========================================  ================================
saved                  effect                                      repeated by
=====================  ==========================================  ================================
env ``module:Env``     imports code                                ``env=`` (``--env``)
``env_kwargs``         arguments of an env that is not built in    ``env_kwargs=`` (``--task.NAME``)
``wrap``               imports code                                ``wrap=`` (``--wrap``)
core ``module:Class``  imports code                                ``core=``; also ``encoder=``,
                                                                   ``head=``, ``policy=``
``imports``            imports code that registers parts           ``imports=`` (``--import``)
``ray_address``        connects to a cluster                       ``ray_address=``
``sinks``: "wandb"     sends metrics to a server                   ``sinks=``
=====================  ==========================================  ================================

A run that the user trusts (``trusted_runs``) may import its own code without that. Sizes are bounded, so that
a folder cannot exhaust memory or processes.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from recollect.base.files import short
from recollect.base.parts import IF_OWN, PARTS
from recollect.config import core_choice
from recollect.config.own_code import as_wrap, code_flags, code_name, option_flags
from recollect.config.serialise import CUSTOM
from recollect.config.tasks import task_name
from recollect.config.train import TrainConfig
from recollect.envs.env_names import is_importing
from recollect.envs.factory import EnvSpec, is_made
from recollect.errors import ConfigError

REMOTE_SINKS = ("wandb",)
"""Sinks that send metrics to another machine."""
UNKNOWN = "the env of this agent has no name that could be saved: give it again with env=... (--env)"


@dataclass(frozen=True, slots=True)
class Unnamed:
    """The settings of an agent's folder that the user has not repeated."""

    env: str = UNKNOWN
    """The message if the env is not available: cause and fix."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings that connect to other machines."""
    where: Path | None = None
    """The folder."""

    def check(self, config: TrainConfig) -> None:
        """Raise ConfigError if ``config`` has a setting that only the folder names."""
        for name, value in self.settings.items():
            if getattr(config, name) == value:
                raise ConfigError(_outward_words(self.where, name, value))


def named_env(
    where: Path,
    known: str | None,
    options: dict[str, Any],
    env: EnvSpec | None,
    given: dict[str, Any] | None,
    *,
    trust: str = "",
) -> tuple[EnvSpec | None, dict[str, Any], str]:
    """The env, its options and an error message; without a required repetition the env is None.

    ``known`` and ``options`` are the env's name and options in the folder ``where``, ``env`` and ``given``
    those of the user. ``trust``: how to trust the folder, for the message.
    """
    if env is None:
        if known is None:
            return None, options, UNKNOWN
        if is_importing(known):
            error = (
                f"the env of this agent is code, {known}, which is not imported automatically: if you trust "
                f"it, give it again with env={known!r} (--env {known}){trust}"
            )
            return None, options, error
        env = known
    elif isinstance(env, str) and env != known and not is_importing(env):
        options = {}  # another env: the known options are not meant for it
    if is_made(env):
        return env, options, ""
    named = given or {}
    missing = {} if task_name(env) else {name: options[name] for name in options if name not in named}
    if not missing:
        return env, options | named, ""
    name = env if isinstance(env, str) else getattr(env, "__name__", "that is given")
    flags, words = short(shlex.join(option_flags("task", missing))), short(repr(missing))
    error = (
        f"{where} holds options for the env {name}, which is not a built-in task. If you trust these "
        f"options, repeat them: {flags} (in Python env_kwargs={words}){trust}"
    )
    return None, options, error


@dataclass(frozen=True, slots=True)
class Named:
    """Settings of a folder that import code, as the user has named them again; None: not named."""

    env: EnvSpec | None = None
    env_kwargs: dict[str, Any] | None = None
    policy: Any = None
    core: Any = None
    encoder: Any = None
    head: Any = None
    wrap: Any = None
    imports: Sequence[str] | None = None

    @property
    def network(self) -> dict[str, Any]:
        """The parts of the network that are named."""
        return {
            name: part for name in ("core", "encoder", "head") if (part := getattr(self, name)) is not None
        }

    def trusting(self, saved: dict[str, Any]) -> Named:
        """As if the user had named all of these settings that are not named (``trusted_runs.required``)."""
        found = {name: value for name, value in saved.items() if getattr(self, name) is None}
        if self.env is None or self.env == saved.get("env"):  # another env has other options
            found["env_kwargs"] = saved.get("env_kwargs", {}) | (self.env_kwargs or {})
        else:
            found.pop("env_kwargs", None)
        return replace(self, **found)


def check_registered(where: Path, config: Any, *, trust: str = "") -> None:
    """Raise ConfigError if the folder ``where`` names a part that nothing has registered in this process.

    ``config``: as JSON; ``trust``: as in ``named_env``.
    """
    for kind, name in _part_names(config):
        names = core_choice.known if kind == "core" else PARTS[kind]
        if name not in names and (kind, name) != ("encoder", "encoder"):
            imports, fix = config.get("imports"), IF_OWN
            if imports and isinstance(imports, list):
                words = short(shlex.join(f"--import={source}" for source in imports))
                fix = (
                    "it is registered by code, which is not imported automatically. If you trust that code, "
                    f"name it again: {words} (in Python import it, or give imports={short(repr(imports))})"
                    f"{trust}"
                )
            raise ConfigError(f"{where} has the {kind} {short(repr(name))}, which is not built in: {fix}")


def _part_names(config: Any) -> Iterator[tuple[str, str]]:
    """Kind and name of the parts in a config as JSON, except those that are code or damaged."""
    if not isinstance(config, dict):
        return
    network = config.get("policy")
    network = network if isinstance(network, dict) else {}
    found = [("algo", config.get("algo")), ("runtime", config.get("runtime"))]
    found += [(kind, network.get(kind)) for kind in ("core", "encoder", "head")]
    for kind, spec in found:
        name = spec.get("name") if isinstance(spec, dict) else spec
        if isinstance(name, str) and name != CUSTOM and code_name(name) is None:
            yield kind, name
        if kind == "core" and isinstance(spec, dict):  # a stack or pmm has cores inside
            inner = [value if isinstance(value, list) else [value] for value in spec.values()]
            named = [part.get("name") for parts in inner for part in parts if isinstance(part, dict)]
            yield from (("core", name) for name in named if isinstance(name, str))


def named_wrap(where: Path, saved: Any, given: Any, *, trust: str = "") -> tuple[tuple[Any, ...], str]:
    """The wrappers, and an error message if the folder ``where`` has some that the user has not named.

    ``trust``: as in ``named_env``.
    """
    if given is not None or not saved:
        return as_wrap(given), ""
    if not isinstance(saved, list) or not all(code_name(spec) for spec in saved):
        return (
            (),
            "the wrappers of this agent's env have no names that could be saved: give them with wrap=[...]",
        )
    words = shlex.join(word for spec in saved for word in code_flags("wrap", spec))
    return (), (
        f"the env of {where} has wrappers, which are code and not imported automatically: if you trust them, "
        f"name them again, {short(words)} (in Python wrap={short(repr(saved))}); for an env without "
        f"wrappers give --wrap none (wrap=[]){trust}"
    )


def outward(config: TrainConfig, given: Collection[str]) -> dict[str, Any]:
    """The settings of ``config`` that connect to other machines and are not among the ``given`` names."""
    found: dict[str, Any] = {}
    if config.ray_address is not None:
        found["ray_address"] = config.ray_address
    if set(REMOTE_SINKS) & set(config.sinks):
        found["sinks"] = config.sinks
    return {name: value for name, value in found.items() if name not in given}


def outward_flags(config: TrainConfig) -> list[str]:
    """The settings that connect to other machines as command-line flags."""
    flags = []
    for name, value in outward(config, ()).items():
        text = value if isinstance(value, str) else ",".join(value)
        flags.append(f"--{name.replace('_', '-')}={text}")
    return flags


def _outward_words(where: Path | None, name: str, value: Any) -> str:
    if name == "ray_address":
        return (
            f"{where} names the Ray cluster {value!r}. If you trust it, repeat it: --ray-address "
            f"{shlex.quote(value)} (in Python ray_address={value!r}); for a cluster on this machine give "
            "--ray-address none (ray_address=None)"
        )
    remote = " and ".join(sink for sink in value if sink in REMOTE_SINKS)
    kept = tuple(sink for sink in value if sink not in REMOTE_SINKS)
    return (
        f"{where} sends its metrics to {remote}. To allow it, repeat --sinks {','.join(value)} (in Python "
        f"sinks={tuple(value)!r}); to send nothing, give --sinks {','.join(kept) or 'none'} (sinks={kept!r})"
    )
