"""Agents on disk: a folder of safetensors and JSON, with checksums. Never pickle.

============================  ==================================================
file                          what
============================  ==================================================
``agent.json``                config, spaces, env, versions, checksums
``weights.safetensors``       the policy: weights and normalisers
``optimizer.safetensors``     Adam's moments, so that training can go on
============================  ==================================================

The folder is written beside its destination and renamed, so that it is there whole or not at all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import shutil
import tempfile
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
CUSTOM = "custom"
"""Stands for a factory, which is code and therefore not saved."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A folder that was read and verified."""

    path: Path
    description: dict[str, Any]

    @property
    def observation_space(self) -> gym.Space:
        """Of one row."""
        return space_from_json(self.description["observation_space"])

    @property
    def action_space(self) -> gym.Space:
        """Of one row."""
        return space_from_json(self.description["action_space"])

    @property
    def env(self) -> str | None:
        """The env's id, if it has one."""
        return self.description["env"]

    def policy_config(self) -> PolicyConfig:
        """The network's config; refused if a part of it was a factory."""
        policy = dict(self.description["config"]["policy"])
        for part in ("encoder", "core"):
            if policy[part] == CUSTOM:
                raise ConfigError(
                    f"{self.path} was saved with a custom {part}, and code is never saved: load it with "
                    "policy=factory, the factory (observation_space, action_space) -> Policy that made it"
                )
        policy["core"] = _config_from_json(policy["core"], CORES)
        policy["encoder"] = _config_from_json(policy["encoder"], {"encoder": EncoderConfig})
        policy["head"] = HeadConfig(**_tuples(policy["head"]))
        return PolicyConfig(**policy)

    def config(self, policy: Policy) -> TrainConfig:
        """The run's config, with that of ``policy`` as it was built."""
        settings = dict(self.description["config"])
        settings["ppo"] = PPOConfig(**settings["ppo"])
        settings["policy"] = policy.config
        return TrainConfig(**settings)


def write(path: Path, policy: Policy, config: TrainConfig, env: Any, learner: PPO | None, steps: int) -> Path:
    """Write an agent's folder; an agent that was there before is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not (path / "agent.json").exists() and (path.is_file() or any(path.iterdir())):
        raise RecollectError(f"{path} exists and is no saved agent: choose another folder or remove it")
    beside = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        save_file(_contiguous(policy.state_dict()), beside / "weights.safetensors")
        if learner is not None:
            save_file(_optimizer_tensors(learner), beside / "optimizer.safetensors")
        description = {
            "format": FORMAT,
            "env": env if isinstance(env, str) else None,
            "steps": steps,
            "updates": 0 if learner is None else learner.updates,
            "config": _config_to_json(config, policy),
            "observation_space": space_to_json(policy.observation_space),
            "action_space": space_to_json(policy.action_space),
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
            "sha256": {f.name: _sha256(f) for f in sorted(beside.glob("*.safetensors"))},
        }
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
        checksums = description["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise RecollectError(f"{file} is damaged ({error}): take another copy of the folder") from None
    for name, checksum in checksums.items():
        part = path / name
        if not part.is_file() or _sha256(part) != checksum:
            raise RecollectError(
                f"{part} is missing or differs from what was saved: take another copy of the folder"
            )
    return Saved(path, description)


def load_weights(policy: Policy, saved: Saved) -> None:
    """Fill the policy with the saved weights and statistics."""
    tensors = _load(saved.path / "weights.safetensors")
    own = policy.state_dict()
    wrong = [
        name
        for name in own.keys() | tensors.keys()
        if name not in own or name not in tensors or own[name].shape != tensors[name].shape
    ]
    if wrong:
        raise ConfigError(
            f"{saved.path} does not fit this policy: {', '.join(sorted(wrong)[:4])} "
            f"{'differs' if len(wrong) == 1 else 'differ'} or are missing; was it built with other settings?"
        )
    policy.load_state_dict(tensors)


def load_learner(learner: PPO, saved: Saved) -> None:
    """Continue with the saved optimiser, if there is one."""
    file = saved.path / "optimizer.safetensors"
    learner.updates = saved.description["updates"]
    if not file.is_file():
        return
    tensors = _load(file)
    names = {id(p): name for name, p in learner.policy.named_parameters()}
    for group in learner.optimizer.param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            state = {
                k: tensors[f"{name}:{k}"]
                for k in ("step", "exp_avg", "exp_avg_sq")
                if f"{name}:{k}" in tensors
            }
            if state:
                learner.optimizer.state[parameter] = state


def space_to_json(space: gym.Space) -> dict[str, Any]:
    """A space as plain JSON."""
    if isinstance(space, gym_spaces.Dict):
        return {"dict": {key: space_to_json(sub) for key, sub in space.spaces.items()}}
    if isinstance(space, gym_spaces.Tuple):
        return {"tuple": [space_to_json(sub) for sub in space.spaces]}
    if isinstance(space, gym_spaces.Discrete):
        return {"discrete": int(space.n), "start": int(space.start)}
    if isinstance(space, gym_spaces.MultiDiscrete):
        return {"multidiscrete": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, gym_spaces.MultiBinary):
        return {"multibinary": list(space.shape)}
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
        return gym_spaces.Dict({key: space_from_json(sub) for key, sub in data["dict"].items()})
    if "tuple" in data:
        return gym_spaces.Tuple([space_from_json(sub) for sub in data["tuple"]])
    if "discrete" in data:
        return gym_spaces.Discrete(data["discrete"], start=data["start"])
    if "multidiscrete" in data:
        return gym_spaces.MultiDiscrete(np.array(data["multidiscrete"]), start=np.array(data["start"]))
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


def _optimizer_tensors(learner: PPO) -> dict[str, torch.Tensor]:
    names = {id(p): name for name, p in learner.policy.named_parameters()}
    return {
        f"{names[id(parameter)]}:{key}": value.contiguous()
        for parameter, state in learner.optimizer.state.items()
        for key, value in state.items()
    }


def _contiguous(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}


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
    new.rename(path)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
