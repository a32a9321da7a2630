"""Agents on disk: a folder of safetensors and JSON, with checksums. Never pickle.

============================  ========================================================================
file                          contents
============================  ========================================================================
``agent.json``                config, spaces, env, versions, checksums
``weights.safetensors``       the policy: weights and normalisers
``optimizer.safetensors``     Adam's moments, the RNG of minibatches and, if the loss uses them, the
                              initial weights
``trainer.safetensors``       only in a run's checkpoints: core states, env state and the RNG of acting,
                              so that a resumed run continues bit for bit
============================  ========================================================================

``Agent.save`` writes one such folder, ``Run.save`` one for each checkpoint. The folder is written beside
its destination and renamed, so that it appears complete or not at all.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from recollect.base import files
from recollect.base.files import sync, writing
from recollect.base.run_files import TENSORS, foreign_files, is_ours, remove
from recollect.base.spaces import space_from_json, space_to_json
from recollect.config import bounds, serialise
from recollect.config.train import TrainConfig
from recollect.errors import ConfigError, RecollectError
from recollect.learning.learner_state import Learned, TrainerState
from recollect.policy.meta_device import without_memory
from recollect.policy.policies import Network, Policies, by_group
from recollect.policy.policy import Policy
from recollect.training import trusted_runs

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Saved:
    """The contents of an agent's folder, read and verified."""

    path: Path
    description: dict[str, Any]
    weights: dict[str, torch.Tensor]
    learned: Learned

    @property
    def observation_space(self) -> gym.Space:
        """The observation space of one row."""
        with self._reading():
            return space_from_json(self.description["observation_space"])

    @property
    def action_space(self) -> gym.Space:
        """The action space of one row."""
        with self._reading():
            return space_from_json(self.description["action_space"])

    @property
    def env(self) -> str | None:
        """The env's id, if it has one."""
        return self.description["env"]

    def build(self, named: Mapping[str, Any] | None = None, init_from: str | None = None) -> Network:
        """The network, without its weights. If the weights do not fit, it fails before allocating memory.

        ``named``: the core, the encoder and the head that the user has given again, if they are code. Raises
        ConfigError if any other part of the network is code. ``init_from``: as in ``trusted_runs.hint``.
        """
        with self._reading():
            hint = trusted_runs.hint(self.description, init_from)
            config = serialise.policy_config_from_json(
                self.description["config"], self.path, named, trust=hint
            )
        numbers = sum(tensor.numel() for tensor in self.weights.values())
        with self._reading(), torch.random.fork_rng(devices=[]), without_memory(numbers):
            shapes = self.network(config.build).state_dict()
        _check_fit(shapes, self)
        with self._reading():
            return self.network(config.build)

    def network(self, make: Callable[[gym.Space, gym.Space], Policy]) -> Network:
        """The policy that ``make`` makes for the saved spaces, or one for each group."""
        groups = self.description.get("groups")
        if groups is None:
            return make(self.observation_space, self.action_space)
        made = {
            name: make(space_from_json(group["observation_space"]), space_from_json(group["action_space"]))
            for name, group in groups.items()
        }
        return Policies(made, {name: tuple(map(str, group["agents"])) for name, group in groups.items()})

    def config(self, policy: Network) -> TrainConfig:
        """The run's config, with the config of ``policy`` as it was built."""
        with self._reading():
            config = serialise.config_from_json(self.description["config"], policy.config)
            bounds.check_sizes(config)
            return config

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Report any error in the description together with the file's name."""
        try:
            yield
        except Exception as error:  # a damaged file can cause any error
            if isinstance(error, ConfigError) and str(self.path) in str(error):
                raise
            raise RecollectError(
                f"{self.path / 'agent.json'} cannot be understood ({files.short(error)}): it was edited, "
                "damaged, or written by another version of Recollect"
            ) from None


def write(path: Path, policy: Network, config: TrainConfig, env: Any, learned: Learned) -> Path:
    """Write an agent's folder; an agent already there is replaced."""
    _check_free(path)
    with writing(f"{path} could not be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
        beside.mkdir()
        try:
            _fill(beside, policy, config, env, learned)
            _swap(beside, path)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return path


def _fill(folder: Path, policy: Network, config: TrainConfig, env: Any, learned: Learned) -> None:
    trainer = learned.trainer
    parts = (policy.state_dict(), learned.optimizer, {} if trainer is None else trainer.tensors)
    for name, tensors in zip(TENSORS, parts):
        if tensors:
            # Copies: safetensors accepts neither views nor tensors that share memory.
            own = {key: t.detach().clone(memory_format=torch.contiguous_format) for key, t in tensors.items()}
            save_file(own, folder / name)
    description = {
        "format": FORMAT,
        "env": env if isinstance(env, str) else None,
        "steps": learned.steps,
        "updates": learned.updates,
        "config": serialise.config_to_json(config, policy.config, made_by=policy.made_by),
        **_spaces_to_json(policy),
        "trainer": None if trainer is None else trainer.numbers,
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "sha256": {f.name: _sha256_of(f) for f in sorted(folder.glob("*.safetensors"))},
    }
    if not is_json(config.env_kwargs):
        warnings.warn(
            f"env_kwargs {config.env_kwargs} are not JSON values and were not saved, nor was the env: "
            "load this agent with env=...",
            UserWarning,
            stacklevel=4,
        )
        description["env"], description["config"]["env_kwargs"] = None, {}
    description["sha256"]["agent.json"] = checksum(description)
    (folder / "agent.json").write_text(json.dumps(description, indent=2) + "\n")
    for file in [*folder.iterdir(), folder]:
        sync(file)


def _spaces_to_json(network: Network) -> dict[str, Any]:
    """The spaces of the policy, or the agents and spaces of each group."""
    spaces = {
        name: {
            "observation_space": space_to_json(policy.observation_space),
            "action_space": space_to_json(policy.action_space),
        }
        for name, policy in by_group(network).items()
    }
    if not isinstance(network, Policies):
        return spaces[""]
    groups = {name: {"agents": list(network.agents[name]), **own} for name, own in spaces.items()}
    return {"groups": groups, "observation_space": None, "action_space": None}


def checksum(description: dict[str, Any]) -> str:
    """The checksum of the description, without its own entry in ``sha256``."""
    others = {name: value for name, value in description["sha256"].items() if name != "agent.json"}
    # As it is read back: numbers that are keys, such as the steps of a curriculum, are sorted as text then.
    whole = json.loads(json.dumps(description | {"sha256": others}))
    return _sha256(json.dumps(whole, sort_keys=True).encode())


def read(path: Path) -> Saved:
    """Read and verify an agent's folder."""
    file, old = path / "agent.json", _old(path)
    if not path.exists() and not old.is_dir():
        raise RecollectError(f"there is no folder {path}: give that of a run, or of a saved agent")
    if not file.is_file():
        hint = f". A save was interrupted: {old} holds the previous one" if old.is_dir() else ""
        raise RecollectError(
            f"{path} holds no agent: {file.name} is missing. Agent.save writes such a folder"
            f"{hint}{_others(path)}"
        )
    try:
        description = files.read_json(file)
        files.check_format(file, description["format"], FORMAT)
        checksums = dict(description["sha256"])
        _check_description(description)
        intact = checksums.pop("agent.json") == checksum(description)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise _damaged(file, f"is damaged ({files.short(repr(error))})") from None
    except RecollectError as error:
        raise RecollectError(f"{error}{_others(path)}") from None
    if not intact:
        raise _damaged(file, "differs from what was saved")
    # Only the weights are always there.
    weights, optimizer, live = (
        _load(path / name, checksums.get(name)) if name in checksums or name == TENSORS[0] else {}
        for name in TENSORS
    )
    numbers = description["trainer"]
    trainer = None if numbers is None else TrainerState(numbers, live)
    learned = Learned(description["steps"], description["updates"], optimizer, trainer)
    return Saved(path, description, weights, learned)


def _check_description(description: dict[str, Any]) -> None:
    """Validate types and counts; spaces and configs are validated where they are used."""
    for key in ("config", "observation_space", "action_space"):
        description[key]
    if not isinstance(description["env"], str | None) or len(description["env"] or "") > bounds.MOST_LETTERS:
        raise TypeError("env is not a name")
    counts, trainer = [description["steps"], description["updates"]], description["trainer"]
    if trainer is not None:
        counts += [trainer["start"], trainer["end"]]
        if not math.isfinite(float(trainer["seconds"])):
            raise TypeError("seconds is not a number")
    if not all(type(count) is int and 0 <= count < 2**63 for count in counts):
        raise TypeError("steps, updates, start and end must be counts")


def load_weights(policy: Network, saved: Saved) -> None:
    """Load the saved weights and statistics into ``policy``."""
    _check_fit(policy.state_dict(), saved)
    policy.load_state_dict(saved.weights)


def _check_fit(own: dict[str, torch.Tensor], saved: Saved) -> None:
    ours, theirs = ({(name, t.shape) for name, t in named.items()} for named in (own, saved.weights))
    wrong = sorted({name for name, _ in ours ^ theirs})
    if wrong:
        raise ConfigError(
            f"{saved.path} does not fit this policy: {', '.join(wrong[:4])} "
            f"{'differs or is' if len(wrong) == 1 else 'differ or are'} missing; was it built with other "
            "settings?"
        )


def is_json(value: Any) -> bool:
    """Whether the value survives a round trip through JSON, except that tuples become lists."""
    try:
        return json.loads(json.dumps(value)) == _listed(value)
    except (TypeError, ValueError):
        return False


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(part) for key, part in value.items()}
    return [_listed(part) for part in value] if isinstance(value, list | tuple) else value


def _check_free(path: Path) -> None:
    """Raise unless ``path`` does not exist, is empty, or holds an agent and nothing else."""
    if path.is_symlink():
        raise RecollectError(f"{path} is a link: name the folder that it points to, or another one")
    if not path.exists():
        return
    found = [entry.name for entry in path.iterdir()] if path.is_dir() else None
    if found is None or (found and "agent.json" not in found):
        raise RecollectError(f"{path} exists and is not a saved agent: choose another folder or remove it")
    if foreign := foreign_files(path):
        raise RecollectError(
            f"{path} holds an agent, but also {', '.join(foreign[:4])}, which saving there would delete: "
            "choose another folder"
        )
    old = _old(path)
    if os.path.lexists(old) and not is_ours(old):
        raise RecollectError(
            f"{old} is in the way: saving moves the previous agent there until the new one is complete. Move "
            f"it, or choose another folder than {path}"
        )


def _old(path: Path) -> Path:
    return path.parent / f".{path.name}-old"


def _load(file: Path, checksum: str | None) -> dict[str, torch.Tensor]:
    if not file.is_file() or _sha256_of(file) != checksum:
        raise _damaged(file, "is missing or differs from what was saved")
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise _damaged(file, f"cannot be read ({error})") from None


def _damaged(file: Path, how: str) -> RecollectError:
    return RecollectError(f"{file} {how}: take another copy of the folder{_others(file.parent)}")


def _others(path: Path) -> str:
    """A hint that lists the run's other checkpoints, if the folder is a checkpoint."""
    if not path.name.isdecimal() or not path.parent.is_dir():
        return ""
    steps = sorted(int(p.name) for p in path.parent.iterdir() if p.name.isdecimal() and p.name != path.name)
    if not steps:
        return ""
    known = ", ".join(map(str, steps[-3:]))
    return f", or another checkpoint: {known} (checkpoint={steps[-1]}, --checkpoint {steps[-1]})"


def _sha256_of(file: Path) -> str:
    with file.open("rb") as handle:  # in chunks: a file may be larger than the memory
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _swap(new: Path, path: Path) -> None:
    """Replace ``path`` by ``new``."""
    old = _old(path) if path.exists() else None
    if old is not None:
        remove(old)
        path.rename(old)
    try:
        new.rename(path)
    except BaseException:  # Ctrl-C too: the previous agent has to come back
        if old is not None:
            old.rename(path)
        raise
    sync(path.parent)
    if old is not None:
        remove(old)
