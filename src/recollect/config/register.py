"""``recollect.register``: your own core, algorithm, encoder, head, env adapter or runtime, by a name.

A registered part is as a built-in one: it has a name, flags, help, and a place in config files and run
folders. The command line finds it by ``--import MODULE``, Python by an ordinary import.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from recollect.base.parts import PARTS, Part, current_source
from recollect.base.registry import load
from recollect.config.algo_shared import AlgoConfig
from recollect.config.cores import CoreConfig
from recollect.config.fields import field_names
from recollect.config.replay import ReplayConfig
from recollect.config.settings import SECTIONS
from recollect.config.tasks import TASKS
from recollect.config.train import ALIASES, TrainConfig, homes
from recollect.errors import ConfigError, nearest

Kind = Literal["core", "algo", "encoder", "head", "env", "runtime"]
"""The kinds of parts that can be registered."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Contract:
    """The requirements on a part of one kind."""

    inputs: tuple[str, ...]
    """The arguments of its code; an algorithm has functions instead."""
    config: type | None
    """The base class of its settings; None: any dataclass, or none at all."""
    example: str
    """For errors: a definition that fits."""


CONTRACTS: dict[str, Contract] = {
    "core": Contract(("input_size", "config"), CoreConfig, "class Mine(recollect.Core)"),
    "algo": Contract((), AlgoConfig, "a class with acting, targets and loss, such as recollect.algos.ppo"),
    "encoder": Contract(("observation_space", "config"), object, "class Mine(torch.nn.Module)"),
    "head": Contract(
        ("action_space", "features", "config"), object, "class Mine(recollect.policy.head_contract.Head)"
    ),
    "env": Contract(("source",), None, "def mine(source, num_envs, **options)"),
    "runtime": Contract(("env", "policy", "config", "rows"), None, "def mine(env, policy, config, rows)"),
}
BASES = {"core": "recollect.cores.contract:Core", "head": "recollect.policy.head_contract:Head"}
"""The base classes of parts that are classes."""


def register(
    kind: Kind, name: str, *, config: type | None = None, accepts: type | None = None
) -> Callable[[T], T]:
    """Register a part of your own under ``name``; a decorator of its class or function.

    ======== =============================================== =================================
    kind     the decorated code                              ``config``, a dataclass
    ======== =============================================== =================================
    core     ``recollect.Core`` made by (input_size, config) extends ``recollect.CoreConfig``
    encoder  module made by (observation_space, config)      any
    head     ``recollect.policy.head_contract.Head`` made by any
             (action_space, features, config)
    algo     ``recollect.learning.algorithm.Algorithm``, or  extends ``recollect.LearnerConfig``,
             ``learning.replay_algorithm.ReplayAlgorithm``   or ``recollect.ReplayConfig``
    env      (source, num_envs, options) -> BatchedEnv       any or none: the options
    runtime  (env, policy, config, rows) -> Collector        none
    ======== =============================================== =================================

    Args:
        kind: of the part.
        name: such as "mine", for ``--core mine`` or ``core="mine"``. An env adapter gets all envs
            ``mine/SOURCE``.
        config: the class of its settings, ``--core.width 64``. Every field has a default; the docstring
            under it is its help.
        accepts: for an env adapter, the type of objects that it takes in place of a source, too.

    Example:
        >>> @register("core", "mine", config=MineConfig)  # doctest: +SKIP
        ... class Mine(rc.Core): ...
    """
    if kind not in CONTRACTS:
        raise ConfigError(
            f"register: there is no kind {kind!r}{nearest(str(kind), CONTRACTS)}; choose {_kinds()}"
        )
    _check_name(kind, name)
    _check_config(kind, name, config)
    if accepts is not None and (kind != "env" or not isinstance(accepts, type)):
        raise ConfigError(
            f"register: accepts = {accepts!r}: it is the type of objects that an env adapter takes"
        )

    def add(code: T) -> T:
        own = code() if kind == "algo" and isinstance(code, type) else code
        _check_code(kind, name, own, config)
        named = code if hasattr(code, "__qualname__") else type(code)
        part = Part(kind, name, config, own, current_source(named.__module__), accepts, is_own=True)
        _check_free(part)
        PARTS[kind][name] = part
        return code

    return add


def _kinds() -> str:
    return ", ".join(get_args(Kind))


def _check_name(kind: str, name: Any) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][\w-]*", name):
        raise ConfigError(
            f"register: name = {name!r}: a name has letters, digits, '_' and '-', and starts with a letter"
        )
    taken = ("none", "custom", "recollect") if kind != "env" else ("recollect", *TASKS)
    if name in taken:
        raise ConfigError(f"register: the name {name!r} has a meaning of its own: choose another")


def _check_free(part: Part) -> None:
    """Raise for a name or config of another part. A notebook's cell may run again."""
    for other in PARTS[part.kind].values():
        is_again = other.is_own and _identity(other) == _identity(part)
        if other.name == part.name and not is_again:
            who = f"registered by {other.source or '__main__'}" if other.is_own else "built in"
            raise ConfigError(f"register: the {part.kind} {part.name!r} is {who}: choose another name")
        if other.name != part.name and part.config is not None and other.config is part.config:
            raise ConfigError(
                f"register: {part.config.__name__} is the config of the {part.kind} {other.name!r}: give "
                f"{part.name!r} one of its own, class MineConfig({part.config.__name__})"
            )


def _identity(part: Part) -> tuple[str, str]:
    named = part.code if hasattr(part.code, "__qualname__") else type(part.code)
    return named.__module__, named.__qualname__


def _check_config(kind: str, name: str, config: Any) -> None:
    base = CONTRACTS[kind].config
    if config is None and base is None:
        return
    where = f"register: the config of the {kind} {name!r}"
    extends = "" if base in (None, object) else f" that extends recollect.{base.__name__}"
    if kind == "runtime":
        raise ConfigError(
            f"{where}: a runtime has the settings of the run, and none of its own: leave it out"
        )
    if (
        not isinstance(config, type)
        or "__dataclass_fields__" not in vars(config)
        or not issubclass(config, base or object)
    ):
        what = "missing" if config is None else f"{getattr(config, '__name__', config)}"
        raise ConfigError(
            f"{where} is {what}: it must be a dataclass{extends}, @dataclass(frozen=True) "
            f"class MineConfig{f'(recollect.{base.__name__})' if extends else ''}"  # pyright: ignore
        )
    try:
        config()
    except TypeError as error:
        raise ConfigError(
            f"{where}: {config.__name__}() failed ({error}): give every field a default"
        ) from None
    if kind == "algo":
        flat = (*field_names(TrainConfig), *SECTIONS, *ALIASES, "env", "preset", "config", "import")
        taken = [field for field in field_names(config) if field in flat or homes().get(field) == "policy"]
        if taken:
            raise ConfigError(
                f"{where} has {', '.join(taken)}, which is another setting of a run: rename the field"
            )


def _check_code(kind: str, name: str, code: Any, config: type | None) -> None:
    """Raise unless the code meets its contract, as far as that can be seen before it is called."""
    contract = CONTRACTS[kind]
    where, fix = f"register: the {kind} {name!r}", f"it must be {contract.example}"
    if kind == "algo":
        parts = ("acting", "targets", "loss")
        if config is not None and issubclass(config, ReplayConfig):
            parts, fix = ("acting", "loss"), "a class with acting and loss, such as recollect.algos.r2d2"
        lacks = [part for part in parts if not callable(getattr(code, part, None))]
        if lacks:
            raise ConfigError(f"{where} lacks {', '.join(lacks)}: {fix}")
        return
    base = load(BASES[kind]) if kind in BASES else object
    if not callable(code) or (isinstance(code, type) and not issubclass(code, base)):
        raise ConfigError(f"{where} is {getattr(code, '__name__', code)!r}: {fix}")
    options = dict.fromkeys(field_names(config)) if kind == "env" and config is not None else {}
    try:
        inspect.signature(code).bind_partial(*contract.inputs, **options)
        if kind != "env":
            inspect.signature(code).bind(*contract.inputs)
    except TypeError as error:
        given = ", ".join((*contract.inputs, *(f"{option}=..." for option in options)))
        raise ConfigError(f"{where} cannot be called with ({given}): {error}; {fix}") from None
    except ValueError:  # some callables written in C have no signature
        pass
