"""Configs as flat rows: what was changed from the defaults, and in what several runs differ."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from recollect.algos.catalog import ALGOS, algo_name
from recollect.config import field_docs
from recollect.config.ppo import PPOConfig
from recollect.config.train import TrainConfig
from recollect.cores.make import known
from recollect.policy.encoders import EncoderConfig
from recollect.policy.heads import HeadConfig

Row = dict[str, Any]
PARTS = {"": "run", "policy": "network", "algo": "algorithm"}
"""The parts of a config, and what people call them."""
MISSING = object()

INCIDENTAL = frozenset(
    {
        *("seed", "run", "device", "threads", "parallel", "sinks"),
        *("runtime", "env_workers", "env_timeout", "ray_address", "learners"),
        *("eval_every", "eval_episodes", "checkpoint_every", "keep_checkpoints", "max_seconds"),
    }
)
"""Settings that do not make another experiment: runs that differ in these only are repetitions."""


def flatten(config: Row) -> Row:
    """run.json's config under the flat names that people type: ``rollout``, ``core``, ``core.hidden``."""
    flat: Row = {}
    config = _modern(config)
    for part in PARTS:
        fields = {k: v for k, v in config.items() if k not in PARTS} if part == "" else config.get(part)
        if not isinstance(fields, dict):
            continue
        for name, value in fields.items():
            if (part, name) == ("policy", "policy"):
                if value is not None:
                    flat["policy"] = value
            elif (part, name) == ("algo", "name"):
                flat["algo"] = value
            elif isinstance(value, dict):
                if "name" in value:
                    flat[name] = value["name"]
                flat |= {f"{name}.{key}": sub for key, sub in value.items() if key != "name"}
            else:
                flat[name] = value
    return flat


def default_values(config: Row) -> Row:
    """What ``flatten(config)`` would be without any choice of the user, with the same parts by name."""
    default = TrainConfig()
    algo = _modern(config).get("algo")
    chosen = ALGOS.get(str(algo.get("name")) if isinstance(algo, dict) else "", PPOConfig)
    own = _as_json(default)
    own["policy"] = _as_json(default.policy)
    own["algo"] = {"name": algo_name(default.algo), **_as_json(chosen())}
    flat = flatten(own)
    given = config.get("policy")
    network = given if isinstance(given, dict) else {}
    for part, makers in (("core", known), ("encoder", {"encoder": EncoderConfig})):
        spec = network.get(part)
        make = makers.get(str(spec.get("name"))) if isinstance(spec, dict) else None
        if make is not None:
            flat |= {f"{part}.{key}": value for key, value in _as_json(make()).items()}
    return flat


def config_rows(config: Row, preset: Row) -> list[Row]:
    """One row a setting: its part, name, value, default, and whether and by whom it was changed."""
    defaults = default_values(config)
    groups, docs = _groups(config), _docs(config)
    rows = []
    for name, value in flatten(config).items():
        if name == "run":  # where the folder lies is nobody else's business
            continue
        default = defaults.get(name, MISSING)
        is_known = default is not MISSING
        changed = not is_known or _key(default) != _key(value)
        root = name.split(".")[0]
        rows.append(
            {
                "part": groups.get(root, "run"),
                "name": name,
                "value": words(value),
                "default": words(default) if is_known else None,
                "changed": changed,
                "preset": changed and root in preset,
                "line": docs.get(name, ""),
            }
        )
    return rows


def asked(config: Row, preset: Row) -> Row:
    """The flat settings that somebody asked for: those that are neither a default nor the preset's choice.

    Of a core, a preset chooses the gates and never the kind.
    """
    defaults = default_values(config)
    return {
        name: value
        for name, value in flatten(config).items()
        if (name == "core" or name.split(".")[0] not in preset)
        and _key(value) != _key(defaults.get(name, MISSING))
    }


def differences(configs: Sequence[Row], ignoring: frozenset[str] = INCIDENTAL) -> list[str]:
    """The flat names in which flat configs differ, in their order."""
    names = dict.fromkeys(name for config in configs for name in config if name not in ignoring)
    return [name for name in names if len({_key(config.get(name, MISSING)) for config in configs}) > 1]


def label(config: Row, names: Sequence[str]) -> str:
    """What makes a config special, such as ``core=gru, chunk=64``; names with one value each."""
    return ", ".join(f"{name}={words(config[name])}" for name in names if name in config)


def words(value: Any) -> str:
    """A value of a config as people write it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, ensure_ascii=False, default=str)


def experiment(config: Row) -> tuple[tuple[str, str], ...]:
    """What two runs must share to be repetitions of each other: everything but the seed and the like."""
    return tuple(sorted((name, _key(value)) for name, value in config.items() if name not in INCIDENTAL))


def _groups(config: Row) -> dict[str, str]:
    """The people's name of the part that each setting belongs to."""
    groups = {}
    for part in ("policy", "algo"):
        fields = _modern(config).get(part)
        groups |= dict.fromkeys(fields if isinstance(fields, dict) else (), PARTS[part])
    return groups | {"algo": PARTS["algo"]}


def _modern(config: Row) -> Row:
    """Of runs from before there was another algorithm than PPO, what it would be now."""
    if "ppo" not in config:
        return config
    before = config["ppo"]
    rest = {key: value for key, value in config.items() if key != "ppo"}
    return rest | {"algo": {"name": "ppo", **(before if isinstance(before, dict) else {})}}


def _docs(config: Row) -> dict[str, str]:
    """The docstring of each setting, by its flat name."""
    flat = flatten(config)
    algo = flat.get("algo")
    fields = [*field_docs.config_fields(""), *field_docs.config_fields("policy"), *field_docs.algo_fields()]
    fields += field_docs.config_fields(algo) if algo in field_docs.ALGOS else []  # in its own words
    docs = {field.name: field.doc for field in fields}
    for part in ("encoder", "head"):
        docs |= {f"{part}.{field.name}": field.doc for field in field_docs.config_fields(part)}
    core = flat.get("core")
    if isinstance(core, str) and core in field_docs.cores():
        docs |= {f"core.{f.name}": f.doc for f in field_docs.cores()[core].fields}
    return docs


def _as_json(config: Any) -> Row:
    """The fields of a dataclass, nested dataclasses as dicts; what JSON does not know stays."""
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return {k: dataclasses.asdict(v) if isinstance(v, HeadConfig) else v for k, v in fields.items()}


def _key(value: Any) -> str:
    """Equal for values that JSON writes alike: 1 and 1.0, tuples and lists."""
    if value is MISSING:
        return "missing"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True, default=str)
