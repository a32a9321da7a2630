"""The Python API: train an agent, ask it for actions, keep it, load it, train it on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from recollect import exchange, storage, tree
from recollect.config import TrainConfig
from recollect.envs.batched import BatchedEnv
from recollect.envs.gym import make_env
from recollect.envs.wrappers import LastActionReward
from recollect.errors import ConfigError, StateError
from recollect.evaluate import Evaluation, evaluate
from recollect.metrics import History
from recollect.policy.policy import Policy, PolicyConfig
from recollect.progress import Progress
from recollect.runtimes.inline import Trainer, Watcher, check_spaces
from recollect.session import Session
from recollect.types import State

EnvSpec = str | Callable[[], gym.Env] | gym.vector.VectorEnv | BatchedEnv
"""A Gymnasium id or task name, a callable that makes an env, a VectorEnv, or a BatchedEnv."""
PolicyFactory = Callable[[gym.Space, gym.Space], Policy]
"""Makes a policy for an observation space and an action space."""


def train(
    env: EnvSpec,
    *,
    policy: PolicyFactory | PolicyConfig | None = None,
    progress: bool = True,
    watch: Watcher | None = None,
    config: TrainConfig | None = None,
    **settings: Any,
) -> Agent:
    """Train an agent with memory by recurrent PPO.

    Args:
        env: a Gymnasium id, a built-in task's name, a callable that makes an env, a Gymnasium
            VectorEnv, or a BatchedEnv.
        policy: a config, or a factory ``(observation_space, action_space) -> Policy``, in place of
            the settings ``encoder``, ``core`` and ``head``.
        progress: show progress in the terminal.
        watch: called after every update with its metrics and new advice.
        config: settings to start from; ``settings`` go on top.
        **settings: any field of ``TrainConfig``, ``PPOConfig`` or ``PolicyConfig`` by its name.

    Example:
        >>> agent = train("recollect/TMaze-v0", core="lstm", steps=300_000)  # doctest: +SKIP
    """
    config = config or TrainConfig()
    if isinstance(policy, PolicyConfig):
        settings["policy"] = policy
        policy = None
    config = config.override(**settings)
    agent = Agent.create(env, config, policy)
    agent.train(progress=progress, watch=watch)
    return agent


def load(path: str | Path, *, env: EnvSpec | None = None, policy: PolicyFactory | None = None) -> Agent:
    """An agent from the folder that ``Agent.save`` wrote. Executes nothing from that folder.

    Args:
        path: the folder.
        env: the env, if the agent was not trained on a named one.
        policy: the factory, if the agent was made with one, or with an encoder or core factory.
    """
    saved = storage.read(Path(path))
    make_policy = policy or saved.policy_config().build
    network = make_policy(saved.observation_space, saved.action_space)
    storage.load_weights(network, saved)
    agent = Agent(network, saved.config(network), env if env is not None else saved.env)
    agent.saved = saved
    return agent


class Agent:
    """A policy with the config that made it and, where known, the env that it was made for."""

    def __init__(self, policy: Policy, config: TrainConfig, env: EnvSpec | None):
        self.policy, self.config, self.env = policy, config, env
        self.saved: storage.Saved | None = None
        self._trainer: Trainer | None = None

    @classmethod
    def create(cls, env: EnvSpec, config: TrainConfig, policy: PolicyFactory | None = None) -> Agent:
        """A new, untrained agent for ``env``."""
        batched = _open(env, config)
        torch.manual_seed(config.seed)
        make = policy or config.policy.build
        network = make(batched.observation_space, batched.action_space).to(config.device)
        agent = cls(network, config, env)
        agent._trainer = Trainer(batched, network, config)
        return agent

    @property
    def history(self) -> History:
        """The metrics of the training so far."""
        return self._need_trainer().history

    @property
    def steps(self) -> int:
        """Env steps trained so far in this process."""
        return 0 if self._trainer is None else self._trainer.steps

    def train(
        self, steps: int | None = None, *, progress: bool = True, watch: Watcher | None = None
    ) -> dict[str, float]:
        """Train for ``steps`` more env steps (the config's number if None). Returns the last metrics."""
        steps = self.config.steps if steps is None else steps
        if steps < 1:
            raise ConfigError(f"steps = {steps}: it must be at least 1")
        trainer = self._need_trainer()
        with Progress(trainer.steps, trainer.steps + steps, shown=progress) as shown:

            def both(metrics: dict[str, float], advice: list[str]) -> None:
                shown.show(metrics, advice)
                if watch is not None:
                    watch(metrics, advice)

            return trainer.run(steps, both)

    def evaluate(
        self,
        episodes: int = 100,
        *,
        seed: int = 1_000_003,
        deterministic: bool = True,
        env: EnvSpec | None = None,
        num_envs: int | None = None,
    ) -> Evaluation:
        """Play whole episodes with frozen weights and statistics; the same seed gives the same ones."""
        source = env if env is not None else self.env
        if source is None:
            raise ConfigError("the env of this agent is not known by name: pass env=... to evaluate")
        if isinstance(source, str) or (callable(source) and not isinstance(source, gym.vector.VectorEnv)):
            batched = _open(source, self.config, num_envs or min(episodes, 16))
            check_spaces(self.policy, batched)
            try:
                return self._evaluate(batched, episodes, seed, deterministic)
            finally:
                batched.close()
        # An env object cannot be made twice: it plays here, and training starts new episodes after.
        batched = self._trainer.env if source is self.env and self._trainer else _open(source, self.config)
        check_spaces(self.policy, batched)
        if self._trainer is not None:
            self._trainer.restart_episodes()
        return self._evaluate(batched, episodes, seed, deterministic)

    def initial_state(self, batch: int) -> State:
        """The memory before an episode, for ``batch`` rows."""
        return self.policy.initial_state(batch)

    def predict(
        self,
        obs: Any,
        state: State | None = None,
        episode_start: Any = None,
        *,
        deterministic: bool = True,
    ) -> tuple[Any, State]:
        """Actions for one observation or a batch of them, and the memory to pass to the next call.

        Args:
            obs: one observation of the env, or a batch with rows first.
            state: what the last call returned. A policy with memory needs it, unless
                ``episode_start`` says that every row is at the start of its episode.
            episode_start: which rows are at their episode's first step; None: none is.
            deterministic: the mode in place of a sample (drawn from torch's global RNG).
        """
        batch, is_single = exchange.observations(self.policy.observation_space, obs, self._device)
        rows = tree.leaves(batch)[0].shape[0]
        first = self._starts(episode_start, rows)
        if state is None:
            if self.policy.has_memory and not first.all():
                raise StateError(
                    "predict: this policy has a memory, and no state was given. At the start of an episode "
                    "pass episode_start=True (or state=agent.initial_state(n)); later pass the state that "
                    "the last call returned. agent.session() keeps it for you"
                )
            state = self.policy.initial_state(rows)
        acted, state = self.policy.act(batch, state, first, None, deterministic)
        action = self.policy.to_env(acted.action)
        return exchange.actions(self.policy.action_space, action, is_single), state

    def session(self, num_envs: int = 1, *, deterministic: bool = True, seed: int = 0) -> Session:
        """A live conversation with ``num_envs`` envs that keeps their memories."""
        return Session(self.policy, num_envs, deterministic=deterministic, seed=seed)

    def save(self, path: str | Path) -> Path:
        """Write the agent into a folder: weights and optimiser as safetensors, the rest as JSON."""
        learner = None if self._trainer is None else self._trainer.learner
        return storage.write(Path(path), self.policy, self.config, self.env, learner, self.steps)

    def _evaluate(self, env: BatchedEnv, episodes: int, seed: int, deterministic: bool) -> Evaluation:
        return evaluate(self.policy, env, episodes=episodes, seed=seed, deterministic=deterministic)

    def _need_trainer(self) -> Trainer:
        if self._trainer is None:
            if self.env is None:
                raise ConfigError("the env of this agent is not known by name: use load(path, env=...)")
            self._trainer = Trainer(_open(self.env, self.config), self.policy, self.config)
            if self.saved is not None:
                storage.load_learner(self._trainer.learner, self.saved)
        return self._trainer

    def _starts(self, episode_start: Any, rows: int) -> torch.Tensor:
        starts = False if episode_start is None else episode_start
        first = torch.as_tensor(np.asarray(starts, dtype=bool), device=self._device)
        return first.expand(rows) if first.dim() == 0 else first

    @property
    def _device(self) -> torch.device:
        return next(self.policy.parameters()).device


def _open(env: EnvSpec, config: TrainConfig, num_envs: int | None = None) -> BatchedEnv:
    """The env as rows, with the wrappers that the config asks for."""
    device = torch.device(config.device)
    batched = make_env(env, num_envs or config.num_envs, device=device, env_kwargs=config.env_kwargs)
    return LastActionReward(batched) if config.last_action_reward else batched
