"""The Python API: train an agent, ask it for actions, keep it, load it, train it on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from recollect import exchange, storage, tree
from recollect.config import ALIASES, TrainConfig
from recollect.envs.batched import BatchedEnv
from recollect.envs.gym import make_env
from recollect.envs.wrappers import LastActionReward
from recollect.errors import ConfigError, StateError
from recollect.evaluate import Evaluation, evaluate
from recollect.metrics import History
from recollect.policy.policy import Policy, PolicyConfig
from recollect.presets import preset as preset_of
from recollect.progress import Progress
from recollect.rollout import rollout_bytes
from recollect.runtimes.inline import Trainer, Watcher, check_spaces
from recollect.session import Session
from recollect.types import State

EnvSpec = str | Callable[..., gym.Env] | gym.Env | gym.vector.VectorEnv | BatchedEnv
"""A Gymnasium id or task name, a callable that makes an env, one env, a VectorEnv, or a BatchedEnv."""
PolicyFactory = Callable[[gym.Space, gym.Space], Policy]
"""Makes a policy for an observation space and an action space."""


def train(
    env: EnvSpec,
    *,
    policy: PolicyFactory | PolicyConfig | None = None,
    progress: bool = True,
    watch: Watcher | None = None,
    config: TrainConfig | None = None,
    preset: bool = True,
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
        preset: for a built-in task and without ``config``, start from the settings that suit it
            (``recollect.presets``).
        **settings: any field of ``TrainConfig``, ``PPOConfig`` or ``PolicyConfig`` by its name.

    Example:
        >>> agent = train("recollect/TMaze-v0", core="lstm", steps=300_000)  # doctest: +SKIP
    """
    if not isinstance(config, TrainConfig | None):
        raise ConfigError(f"config is a {type(config).__name__}: give a TrainConfig, or settings by name")
    if isinstance(policy, PolicyConfig):
        settings["policy"] = policy
        policy = None
    if _is_made(env) and not {"num_envs", "n_envs"} & settings.keys():
        settings["num_envs"] = _slots(env)
    chosen: dict[str, Any] = {}
    if config is None and preset and isinstance(env, str):
        network = {} if policy is None else {"policy": policy}
        known = {ALIASES.get(name, name): value for name, value in settings.items()} | network
        chosen = preset_of(env, known)
    agent = Agent.create(env, (config or TrainConfig()).override(**settings | chosen), policy)
    agent.preset = chosen
    agent.train(progress=progress, watch=watch)
    return agent


def load(
    path: str | Path,
    *,
    env: EnvSpec | None = None,
    policy: PolicyFactory | None = None,
    device: str | None = None,
) -> Agent:
    """An agent from the folder that ``Agent.save`` wrote. Executes nothing from that folder.

    Args:
        path: the folder.
        env: the env, if the agent was not trained on a named one.
        policy: the factory, if the agent was made with one, or with an encoder or core factory.
        device: where it shall live; None: where it was trained, or the CPU if there is no GPU here.
    """
    saved = storage.read(Path(path))
    make_policy = policy or saved.policy_config().build
    network = _made(make_policy, saved.observation_space, saved.action_space)
    storage.load_weights(network, saved)
    config = saved.config(network)
    if device is None and not torch.cuda.is_available():
        device = "cpu"
    config = replace(config, device=device or config.device)
    agent = Agent(network.to(config.device), config, saved.env if env is None else env)
    agent.saved = saved
    return agent


class Agent:
    """A policy with the config that made it and, where known, the env that it was made for."""

    def __init__(self, policy: Policy, config: TrainConfig, env: EnvSpec | None):
        self.policy, self.config, self.env = policy, config, env
        self.saved: storage.Saved | None = None
        self.preset: dict[str, Any] = {}
        """The settings that were chosen for the task beside the user's own."""
        self._trainer: Trainer | None = None

    @classmethod
    def create(cls, env: EnvSpec, config: TrainConfig, policy: PolicyFactory | None = None) -> Agent:
        """A new, untrained agent for ``env``."""
        if config.device.startswith("cuda") and not torch.cuda.is_available():
            raise ConfigError(f"device = {config.device!r}, but torch sees no GPU here: use device='cpu'")
        if policy is not None and config.policy != PolicyConfig():
            raise ConfigError(
                "policy is a factory, which makes the whole network: encoder, core, head and the like would "
                "do nothing beside it. Set them inside the factory, or leave it out"
            )
        batched = _open(env, config, config.num_envs, config.env_kwargs)
        with torch.random.fork_rng(devices=[]):  # the caller's own random stream goes on as it was
            torch.manual_seed(config.seed)
            make = policy or config.policy.build
            network = _made(make, batched.observation_space, batched.action_space)
        agent = cls(network.to(config.device), config, env)
        agent._trainer = Trainer(batched, network, config)
        return agent

    @property
    def history(self) -> History:
        """The metrics of the training in this process."""
        return self._need_trainer().history

    @property
    def steps(self) -> int:
        """Env steps trained so far, those before a save and load among them."""
        if self._trainer is not None:
            return self._trainer.steps
        return 0 if self.saved is None else self.saved.steps

    def train(
        self, steps: int | None = None, *, progress: bool = True, watch: Watcher | None = None
    ) -> dict[str, float]:
        """Train for ``steps`` more env steps (the config's number if None). Returns the last metrics.

        Weights, optimiser and statistics go on; schedules run anew over these steps, and after a
        load the envs begin new episodes.
        """
        steps = self.config.steps if steps is None else steps
        if steps < 1:
            raise ConfigError(f"steps = {steps}: it must be at least 1")
        trainer = self._need_trainer()
        end = trainer.steps + steps
        with Progress(trainer.steps, end, shown=progress, opening=self._opening(trainer)) as shown:

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
        env_kwargs: dict[str, Any] | None = None,
        num_envs: int | None = None,
    ) -> Evaluation:
        """Play whole episodes with frozen weights and statistics; the same seed gives the same ones.

        ``env`` or ``env_kwargs`` choose another world than the agent was trained in, such as
        ``env_kwargs={"horizon": 200}``.
        """
        source = env if env is not None else self.env
        if env_kwargs is None and env is not None and env is not self.env:
            env_kwargs = {}
        if source is None:
            raise ConfigError("the env of this agent is not known by name: pass env=... to evaluate")
        if not _is_made(source):
            batched = _open(source, self.config, num_envs or min(episodes, 16), env_kwargs)
            try:
                return self._evaluate(batched, episodes, seed, deterministic)
            finally:
                batched.close()
        # An env object cannot be made twice: it plays here, and training starts new episodes after.
        if source is self.env and self._trainer is not None:
            self._trainer.restart_episodes()
            return self._evaluate(self._trainer.env, episodes, seed, deterministic)
        return self._evaluate(_open(source, self.config), episodes, seed, deterministic)

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
        if self._trainer is not None:
            optimizer = storage.learner_tensors(self._trainer.learner)
            updates = self._trainer.learner.updates
        else:
            optimizer = {} if self.saved is None else self.saved.optimizer
            updates = 0 if self.saved is None else self.saved.updates
        return storage.write(
            Path(path),
            self.policy,
            self.config,
            self.env,
            optimizer=optimizer,
            steps=self.steps,
            updates=updates,
        )

    def _evaluate(self, env: BatchedEnv, episodes: int, seed: int, deterministic: bool) -> Evaluation:
        check_spaces(self.policy, env)
        return evaluate(self.policy, env, episodes=episodes, seed=seed, deterministic=deterministic)

    def _opening(self, trainer: Trainer) -> str:
        """What is known before training: sizes and the horizon."""
        ppo, policy, rows = self.config.ppo, self.policy, trainer.env.num_envs * trainer.env.agents
        size = rollout_bytes(
            policy.observation_space,
            policy.action_space,
            policy.initial_state(1),
            rows=rows,
            steps=ppo.rollout,
            stored=len(ppo.state_steps),
        )
        weights = sum(p.numel() for p in policy.parameters())
        chosen = "".join(f"; preset {name}={value!r}" for name, value in self.preset.items())
        return (
            f"{weights:,} weights; a rollout of {ppo.rollout} steps x {rows} rows takes "
            f"{size.total / 1e6:.3g} MB, {size.states / size.total:.0%} of it stored states; effective "
            f"horizon {ppo.effective_horizon:.4g} steps{chosen}"
        )

    def _need_trainer(self) -> Trainer:
        if self._trainer is None:
            if self.env is None:
                raise ConfigError("the env of this agent is not known by name: use load(path, env=...)")
            self._trainer = Trainer(_open(self.env, self.config), self.policy, self.config)
            if self.saved is not None:
                storage.load_learner(self._trainer.learner, self.saved)
                self._trainer.steps = self.saved.steps
        return self._trainer

    def _starts(self, episode_start: Any, rows: int) -> torch.Tensor:
        starts = False if episode_start is None else episode_start
        first = torch.as_tensor(np.asarray(starts, dtype=bool), device=self._device)
        return first.expand(rows) if first.dim() == 0 else first

    @property
    def _device(self) -> torch.device:
        return next(self.policy.parameters()).device


def _open(
    env: EnvSpec, config: TrainConfig, num_envs: int | None = None, env_kwargs: dict[str, Any] | None = None
) -> BatchedEnv:
    """The env as rows, with the wrappers that the config asks for.

    Without ``num_envs`` and ``env_kwargs`` an env object comes as it is, any other as in the config.
    """
    if num_envs is None:
        num_envs = _slots(env) if _is_made(env) else config.num_envs
    if env_kwargs is None:
        env_kwargs = {} if _is_made(env) else config.env_kwargs
    batched = make_env(env, num_envs, device=torch.device(config.device), env_kwargs=env_kwargs)
    return LastActionReward(batched) if config.last_action_reward else batched


def _is_made(env: EnvSpec) -> bool:
    """Whether it is an env object and not the name or the maker of one."""
    return isinstance(env, gym.Env | gym.vector.VectorEnv | BatchedEnv) and not isinstance(env, type)


def _slots(env: Any) -> int:
    return 1 if isinstance(env, gym.Env) else env.num_envs


def _made(make: PolicyFactory, observation_space: gym.Space, action_space: gym.Space) -> Policy:
    if not callable(make):
        raise ConfigError(
            f"policy is a {type(make).__name__}: give a PolicyConfig, or a function (observation_space, "
            "action_space) -> Policy"
        )
    policy = make(observation_space, action_space)
    if not isinstance(policy, Policy):
        raise ConfigError(f"the policy factory made a {type(policy).__name__}; it needs to make a Policy")
    return policy
