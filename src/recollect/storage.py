"""Agents on disk: a folder of safetensors and JSON, with checksums. Never pickle.

============================  ==================================================
file                          what
============================  ==================================================
``agent.json``                config, spaces, env, versions, checksums
``weights.safetensors``       the policy: weights and normalisers
``optimizer.safetensors``     Adam's moments and the RNG of minibatches, so that training can go on
============================  ==================================================

The folder is written beside its destination and renamed, so that it is there whole or not at all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import shutil
import uuid
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from recollect.algos.ppo import PPO, PPOConfig
from recollect.config import TrainConfig
from recollect.cores import CORES
from recollect.errors import ConfigError, RecollectError, SpaceError
from recollect.policy.encoders import EncoderConfig
from recollect.policy.heads import HeadConfig
from recollect.policy.policy import Policy, PolicyConfig

FORMAT = 1
FILES = ("agent.json", "weights.safetensors", "optimizer.safetensors")
CUSTOM = "custom"
"""Stands for a factory, which is code and therefore not saved."""
RNG = "minibatches:rng"
"""The key of the learner's random stream among the optimiser's tensors."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A folder that was read and verified; it is not looked at again."""

    path: Path
    description: dict[str, Any]
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    """Empty for an agent that was never trained."""

    @property
    def observation_space(self) -> gym.Space:
        """Of one row."""
        with self._reading():
            return space_from_json(self.description["observation_space"])

    @property
    def action_space(self) -> gym.Space:
        """Of one row."""
        with self._reading():
            return space_from_json(self.description["action_space"])

    @property
    def env(self) -> str | None:
        """The env's id, if it has one."""
        return self.description["env"]

    @property
    def steps(self) -> int:
        """Env steps that it was trained for."""
        return self.description["steps"]

    @property
    def updates(self) -> int:
        """Rollouts that it learned from."""
        return self.description["updates"]

    def policy_config(self) -> PolicyConfig:
        """The network's config; refused if a part of it, or all of it, was made by a factory."""
        with self._reading():
            policy = dict(self.description["config"]["policy"])
            custom = [part for part in ("policy", "encoder", "core") if policy.pop(part, None) == CUSTOM]
            if custom:
                raise ConfigError(
                    f"{self.path} was saved with a custom {' and '.join(custom)}, and code is never saved: "
                    "load it with policy=factory, a function (observation_space, action_space) -> Policy "
                    "that makes the same network"
                )
            given = self.description["config"]["policy"]
            policy["core"] = _config_from_json(given["core"], CORES)
            policy["encoder"] = _config_from_json(given["encoder"], {"encoder": EncoderConfig})
            policy["head"] = HeadConfig(**_tuples(given["head"]))
            return PolicyConfig(**policy)

    def config(self, policy: Policy) -> TrainConfig:
        """The run's config, with that of ``policy`` as it was built."""
        with self._reading():
            settings = dict(self.description["config"])
            settings["ppo"] = PPOConfig(**settings["ppo"])
            settings["policy"] = policy.config
            return TrainConfig(**settings)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Whatever the description lacks or has too much is told with the file's name."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, ConfigError) and str(self.path) in str(error):
                raise
            raise RecollectError(
                f"{self.path / 'agent.json'} cannot be understood ({error}): it was edited, damaged, or "
                "written by another version of Recollect"
            ) from None


def write(
    path: Path,
    policy: Policy,
    config: TrainConfig,
    env: Any,
    *,
    optimizer: dict[str, torch.Tensor],
    steps: int,
    updates: int,
) -> Path:
    """Write an agent's folder; an agent that was there before is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _check_free(path)
    beside = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
    beside.mkdir()
    try:
        save_file(_copies(policy.state_dict()), beside / "weights.safetensors")
        if optimizer:
            save_file(_copies(optimizer), beside / "optimizer.safetensors")
        description = {
            "format": FORMAT,
            "env": env if isinstance(env, str) else None,
            "steps": steps,
            "updates": updates,
            "config": _config_to_json(config, policy),
            "observation_space": space_to_json(policy.observation_space),
            "action_space": space_to_json(policy.action_space),
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
            "sha256": {f.name: _sha256(f) for f in sorted(beside.glob("*.safetensors"))},
        }
        if not _is_json(config.env_kwargs):
            warnings.warn(
                f"env_kwargs {config.env_kwargs} are not plain JSON and were not saved, nor was the env: "
                "load this agent with env=...",
                UserWarning,
                stacklevel=3,
            )
            description["env"], description["config"]["env_kwargs"] = None, {}
        (beside / "agent.json").write_text(json.dumps(description, indent=2) + "\n")
        _swap(beside, path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return path


def read(path: Path) -> Saved:
    """Read and verify an agent's folder."""
    file = path / "agent.json"
    if not file.is_file():
        raise RecollectError(
            f"{path} holds no agent: {file.name} is missing. Agent.save writes such a folder"
        )
    try:
        description = json.loads(file.read_text())
        if description["format"] != FORMAT:
            raise RecollectError(
                f"{file} has format {description['format']}, this Recollect reads {FORMAT}: update Recollect"
            )
        checksums = dict(description["sha256"])
        for key in ("env", "steps", "updates", "config", "observation_space", "action_space"):
            description[key]
    except (ValueError, KeyError, TypeError) as error:
        raise RecollectError(f"{file} is damaged ({error!r}): take another copy of the folder") from None
    tensors = {}
    for name in FILES[1:]:
        part = path / name
        if name not in checksums and name == "optimizer.safetensors":
            tensors[name] = {}
            continue
        if not part.is_file() or _sha256(part) != checksums.get(name):
            raise RecollectError(
                f"{part} is missing or differs from what was saved: take another copy of the folder"
            )
        tensors[name] = _load(part)
    return Saved(path, description, tensors["weights.safetensors"], tensors["optimizer.safetensors"])


def load_weights(policy: Policy, saved: Saved) -> None:
    """Fill the policy with the saved weights and statistics."""
    tensors, own = saved.weights, policy.state_dict()
    wrong = [
        name
        for name in own.keys() | tensors.keys()
        if name not in own or name not in tensors or own[name].shape != tensors[name].shape
    ]
    if wrong:
        raise ConfigError(
            f"{saved.path} does not fit this policy: {', '.join(sorted(wrong)[:4])} "
            f"{'differs or is' if len(wrong) == 1 else 'differ or are'} missing; was it built with other "
            "settings?"
        )
    policy.load_state_dict(tensors)


def load_learner(learner: PPO, saved: Saved) -> None:
    """Continue with the saved optimiser and random stream, if there are any."""
    learner.updates = saved.updates
    for name, parameter in learner.policy.named_parameters():
        state = {
            key: saved.optimizer[f"{name}:{key}"].to(parameter.device, copy=True)
            for key in ("step", "exp_avg", "exp_avg_sq")
            if f"{name}:{key}" in saved.optimizer
        }
        if state:
            learner.optimizer.state[parameter] = state
    rng = saved.optimizer.get(RNG)
    # A generator of another kind of device cannot go on with it: then the seed begins anew.
    if rng is not None and rng.shape == learner.generator.get_state().shape:
        learner.generator.set_state(rng)


def learner_tensors(learner: PPO) -> dict[str, torch.Tensor]:
    """What ``load_learner`` needs: Adam's moments by parameter, and the random stream."""
    names = {id(p): name for name, p in learner.policy.named_parameters()}
    moments = {
        f"{names[id(parameter)]}:{key}": value
        for parameter, state in learner.optimizer.state.items()
        for key, value in state.items()
    }
    return moments | {RNG: learner.generator.get_state()}


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


def _config_to_json(config: TrainConfig, policy: Policy) -> dict[str, Any]:
    own = {
        f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name not in ("policy", "ppo")
    }
    parts = policy.config
    network = {
        "policy": None if type(policy) is Policy else CUSTOM,
        **{f.name: getattr(parts, f.name) for f in dataclasses.fields(parts)},
        "encoder": _spec_to_json(parts.encoder, {"encoder": EncoderConfig}),
        "core": _spec_to_json(parts.core, CORES),
        "head": dataclasses.asdict(parts.head),
    }
    return own | {"policy": network, "ppo": dataclasses.asdict(config.ppo)}


def _spec_to_json(spec: Any, known: dict[str, Any]) -> Any:
    """None and names as they are, configs with their name, factories as ``CUSTOM``."""
    if spec is None or isinstance(spec, str):
        return spec
    for name, config in known.items():
        if isinstance(config, type) and type(spec) is config:
            return {"name": name, **dataclasses.asdict(spec)}
    return CUSTOM


def _config_from_json(data: Any, known: dict[str, Any]) -> Any:
    if not isinstance(data, dict):
        return data
    fields = dict(data)
    return known[fields.pop("name")](**_tuples(fields))


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}


def _copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Contiguous copies: safetensors takes no views and nothing shared."""
    return {
        name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }


def _is_json(value: Any) -> bool:
    try:
        return json.loads(json.dumps(value)) is not None
    except (TypeError, ValueError):
        return False


def _check_free(path: Path) -> None:
    """Refuse to write over anything but nothing, an empty folder, or an agent and nothing else."""
    if not path.exists():
        return
    found = [] if path.is_file() else [entry.name for entry in path.iterdir()]
    if path.is_file() or (found and "agent.json" not in found):
        raise RecollectError(f"{path} exists and is no saved agent: choose another folder or remove it")
    foreign = sorted(set(found) - set(FILES))
    if foreign:
        raise RecollectError(
            f"{path} holds an agent, but also {', '.join(foreign[:4])}, which saving there would delete: "
            "choose another folder"
        )


def _load(file: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise RecollectError(f"{file} cannot be read ({error}): take another copy of the folder") from None


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _swap(new: Path, path: Path) -> None:
    """Put ``new`` in the place of ``path``."""
    old = None
    if path.exists():
        old = path.with_name(f".{path.name}-old")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    try:
        new.rename(path)
    except OSError:
        if old is not None:
            old.rename(path)
        raise
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
