"""The env, config and policy that ``verify`` checks: the user's own, reduced to run in seconds."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium as gym
import torch
from torch import nn

from recollect.agent import Agent
from recollect.api import resolve
from recollect.base.tolerances import on_device, tolerance
from recollect.config.algo_shared import AlgoConfig, LearnerConfig
from recollect.config.replay import REBUILT, ReplayConfig
from recollect.config.tasks import task_name
from recollect.config.train import TrainConfig
from recollect.envs.contract import BatchedEnv
from recollect.envs.env_names import display_name, resolve_env
from recollect.envs.factory import is_made, is_multi_agent, makes_batches, slots
from recollect.envs.group_views import Groups
from recollect.envs.pettingzoo import is_pettingzoo
from recollect.envs.user_wrappers import wrapped
from recollect.errors import ConfigError
from recollect.policy.policies import Network, by_group
from recollect.policy.policy import Policy
from recollect.policy.q_heads import QHead
from recollect.runtimes.actor_envs import open_env
from recollect.training.new_network import PolicyFactory, check_config, made_network

MOST_ENVS, MOST_EPOCHS, MOST_PROCESSES = 4, 2, 2
MOST_SEQUENCES, MOST_TARGET_STEPS = 16, 3
"""In a batch; and between two copies to the target network."""
KEPT_SEQUENCES = 8
"""Lengths of a sequence that the replay holds of each row."""
REDUCED = (
    *("rollout", "chunk", "burn_in_steps", "minibatches", "accumulate", "epochs", "stride", "batch"),
    *("replay_capacity", "replay_warmup", "replay_ratio", "target_every"),
)
"""The settings of algorithms that may be reduced."""
LEAST_STEPS, MOST_STEPS = 12, 128
"""Steps of a rollout; few if the env is slow."""


@dataclass(frozen=True, slots=True)
class Setup:
    """An env, the reduced config, and the policy factory if the user has one."""

    env: Any
    config: TrainConfig
    policy: PolicyFactory | None = None
    notes: tuple[str, ...] = ()
    """The settings that are smaller than the user's."""
    asked_envs: int = 1
    """Env slots of the user's own config."""
    where: dict[str, Any] = field(default_factory=dict)
    """The user's own settings of actors and their processes; empty: all in this process."""
    trained: Network | None = None
    """The networks of a run; None: new ones."""

    @property
    def name(self) -> str:
        """The name of the env."""
        return display_name(self.env) or "env"

    def open(self) -> BatchedEnv | Groups:
        """The batched env, with the wrappers of the config."""
        return open_env(self.env, self.config)

    def single(self) -> gym.Env | None:
        """One env for Gymnasium's own checker; None if the rows are not ``gymnasium.Env``s."""
        config, options = self.config, self.config.env_kwargs
        if is_multi_agent(self.env):
            return None
        if isinstance(self.env, str) and not task_name(self.env):
            made = gym.make(self.env, disable_env_checker=True, **options)
        elif isinstance(self.env, gym.Env):
            made = self.env
        elif isinstance(self.env, str) or is_made(self.env) or makes_batches(self.env):
            return None
        else:
            made = self.env(**options)  # pyright: ignore[reportCallIssue]
            if is_pettingzoo(made):
                made.close()
                return None
        return wrapped(made, config.wrap, config.drop_obs)

    def build(self, env: BatchedEnv | Groups) -> Network:
        """The policy of each group: the trained one, or a new one whose actions depend on its memory."""
        if self.trained is not None:
            return copy.deepcopy(self.trained).to(self.config.device)
        with torch.random.fork_rng(devices=[]):  # the caller's random stream is not changed
            torch.manual_seed(self.config.seed)
            network = made_network(self.policy or self.config.policy.build, env)
            for policy in by_group(network).values():
                _scale_action_head(policy)
                if isinstance(policy.head, QHead):
                    policy.head.draw_noise()  # if it is noisy: else it begins without noise
        return network.to(self.config.device)

    @property
    def tolerance(self) -> float:
        """Largest allowed deviation of recomputed values from recorded ones."""
        config = self.config
        return tolerance(config.algo.tolerance, on_device(config.policy.precision, config.device))

    def sized(self, rows: int, most_steps: int, most_rows: int | None = None) -> Setup:
        """The same setup with rollouts of at most ``most_steps`` steps, for ``rows`` rows of a policy.

        ``most_rows``: of the policy that has most, if there are several.
        """
        algo = _shortened(self.config.algo, rows, most_rows or rows, most_steps)
        is_whole = isinstance(algo, LearnerConfig) and algo.recurrent_mode == "full"
        notes = [
            f"{name} {before} -> {after}"
            for name in REDUCED
            if hasattr(algo, name)
            and (before := getattr(self.config.algo, name)) != (after := getattr(algo, name))
            and not (name == "chunk" and is_whole)
        ]
        return replace(self, config=replace(self.config, algo=algo), notes=(*self.notes, *notes))


def prepare(
    env: Any, config: TrainConfig | None, policy: Any, settings: dict[str, Any], preset: bool = True
) -> Setup:
    """The setup of ``verify``; arguments are read as by ``train``."""
    full, policy, _ = resolve(env, settings, config=config, policy=policy, preset=preset)
    check_config(full, policy)
    return reduced(env, full, policy)


def prepare_run(agent: Agent) -> Setup:
    """The setup of a run or a saved agent, with its own weights; a short training starts from new ones."""
    if agent.env is None:
        agent.make_env(1)  # raises the error that says what to name again
    policy = None
    if any(one.made_by for one in by_group(agent.network).values()):
        policy = partial(_copied, agent.network)
    return replace(reduced(agent.env, agent.config, policy), trained=agent.network)


def _copied(network: Network, observation_space: gym.Space, action_space: gym.Space) -> Policy:
    """A copy of the policy with these spaces, in place of the factory that made it."""
    for policy in by_group(network).values():
        if (policy.observation_space, policy.action_space) == (observation_space, action_space):
            return copy.deepcopy(policy)
    raise ConfigError("no policy of the run has the spaces of its env")


def reduced(env: Any, full: TrainConfig, policy: PolicyFactory | None) -> Setup:
    """The setup of a training, with few rows."""
    env = resolve_env(env) if isinstance(env, str) else env
    num_envs = slots(env) if is_made(env) else min(full.num_envs, MOST_ENVS)
    notes = () if is_made(env) or num_envs == full.num_envs else (f"num_envs {full.num_envs} -> {num_envs}",)
    # Only settings of the training itself: no run folder, no evaluations, no early end.
    kept = ("seed", "device", "last_action_reward", "env_kwargs", "wrap", "drop_obs", "threads", "parallel")
    kept += ("policies", "policy", "algo", "vs", "vs_kwargs", "curriculum")
    quiet = TrainConfig(num_envs=num_envs, **{name: getattr(full, name) for name in kept})
    where = {}
    if full.runtime != "inline" or full.env_workers or full.learners > 1 or full.learner_processes:
        kept = ("runtime", "mode", "max_lag", "env_timeout", "learner_processes")
        where = {name: getattr(full, name) for name in kept}
        where["learners"] = min(full.learners, MOST_PROCESSES)
        where |= {name: min(getattr(full, name), MOST_PROCESSES) for name in ("actors", "env_workers")}
        where["num_envs"] = max(1, num_envs // where["actors"]) * where["actors"]
    return Setup(env, quiet, policy, notes, num_envs if is_made(env) else full.num_envs, where)


def _shortened(algo: AlgoConfig, rows: int, most_rows: int, most_steps: int) -> AlgoConfig:
    if isinstance(algo, ReplayConfig):
        return _short_replay(algo, rows, most_rows, most_steps)
    assert isinstance(algo, LearnerConfig)
    return _short_rollout(algo, rows, most_steps)


def _short_replay(algo: ReplayConfig, rows: int, most_rows: int, most_steps: int) -> ReplayConfig:
    """A small replay that learns at once: about two optimiser steps with every rollout."""
    rollout, chunk = min(algo.rollout, most_steps), min(algo.chunk, most_steps)
    # A burn-in that rebuilds the state has to be as long as it is.
    burn_in = algo.burn_in_steps if algo.states == REBUILT else min(algo.burn_in_steps, chunk)
    batch = min(algo.batch, MOST_SEQUENCES)
    window = burn_in + chunk + algo.n_step
    capacity = most_rows * (KEPT_SEQUENCES * window + 2 * rollout + 1)
    return replace(
        algo,
        rollout=rollout,
        chunk=chunk,
        burn_in_steps=burn_in,
        stride=algo.stride and min(algo.stride, chunk),
        batch=batch,
        replay_capacity=min(algo.replay_capacity, capacity),
        replay_warmup=0,
        replay_ratio=2 * batch * chunk / (rollout * rows),
        target_every=algo.target_every and min(algo.target_every, MOST_TARGET_STEPS),
        gauge_every=1 if algo.gauge_every else 0,
    )


def _short_rollout(algo: LearnerConfig, rows: int, most_steps: int) -> LearnerConfig:
    """A shorter rollout of the same kind: several chunks, and a shorter last chunk if there was one."""
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
def _scale_action_head(policy: Policy) -> None:
    """Raise the small initial gain, with which a wrong memory would hardly change the actions."""
    for parameter in policy.head.parameters():
        if parameter.dim() == 2:
            nn.init.orthogonal_(parameter)
