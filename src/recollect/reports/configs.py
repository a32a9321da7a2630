"""Configs as flat rows: changes from the defaults, and differences between runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from recollect.base.formatting import setting
from recollect.config.algo_choice import ALGOS, algo_name
from recollect.config.core_choice import known
from recollect.config.fields import fields_of
from recollect.config.policy import HEADS, EncoderConfig
from recollect.config.ppo import PPOConfig
from recollect.config.serialise import as_mapping, config_to_json, flatten
from recollect.config.settings import CLASSES
from recollect.config.train import TrainConfig
from recollect.reports.thinning import Row, mapping

MISSING = object()

INCIDENTAL = frozenset(
    {
        *("seed", "run", "device", "threads", "parallel", "sinks", "memory_limit"),
        *("imports", "runtime", "env_workers", "env_timeout", "ray_address", "learners"),
        "learner_processes",
        *("eval_every", "eval_episodes", "eval_mode", "checkpoint_every", "keep_checkpoints", "max_seconds"),
    }
)
"""Settings that do not make another experiment: runs that differ in these only are repetitions."""


def default_values(config: Row) -> Row:
    """``flatten(config)`` with the default of every setting, for the same core, encoder and algorithm."""
    network, algo = mapping(config.get("policy")), mapping(config.get("algo"))
    default = TrainConfig(algo=ALGOS.get(str(algo.get("name")), PPOConfig)())
    flat = flatten(config_to_json(default, default.policy)) | {"algo": algo_name(TrainConfig().algo)}
    core, encoder, head = (mapping(network.get(part)) for part in ("core", "encoder", "head"))
    if (name := str(core.get("name"))) in known:
        flat |= {f"core.{key}": value for key, value in as_mapping(known[name]()).items()}
    if encoder:
        flat |= {f"encoder.{key}": value for key, value in dataclasses.asdict(EncoderConfig()).items()}
    if (name := str(head.get("name"))) in HEADS:
        flat |= {f"head.{key}": value for key, value in dataclasses.asdict(HEADS[name]()).items()}
    return flat


def config_rows(config: Row, preset: Row) -> list[Row]:
    """One row per setting: part, name, value, default, and whether the user or the preset changed it."""
    defaults, docs = default_values(config), _docs(config)
    network, algo = mapping(config.get("policy")), mapping(config.get("algo"))
    rows = []
    for name, value in flatten(config).items():
        if name == "run":  # a path of this machine
            continue
        default = defaults.get(name, MISSING)
        is_known = default is not MISSING
        changed = not is_known or _key(default) != _key(value)
        root = name.split(".")[0]
        rows.append(
            {
                "part": "algorithm" if root in (*algo, "algo") else "network" if root in network else "run",
                "name": name,
                "value": setting(value),
                "default": setting(default) if is_known else None,
                "changed": changed,
                "preset": changed and root in preset,
                "line": docs.get(name, ""),
            }
        )
    return rows


def asked(config: Row, preset: Row) -> Row:
    """The flat settings that the user chose: neither a default nor the preset's choice.

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
    """The settings that distinguish a config, such as ``core=gru, chunk=64``; names with one value each."""
    return ", ".join(f"{name}={setting(config[name])}" for name in names if name in config)


def experiment(config: Row) -> tuple[tuple[str, str], ...]:
    """The settings that two repetitions share: all but the seed and the like."""
    return tuple(sorted((name, _key(value)) for name, value in config.items() if name not in INCIDENTAL))


def _docs(config: Row) -> dict[str, str]:
    """The docstring of each setting, by its flat name."""
    flat = flatten(config)
    algo, core = (str(flat.get(part)) for part in ("algo", "core"))
    kinds = [("", kind) for kind in (*ALGOS.values(), ALGOS.get(algo, PPOConfig))]
    kinds += [(f"{part}." if part in ("encoder", "head") else "", kind) for part, kind in CLASSES.items()]
    kinds += [("core.", known[core]())] if core in known else []
    return {f"{prefix}{field.name}": field.doc for prefix, kind in kinds for field in fields_of(kind)}


def _key(value: Any) -> str:
    """Equal for values that JSON writes alike: 1 and 1.0, tuples and lists."""
    if value is MISSING:
        return "missing"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True, default=str)
