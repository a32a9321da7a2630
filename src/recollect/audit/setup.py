"""Whom a verification is about: the user's env and settings, made small enough for seconds."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import torch
from torch import nn

from recollect.agent import PolicyFactory, check_config, made_policy
from recollect.api import resolve
from recollect.base.tolerances import on_device, tolerance
from recollect.config.algo_choice import AlgoConfig
from recollect.config.tasks import task_name
from recollect.config.train import TrainConfig
from recollect.envs.contract import BatchedEnv
from recollect.envs.factory import is_made, makes_batches, slots
from recollect.envs.named import resolve_env
from recollect.policy.policy import Policy
from recollect.runtimes.actor_envs import open_env

MOST_ENVS = 4
"""Env slots that are tried."""
MOST_STEPS = 128
"""Steps of a rollout that are tried; fewer if the env is slow."""
LEAST_STEPS = 12
MOST_EPOCHS = 2


@dataclass(frozen=True, slots=True)
class Subject:
    """An env, a config as it is tried, and the maker of the network if it is the user's own."""

    env: Any
    config: TrainConfig
    policy: PolicyFactory | None = None
    notes: tuple[str, ...] = ()
    """The settings that were made smaller than in the config."""
    asked_envs: int = 1
    """Env slots that a training would have."""

    @property
    def name(self) -> str:
        """The env in a word."""
        if isinstance(self.env, str):
            return self.env
        inner = self.env.func if isinstance(self.env, functools.partial) else self.env
        return getattr(inner, "__name__", None) or type(inner).__name__

    def open(self) -> BatchedEnv:
        """The env as rows, with the wrappers that the config asks for."""
        return open_env(self.env, self.config)

    def single(self) -> gym.Env | None:
        """One env for Gymnasium's own checker; None if the world is not made of ``gymnasium.Env``s."""
        options = self.config.env_kwargs
        if isinstance(self.env, str):
            return None if task_name(self.env) else gym.make(self.env, disable_env_checker=True, **options)
        if isinstance(self.env, gym.Env):
            return self.env
        if is_made(self.env) or makes_batches(self.env):
            return None
        return self.env(**options)  # pyright: ignore[reportCallIssue]

    def build(self, env: BatchedEnv) -> Policy:
        """The network for the env's spaces, with an action head in which its memory shows."""
        make = self.policy or self.config.policy.build
        with torch.random.fork_rng(devices=[]):  # the caller's own random stream goes on as it was
            torch.manual_seed(self.config.seed)
            policy = made_policy(make, env.observation_space, env.action_space)
            _enliven(policy)
        return policy.to(self.config.device)

    @property
    def tolerance(self) -> float:
        """How far what is recomputed may be from what was recorded."""
        config = self.config
        return tolerance(config.algo.tolerance, on_device(config.policy.precision, config.device))

    def sized(self, rows: int, most_steps: int) -> Subject:
        """The same with rollouts of at most ``most_steps`` steps, for ``rows`` rows."""
        algo = _shortened(self.config.algo, rows, most_steps)
        notes = [
            f"{name} {before} -> {after}"
            for name in ("rollout", "chunk", "burn_in_steps", "minibatches", "accumulate", "epochs")
            if (before := getattr(self.config.algo, name)) != (after := getattr(algo, name))
            and not (name == "chunk" and algo.recurrent_mode == "full")
        ]
        return replace(self, config=replace(self.config, algo=algo), notes=(*self.notes, *notes))


def prepare(
    env: Any, config: TrainConfig | None, policy: Any, settings: dict[str, Any], preset: bool = True
) -> Subject:
    """The subject of ``verify(env, config, policy=policy, **settings)``, read as ``train`` reads them."""
    full, policy, _ = resolve(env, settings, config=config, policy=policy, preset=preset)
    check_config(full, policy)
    env = resolve_env(env) if isinstance(env, str) else env
    num_envs = slots(env) if is_made(env) else min(full.num_envs, MOST_ENVS)
    notes = () if is_made(env) or num_envs == full.num_envs else (f"num_envs {full.num_envs} -> {num_envs}",)
    # Nothing of a run but its training: no folder, no evaluations, no end before it is time.
    quiet = TrainConfig(
        num_envs=num_envs,
        seed=full.seed,
        device=full.device,
        last_action_reward=full.last_action_reward,
        env_kwargs=full.env_kwargs,
        threads=full.threads,
        parallel=full.parallel,
        policy=full.policy,
        algo=full.algo,
    )
    asked = num_envs if is_made(env) else full.num_envs
    return Subject(env, quiet, policy, notes, asked)


def _shortened(algo: AlgoConfig, rows: int, most_steps: int) -> AlgoConfig:
    """The same kind of rollout, shorter: several chunks, and a short last one where there was one."""
    rollout, chunk = algo.rollout, min(algo.chunk, algo.rollout)
    if rollout > most_steps:
        if chunk > most_steps // 2:
            chunk = max(1, most_steps // 2)
        rest = algo.rollout % algo.chunk
        rollout = most_steps // chunk * chunk
        if rest and rest < chunk:
            rollout += rest - (chunk if rollout + rest > most_steps else 0)
    burn_in = min(algo.burn_in_steps, chunk)
    count = replace(algo, rollout=rollout, chunk=chunk, burn_in_steps=burn_in).sequences(rows)
    minibatches = min(algo.minibatches, count)
    return replace(
        algo,
        rollout=rollout,
        chunk=chunk,
        burn_in_steps=burn_in,
        minibatches=minibatches,
        accumulate=min(algo.accumulate, count // minibatches),
        epochs=min(algo.epochs, MOST_EPOCHS),
        gauge_every=1 if algo.gauge_every else 0,
    )


@torch.no_grad()
def _enliven(policy: Policy) -> None:
    """Actions start almost independent of the memory (a small gain): then a wrong one would not show."""
    for parameter in policy.head.parameters():
        if parameter.dim() == 2:
            nn.init.orthogonal_(parameter)
