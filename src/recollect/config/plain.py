"""Spaces and configs as plain JSON, and back. Factories are code, and code is never saved."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gym_spaces

from recollect.algos.catalog import ALGOS, algo_name
from recollect.config import bounds
from recollect.config.train import TrainConfig
from recollect.cores.make import as_config, as_mapping
from recollect.errors import ConfigError, SpaceError
from recollect.policy.encoders import EncoderConfig
from recollect.policy.heads import HeadConfig
from recollect.policy.policy import Policy, PolicyConfig

CUSTOM = "custom"
"""Stands for a factory."""


def space_to_json(space: gym.Space) -> dict[str, Any]:
    """A space as plain JSON."""
    if isinstance(space, gym_spaces.Dict):
        return {"dict": {key: space_to_json(sub) for key, sub in space.spaces.items()}}
    if isinstance(space, gym_spaces.Tuple):
        return {"tuple": [space_to_json(sub) for sub in space.spaces]}
    if isinstance(space, gym_spaces.Discrete):
        return {"discrete": int(space.n), "start": int(space.start), "dtype": space.dtype.name}
    if isinstance(space, gym_spaces.MultiDiscrete):
        nvec, start = space.nvec.tolist(), space.start.tolist()
        return {"multidiscrete": nvec, "start": start, "dtype": space.dtype.name}
    if isinstance(space, gym_spaces.MultiBinary):
        # MultiBinary(5) and MultiBinary([5]) are not equal.
        return {"multibinary": space.n if isinstance(space.n, int) else list(space.shape)}
    if isinstance(space, gym_spaces.Box):
        low, high = space.low, space.high
        is_uniform = low.size > 0 and (low == low.flat[0]).all() and (high == high.flat[0]).all()
        bounds = (low.flat[0].item(), high.flat[0].item()) if is_uniform else (low.tolist(), high.tolist())
        return {
            "box": list(space.shape),
            "low": bounds[0],
            "high": bounds[1],
            "dtype": space.dtype.name,
        }
    raise SpaceError(f"a {type(space).__name__} space cannot be saved")


def space_from_json(data: dict[str, Any]) -> gym.Space:
    """The space that ``space_to_json`` described."""
    bounds.check_shape(data.get("box", data.get("multibinary", ())))
    if "dict" in data:
        # Ordered: a plain dict would be sorted, and the order of the parts is that of the weights.
        return gym_spaces.Dict(OrderedDict((key, space_from_json(sub)) for key, sub in data["dict"].items()))
    if "tuple" in data:
        return gym_spaces.Tuple([space_from_json(sub) for sub in data["tuple"]])
    if "discrete" in data:
        more = {} if data["dtype"] == "int64" else {"dtype": data["dtype"]}  # not in every Gymnasium
        return gym_spaces.Discrete(data["discrete"], start=data["start"], **more)
    if "multidiscrete" in data:
        dtype = np.dtype(data["dtype"])
        nvec, start = np.array(data["multidiscrete"]), np.array(data["start"])
        return gym_spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)
    if "multibinary" in data:
        return gym_spaces.MultiBinary(data["multibinary"])
    dtype, shape = np.dtype(data["dtype"]), tuple(data["box"])
    low, high = (np.broadcast_to(np.array(data[k], dtype), shape).copy() for k in ("low", "high"))
    return gym_spaces.Box(low, high, dtype=dtype.type)


def config_to_json(config: TrainConfig, policy: Policy) -> dict[str, Any]:
    """The run's config, with that of ``policy`` as it was built."""
    own = {
        f.name: getattr(config, f.name)
        for f in dataclasses.fields(config)
        if f.name not in ("policy", "algo")
    }
    parts = policy.config
    network = {
        "policy": None if type(policy) is Policy else CUSTOM,
        **{f.name: getattr(parts, f.name) for f in dataclasses.fields(parts)},
        "encoder": _spec_to_json(parts.encoder, {"encoder": EncoderConfig}),
        "core": as_mapping(parts.core) or CUSTOM,
        "head": dataclasses.asdict(parts.head),
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
    fields["core"] = as_config(given["core"])
    fields["encoder"] = _spec_from_json(given["encoder"], {"encoder": EncoderConfig})
    fields["head"] = HeadConfig(**_tuples(given["head"]))
    return PolicyConfig(**fields)


def config_from_json(data: dict[str, Any], policy: PolicyConfig) -> TrainConfig:
    """The run's config, with ``policy`` in the place of the saved one."""
    settings = _tuples(data)
    before = settings.pop("ppo", None)  # what was saved before there was another algorithm
    fields = dict(settings["algo"]) if before is None else {"name": "ppo", **before}
    settings["algo"] = ALGOS[fields.pop("name")](**_tuples(fields))
    settings["policy"] = policy
    return TrainConfig(**settings)


def _spec_to_json(spec: Any, known: dict[str, Any]) -> Any:
    """None and names as they are, configs with their name, factories as ``CUSTOM``."""
    if spec is None or isinstance(spec, str):
        return spec
    for name, config in known.items():
        if isinstance(config, type) and type(spec) is config:
            return {"name": name, **dataclasses.asdict(spec)}
    return CUSTOM


def _spec_from_json(data: Any, known: dict[str, Any]) -> Any:
    if not isinstance(data, dict):
        return data
    fields = dict(data)
    return known[fields.pop("name")](**_tuples(fields))


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
