"""A config as plain data, for JSON, YAML and reports, and back. Factories are never saved."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from recollect.base.files import short
from recollect.base.parts import own_parts, part_of
from recollect.config import bounds
from recollect.config.algo_choice import ALGOS, algo_name
from recollect.config.core_choice import as_config, name_of
from recollect.config.own_code import OwnCode, as_own_code, code_flags, code_name, option_flags
from recollect.config.policy import ENCODERS, HEADS, EncoderConfig, PolicyConfig
from recollect.config.train import TrainConfig
from recollect.errors import ConfigError

CUSTOM = "custom"
"""Stands for a factory."""
OLD_DEFAULTS = {"normalise_last_action": True}
"""How networks behaved before these settings existed, for files that lack them."""


def config_to_json(
    config: TrainConfig, policy: PolicyConfig, *, made_by: str | None = None
) -> dict[str, Any]:
    """The run's config, with ``policy``, that of the network as it was built.

    ``made_by``: the name of the factory that made the network, or ``CUSTOM``; None if none did.
    """
    own = {name: value for name, value in _values(config).items() if name not in ("policy", "algo")}
    own["wrap"] = [_code(wrapper) for wrapper in config.wrap]
    own["imports"] = list(dict.fromkeys([*config.imports, *_sources(config, policy)]))
    network = {
        "policy": made_by,
        **_values(policy),
        "encoder": _part("encoder", policy.encoder),
        "core": as_mapping(policy.core) or CUSTOM,
        "head": _part("head", policy.head),
    }
    algo = {"name": algo_name(config.algo), **dataclasses.asdict(config.algo)}
    return own | {"policy": network, "algo": algo}


def policy_config_from_json(
    data: dict[str, Any], where: Any, named: Mapping[str, Any] | None = None, *, trust: str = ""
) -> PolicyConfig:
    """The network's config from ``data["policy"]``.

    Args:
        data: a config as JSON.
        where: the folder, for errors.
        named: the parts that are code and that the user has given again, by "core", "encoder" and "head".
        trust: how to trust the folder, for errors.
    """
    fields, given = OLD_DEFAULTS | data["policy"], dict(named or {})
    saved = {part: fields.pop(part, None) for part in ("policy", "encoder", "core", "head")}
    code = {part: spec for part, spec in saved.items() if spec == CUSTOM or code_name(spec) is not None}
    bounds.check_numbers([fields, *(spec for part, spec in saved.items() if part not in code)])
    if missing := {part: spec for part, spec in code.items() if given.get(part) is None}:
        raise ConfigError(_unnamed(where, missing, trust))
    for part, spec in given.items():
        if part not in code:
            name = spec if isinstance(spec, str) else "one of your own"
            raise ConfigError(
                f"{where} was saved with the {part} {_name(saved[part])}, which is built in, and {part} is "
                f"{name}: leave {part} (--{part}) out"
            )
    encoder, core = saved["encoder"], saved["core"]
    if "encoder" in code:
        encoder = _repeated(where, "encoder", encoder, given["encoder"], trust)
    elif isinstance(encoder, dict):
        own = {key: value for key, value in encoder.items() if key != "name"}
        encoder = (EncoderConfig if encoder["name"] == "encoder" else ENCODERS[encoder["name"]])(**own)
    core = _repeated(where, "core", core, given["core"], trust) if "core" in code else as_config(core)
    if "head" in code:
        head = _repeated(where, "head", saved["head"], given["head"], trust)
    else:
        own = {"name": "actor_critic", **saved["head"]}  # files from before heads had names
        head = HEADS[own.pop("name")](**own)
    return PolicyConfig(**fields | {"core": core, "encoder": encoder, "head": head})


def _name(spec: Any) -> Any:
    return spec.get("name") if isinstance(spec, dict) else spec


def _unnamed(where: Any, missing: dict[str, Any], trust: str) -> str:
    """The error for parts that are code and that the user has not given."""
    custom = [part for part, spec in missing.items() if spec == CUSTOM]
    if custom:
        again = "" if "policy" in custom else f", or with {' and '.join(f'{part}=...' for part in custom)}"
        return (
            f"{where} was saved with a custom {' and '.join(custom)}, and code is never saved: load it with "
            "policy=factory, a function (observation_space, action_space) -> Policy that makes the same "
            f"network{again}"
        )
    flags = shlex.join(flag for part, spec in missing.items() for flag in code_flags(part, spec))
    python = ", ".join(f"{part}={spec!r}" for part, spec in missing.items())
    return (
        f"the network of {where} is code, {', '.join(str(code_name(spec)) for spec in missing.values())}, "
        f"which is not imported automatically. If you trust it, name it again: {short(flags)} (in Python "
        f"{short(python)}){trust}"
    )


def _repeated(where: Any, part: str, saved: Any, given: Any, trust: str) -> Any:
    """The part that the user gave again. Options in the folder must be repeated, too."""
    given = as_own_code(part, given)
    if not isinstance(given, OwnCode) or not isinstance(saved, dict):
        return given
    missing = {name: value for name, value in saved.items() if name not in ("name", *given.options)}
    if missing and given.name == saved["name"]:
        raise ConfigError(
            f"{where} holds options for the {part} {given.name}. If you trust them, repeat them: "
            f"{short(shlex.join(option_flags(part, missing)))}{trust}"
        )
    return given


def config_from_json(data: dict[str, Any], policy: PolicyConfig) -> TrainConfig:
    """The run's config, with ``policy`` in place of the saved one, and without wrappers, which are code."""
    algo, data = dict(data["algo"]), dict(data)
    data.pop("wrap", None)
    return TrainConfig(**data | {"algo": ALGOS[algo.pop("name")](**algo), "policy": policy})


def flatten(config: dict[str, Any]) -> dict[str, Any]:
    """The config of a run.json under the names of flags: ``rollout``, ``core``, ``core.hidden``."""
    flat: dict[str, Any] = {}
    parts = [config.get(part) for part in ("policy", "algo")]
    own = {name: value for name, value in config.items() if name not in ("policy", "algo")}
    for fields in (own, *(part for part in parts if isinstance(part, dict))):
        for name, value in fields.items():
            if name == "policy" and value is None:
                continue
            if isinstance(value, dict):
                flat |= {name: value["name"]} if "name" in value else {}
                flat |= {f"{name}.{key}": sub for key, sub in value.items() if key != "name"}
            else:
                flat["algo" if name == "name" else name] = value
    return flat


def as_mapping(spec: Any) -> Any:
    """A core's config as a mapping of name and fields; None if a part of it is code."""
    if isinstance(spec, str):
        return spec
    if isinstance(spec, OwnCode):
        return spec.to_json()
    name = name_of(spec)
    if name is None:
        return None
    found: dict[str, Any] = {"name": name}
    for field, value in _values(spec).items():
        found[field] = plain(value)
        if found[field] is None and value is not None:
            return None
    return found


def plain(value: Any) -> Any:
    """A field of a core's config, with configs of other cores as mappings; None if one is code."""
    if isinstance(value, tuple):
        parts = [plain(part) for part in value]
        return None if None in parts else parts
    return as_mapping(value) if hasattr(value, "build") or callable(value) else value


def _sources(config: TrainConfig, policy: PolicyConfig) -> list[str]:
    """The modules that register parts of this config."""
    used = (config.algo, policy.core, policy.encoder, policy.head, config.runtime)
    names, configs = [part for part in used if isinstance(part, str)], [type(part) for part in used]
    found = [part for part in own_parts() if part.name in names or part.config in configs]
    return [part.source for part in found if part.source is not None]


def _part(kind: str, spec: Any) -> Any:
    """An encoder or head: a mapping of name and fields, a name, or None; ``CUSTOM`` for a factory."""
    if spec is None or isinstance(spec, str):
        return spec
    part = part_of(kind, spec)
    if part is None:
        return _code(spec)
    return {"name": "encoder" if isinstance(spec, EncoderConfig) else part.name, **dataclasses.asdict(spec)}


def _code(part: Any) -> Any:
    """Code as JSON: by its name if it has one."""
    return part.to_json() if isinstance(part, OwnCode) else CUSTOM


def _values(config: Any) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
