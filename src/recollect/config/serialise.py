"""A config as plain data, for JSON, YAML and reports, and back. Factories are never saved."""

from __future__ import annotations

import dataclasses
from typing import Any

from recollect.config import bounds
from recollect.config.algo_choice import ALGOS, algo_name
from recollect.config.core_choice import as_config, name_of
from recollect.config.policy import EncoderConfig, HeadConfig, PolicyConfig
from recollect.config.train import TrainConfig
from recollect.errors import ConfigError

CUSTOM = "custom"
"""Stands for a factory."""


def config_to_json(
    config: TrainConfig, policy: PolicyConfig, *, custom_policy: bool = False
) -> dict[str, Any]:
    """The run's config, with ``policy``, that of the network as it was built.

    ``custom_policy``: whether a factory made the network.
    """
    own = {name: value for name, value in _values(config).items() if name not in ("policy", "algo")}
    encoder = policy.encoder
    if isinstance(encoder, EncoderConfig):
        encoder = {"name": "encoder", **dataclasses.asdict(encoder)}
    elif encoder is not None and not isinstance(encoder, str):
        encoder = CUSTOM
    network = {
        "policy": CUSTOM if custom_policy else None,
        **_values(policy),
        "encoder": encoder,
        "core": as_mapping(policy.core) or CUSTOM,
        "head": dataclasses.asdict(policy.head),
    }
    algo = {"name": algo_name(config.algo), **dataclasses.asdict(config.algo)}
    return own | {"policy": network, "algo": algo}


def policy_config_from_json(data: dict[str, Any], where: Any) -> PolicyConfig:
    """The network's config from ``data["policy"]``; ``where`` is named if a part of it was a factory."""
    given = data["policy"]
    bounds.check_numbers(given)
    fields = dict(given)
    custom = [part for part in ("policy", "encoder", "core") if fields.pop(part, None) == CUSTOM]
    if custom:
        raise ConfigError(
            f"{where} was saved with a custom {' and '.join(custom)}, and code is never saved: "
            "load it with policy=factory, a function (observation_space, action_space) -> Policy "
            "that makes the same network"
        )
    encoder = given["encoder"]
    if isinstance(encoder, dict):
        encoder = EncoderConfig(**{key: value for key, value in encoder.items() if key != "name"})
    core, head = as_config(given["core"]), HeadConfig(**given["head"])
    return PolicyConfig(**fields | {"core": core, "encoder": encoder, "head": head})


def config_from_json(data: dict[str, Any], policy: PolicyConfig) -> TrainConfig:
    """The run's config, with ``policy`` in place of the saved one."""
    algo = dict(data["algo"])
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


def _values(config: Any) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
