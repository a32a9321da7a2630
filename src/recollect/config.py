"""The configuration of a run: one name for each thing, everywhere.

Keywords are flat: ``train(env, steps=300_000, learning_rate=3e-4, core="gru")`` finds out by itself
that ``learning_rate`` is PPO's and ``core`` the policy's. Names that other libraries use are
understood and answered with ours.
"""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch

from recollect.algos.ppo import PPOConfig
from recollect.errors import ConfigError, nearest
from recollect.fields import check_fields
from recollect.policy.policy import PolicyConfig
from recollect.policy.zoo import named_policy

ALIASES = {
    "total_timesteps": "steps",
    "n_envs": "num_envs",
    "n_steps": "rollout",
    "num_steps": "rollout",
    "n_epochs": "epochs",
    "update_epochs": "epochs",
    "num_minibatches": "minibatches",
    "lr": "learning_rate",
    "clip_range": "clip",
    "clip_coef": "clip",
    "clip_range_vf": "value_clip",
    "ent_coef": "entropy",
    "vf_coef": "value_coef",
    "norm_adv": "normalise_advantages",
    "normalize_advantage": "normalise_advantages",
    "normalize_observations": "normalise_observations",
}
"""Names of Stable-Baselines3 and CleanRL, and ours for them."""
SINKS = ("tensorboard", "wandb")
"""What ``sinks`` may name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Everything that decides a run beside the env itself."""

    steps: int = 300_000
    """Env steps to train for, over all rows; only valid ones count."""
    num_envs: int = 16
    """Env slots that are stepped together."""
    actors: int = 1
    """Groups into which the env slots are split, each with random streams of its own; a layout, not speed."""
    seed: int = 0
    """Of the weights, the envs and the sampling."""
    device: str = "cpu"
    """Where the policy lives: "cpu" or "cuda"."""
    target_return: float | None = None
    """Stop once the mean return of the last ``target_episodes`` episodes reaches this."""
    target_episodes: int = 100
    """How many episodes ``target_return`` looks back at; no stop before that many."""
    last_action_reward: bool = False
    """Also show the policy its last action and reward."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Options of the env or task, such as ``horizon``."""
    run: str | None = None
    """The folder that the run is kept in: config, metrics, checkpoints. None: nothing is written."""
    init_from: str | None = None
    """Start from the weights and statistics of this run or saved agent, with a new optimiser."""
    eval_every: int = 0
    """Env steps between two evaluations; 0: none while training."""
    eval_episodes: int = 100
    """Episodes of each evaluation."""
    checkpoint_every: int | None = None
    """Env steps between two checkpoints; None: about a minute. One at the end is always written."""
    keep_checkpoints: int = 3
    """How many of the latest checkpoints stay. The best by evaluation stays besides."""
    max_seconds: float | None = None
    """Stop after so many seconds of training; those before a resume count."""
    sinks: tuple[str, ...] = ()
    """Where else the metrics go: "tensorboard", "wandb"."""
    threads: int | None = None
    """CPU threads while learning (acting uses one); None: all cores that this process may use."""
    parallel: Literal["rows", "operations"] = "rows"
    """What those threads share: groups of rows, or every single operation. The second is a tenth faster
    with few rows and cores to itself, and very slow as soon as another program wants one of them."""
    compile: bool = False
    """Compile encoder, acting step and critic with torch.compile, which takes a minute or two at the start
    and a C++ compiler. docs/tuning.md says what we saw of it."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """The network: a config, or the name of one for token sets, such as "fast"."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """The algorithm."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name in ("run", "init_from"):
            path = getattr(self, name)
            if isinstance(path, str | os.PathLike):
                object.__setattr__(self, name, os.path.expanduser(os.fspath(path)))
        object.__setattr__(self, "policy", named_policy(self.policy))
        check_fields(self)
        check_fields(self.policy)
        counts = ("steps", "num_envs", "actors", "target_episodes", "threads", "eval_episodes")
        for name in (*counts, "checkpoint_every", "keep_checkpoints"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} = {value}: it must be at least 1")
        if self.num_envs % self.actors:
            raise ConfigError(
                f"num_envs = {self.num_envs} cannot be split evenly over actors = {self.actors}: "
                "choose a multiple"
            )
        for name in ("seed", "eval_every"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} = {getattr(self, name)}: it must not be negative")
        if self.seed >= 2**63:
            raise ConfigError(f"seed = {self.seed}: it must be below 2^63")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ConfigError(f"max_seconds = {self.max_seconds}: it must be above 0")
        for sink in self.sinks:
            if sink not in SINKS:
                raise ConfigError(
                    f"sinks has {sink!r}{nearest(str(sink), SINKS)}: choose {' or '.join(SINKS)}"
                )
        try:
            torch.device(self.device)
        except RuntimeError:
            raise ConfigError(f"device = {self.device!r}: choose cpu or cuda") from None

    def override(self, **values: Any) -> TrainConfig:
        """A copy with flat names changed, each routed to the part that it belongs to."""
        parts: dict[str, dict[str, Any]] = {"": {}, "policy": {}, "ppo": {}}
        for given, value in values.items():
            name = _canonical(given)
            home = next((part for part, names in _names().items() if name in names), None)
            if home is None:
                known = [n for names in _names().values() for n in names]
                near = nearest(given, known + list(ALIASES))
                raise ConfigError(
                    f"there is no setting {given!r}{near}; options of the env go into env_kwargs={{...}}, "
                    "those of a part into its config, such as core=LSTMConfig(hidden=256)"
                )
            if name in parts[home]:
                raise ConfigError(f"{name} is given twice, once as {given!r}")
            parts[home][name] = value
        own = parts[""]
        base_policy, base_ppo = own.pop("policy", self.policy), own.pop("ppo", self.ppo)
        base_policy = named_policy(base_policy, parts["policy"].get("encoder"))
        return replace(
            self,
            **own,
            policy=replace(base_policy, **parts["policy"]) if parts["policy"] else base_policy,
            ppo=replace(base_ppo, **parts["ppo"]) if parts["ppo"] else base_ppo,
        )


def _names() -> dict[str, set[str]]:
    return {
        "": {f.name for f in fields(TrainConfig)},
        "policy": {f.name for f in fields(PolicyConfig)},
        "ppo": {f.name for f in fields(PPOConfig)},
    }


def _levels_to_the_user() -> int:
    """How far up the stack the first line is that is not Recollect's own, counted from the caller."""
    frame, level = sys._getframe(1), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("recollect."):
        frame, level = frame.f_back, level + 1
    return level


def _canonical(name: str) -> str:
    """Our name for a name that may be another library's."""
    if name == "batch_size":
        raise ConfigError(
            "batch_size is counted in other units here: use `minibatches`, the number of optimiser steps per "
            "pass; minibatches = num_envs * rollout / batch_size"
        )
    if name in ALIASES:
        text = f"{name} is called {ALIASES[name]} in Recollect"
        warnings.warn(text, UserWarning, stacklevel=_levels_to_the_user())
        return ALIASES[name]
    return name
