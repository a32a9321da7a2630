"""The configuration of a run: one name for each thing, everywhere.

Keywords are flat: ``train(env, steps=300_000, learning_rate=3e-4, core="gru")`` finds out by itself
that ``learning_rate`` is the algorithm's and ``core`` the policy's. Names that other libraries use are
understood and answered with ours.
"""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch

from recollect.algos.catalog import AlgoConfig, algo_fields, algo_name, check_has, named_algo
from recollect.config.fields import check_fields
from recollect.config.ppo import PPOConfig
from recollect.errors import ConfigError, nearest
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
    """Groups into which the env slots are split, each with random streams of its own. Where they live is
    the ``runtime``'s affair: the same actors learn the same."""
    runtime: Literal["inline", "processes", "ray"] = "inline"
    """Where the actors live: in this process, in processes of their own, or on a Ray cluster."""
    mode: Literal["lockstep", "async"] = "lockstep"
    """Whether actors wait for new weights before every rollout, or run ahead with older ones ("async")."""
    max_lag: int | None = None
    """With "async", how many updates the weights that act may be behind those that learn. None: 1."""
    env_workers: int = 0
    """Processes for each actor that step its env slots, for slow envs; 0: it steps them itself."""
    env_timeout: float | None = 60.0
    """Seconds after which an env in another process that does not answer is given up and its actor
    started anew; None: never, once the actor has started."""
    learners: int = 1
    """Data-parallel learners: each holds its share of the rows, and all make the same step."""
    ray_address: str | None = None
    """The Ray cluster: "auto", or host:port. None: one on this machine, for this run."""
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
    """CPU threads that learning may use (acting uses one); None: all cores that this process may use."""
    parallel: Literal["rows", "operations"] = "rows"
    """What those threads share: groups of rows (as many as pay: docs/tuning.md), or every single operation.
    The second can be faster with cores to itself, and is very slow as soon as another program wants one."""
    compile: bool = False
    """Compile encoder, acting step and critic with torch.compile, which takes a minute or two at the start
    and a C++ compiler. docs/tuning.md says what we saw of it."""
    graphs: bool = True
    """On a GPU, launch acting and every optimiser step as one CUDA graph, recorded at the start. What cannot
    be recorded is said, and runs as it is."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """The network: a config, or the name of one for token sets, such as "fast"."""
    algo: AlgoConfig = field(default_factory=PPOConfig)
    """The algorithm: "ppo" or "impala", or the config of one."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name in ("run", "init_from"):
            path = getattr(self, name)
            if isinstance(path, str | os.PathLike):
                object.__setattr__(self, name, os.path.expanduser(os.fspath(path)))
        object.__setattr__(self, "policy", named_policy(self.policy))
        object.__setattr__(self, "algo", named_algo(self.algo))
        check_fields(self)
        check_fields(self.policy)
        counts = ("steps", "num_envs", "actors", "target_episodes", "threads", "eval_episodes", "learners")
        for name in (*counts, "checkpoint_every", "keep_checkpoints"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} = {value}: it must be at least 1")
        if self.num_envs % self.actors:
            raise ConfigError(
                f"num_envs = {self.num_envs} cannot be split evenly over actors = {self.actors}: "
                "choose a multiple"
            )
        _check_runtime(self)
        for name in ("seed", "eval_every", "env_workers"):
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

    @property
    def lag_limit(self) -> int:
        """How many updates the weights that act may be behind those that learn."""
        return 0 if self.mode == "lockstep" else 1 if self.max_lag is None else self.max_lag

    def override(self, **values: Any) -> TrainConfig:
        """A copy with flat names changed, each routed to the part that it belongs to."""
        parts: dict[str, dict[str, Any]] = {"": {}, "policy": {}, "algo": {}}
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
        base_policy, base_algo = own.pop("policy", self.policy), self._algo(own.pop("algo", self.algo))
        for name in parts["algo"]:
            check_has(algo_name(base_algo), name, name, "algo={!r}")
        base_policy = named_policy(base_policy, parts["policy"].get("encoder"))
        return replace(
            self,
            **own,
            policy=replace(base_policy, **parts["policy"]) if parts["policy"] else base_policy,
            algo=replace(base_algo, **parts["algo"]) if parts["algo"] else base_algo,
        )

    def _algo(self, given: Any) -> AlgoConfig:
        """The name of the present algorithm keeps its settings; another one begins with its defaults."""
        return self.algo if given == algo_name(self.algo) else named_algo(given)


def _check_runtime(config: TrainConfig) -> None:
    """Refuse settings of runtimes that contradict each other, or would do nothing."""
    if config.mode == "async" and config.runtime == "inline":
        raise ConfigError(
            "mode = 'async' with runtime = 'inline': in one process nobody can run ahead; use "
            "runtime='processes' or 'ray'"
        )
    if config.max_lag is not None and config.mode == "lockstep":
        raise ConfigError(f"max_lag = {config.max_lag} does nothing in lockstep: use mode='async'")
    if config.max_lag is not None and config.max_lag < 0:
        raise ConfigError(f"max_lag = {config.max_lag}: it must not be negative")
    if config.env_timeout is not None and not config.env_timeout > 0:
        raise ConfigError(f"env_timeout = {config.env_timeout}: it must be above 0, or None for no limit")
    if config.ray_address is not None and config.runtime != "ray":
        raise ConfigError(f"ray_address does nothing with runtime = {config.runtime!r}: use runtime='ray'")
    own = config.num_envs // config.actors
    if config.env_workers > own:
        raise ConfigError(
            f"env_workers = {config.env_workers}, but an actor has only {own} env slots: choose at most that"
        )


def _names() -> dict[str, set[str]]:
    return {
        "": {f.name for f in fields(TrainConfig)},
        "policy": {f.name for f in fields(PolicyConfig)},
        "algo": set(algo_fields()),
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
