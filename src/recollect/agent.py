"""The agent: a policy with its config, ready to train, act, be evaluated and saved."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from recollect.acting import numpy_conversion
from recollect.acting.evaluate import Evaluation, evaluate, in_mode
from recollect.acting.session import Session
from recollect.acting.versus_games import Games
from recollect.base import row_threads, tracebacks, tree
from recollect.base.types import State
from recollect.base.warnings_once import once
from recollect.config.league import LEAGUE
from recollect.config.train import EvalMode, TrainConfig
from recollect.display import make_display, showing_notices
from recollect.envs.contract import BatchedEnv
from recollect.envs.env_names import display_name
from recollect.envs.factory import EnvSpec, is_made, make_env, make_grouped_env, resolved
from recollect.envs.group_views import Groups
from recollect.envs.groups import GroupedEnv
from recollect.errors import ConfigError, Interrupted, LostError, PickleError, RecollectError, StateError
from recollect.learning.learner_state import Learned
from recollect.policy.noisy import means
from recollect.policy.policies import (
    Network,
    Policies,
    any_policy,
    by_group,
    rows_by_group,
    rows_of_slots,
)
from recollect.policy.policy import Policy
from recollect.runtimes.actor_envs import has_groups, open_env, prepared
from recollect.runtimes.env_probe import check_spaces, env_probe
from recollect.runtimes.inline_collector import InlineCollector
from recollect.runtimes.run_summary import run_opening, short_run_note
from recollect.training import checkpoints
from recollect.training.advice import Advisor
from recollect.training.callbacks import Callback
from recollect.training.league import League
from recollect.training.memory_check import MANY_ENVS, check_memory
from recollect.training.metrics import History
from recollect.training.new_network import PolicyFactory, check_config, new_network
from recollect.training.opponents import against
from recollect.training.parallel_choice import with_parallel
from recollect.training.run_folder import Run
from recollect.training.run_loop import Training
from recollect.training.sinks import make_sinks
from recollect.training.trainer import Trainer
from recollect.training.trusted_settings import Unnamed

Callbacks = Iterable[Callback | Callable[..., Any]] | Callback | Callable[..., Any]
"""One or several instances of ``Callback`` or functions (training, metrics)."""
E = TypeVar("E", Evaluation, Games)


class Agent:
    """A policy with its config and, if known, its env."""

    def __init__(
        self,
        policy: Network,
        config: TrainConfig,
        env: EnvSpec | None,
        *,
        learned: Learned | None = None,
        preset: dict[str, Any] | None = None,
        unnamed: Unnamed | None = None,
    ):
        """``unnamed``: settings of the agent's folder that the user has not repeated (``training.trust``)."""
        self.network, self.config, self.env = policy, config, env
        self._unnamed = unnamed or Unnamed()
        self.preset = preset or {}
        """The settings that the task's preset chose."""
        self.history = History()
        """The metrics of the training so far."""
        self.advisor = Advisor(config, env=self.env_name, has_memory=policy.has_memory)
        """Checks the metrics; each piece of advice comes once."""
        self.run: Run | None = None
        """The run folder, if it has one."""
        self._learned = learned or Learned()  # once there is a trainer, its state is the current one
        self._trainer: Trainer | None = None
        self._memory_warning: str | None = None
        self._seconds = 0.0  # of training, so far
        self._is_training = False

    @classmethod
    def create(
        cls,
        env: EnvSpec,
        config: TrainConfig,
        policy: PolicyFactory | None = None,
        *,
        preset: dict[str, Any] | None = None,
    ) -> Agent:
        """A new, untrained agent for ``env``; ``preset``: the settings of ``config`` that a preset chose."""
        check_config(config, policy)
        network, warning = None, None
        if config.runtime == "inline" and config.num_envs >= MANY_ENVS and not is_made(env):
            with closing(open_env(env, config, 1, config.env_kwargs)) as one:  # before so many are made
                network, warning = new_network(config, policy, one)
        with env_probe(env, config, is_new=True) as probe:
            if network is None:
                network, warning = new_network(config, policy, probe.one)
            network, collector = network.to(config.device), probe.collector(network)
            rows = rows_by_group(network, collector.rows)
            learners = {name: (one, rows[name]) for name, one in by_group(network).items()}
            config = with_parallel(config, learners)
            agent = cls(network, config, env, preset=preset)
            agent._memory_warning = warning
            agent._trainer = Trainer(collector, network, config)
        return agent

    def __repr__(self) -> str:
        """For example ``<Agent of t-maze: LSTM, 99,971 parameters, 300,000 steps trained, run runs/a>``."""
        env = "no env" if self.env is None else display_name(self.env) or "an env"
        one = any_policy(self.network)
        core = type(one.core).__name__ if one.has_memory else "no memory"
        network = f"{type(one).__name__} with {core}" if one.made_by else core
        network += f" for each of {', '.join(self.groups)}" if self.groups else ""
        size = sum(parameter.numel() for parameter in self.network.parameters())
        run = "" if self.run is None else f", run {self.run.path}"
        return f"<Agent of {env}: {network}, {size:,} parameters, {self.steps:,} steps trained{run}>"

    @property
    def policy(self) -> Policy:
        """The policy; of an agent with several groups each group has its own: ``agent[group].policy``."""
        if isinstance(self.network, Policies):
            groups = ", ".join(map(repr, self.groups))
            raise ConfigError(f"this agent has a policy for each of the groups {groups}: use agent[group]")
        return self.network

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The agents of the env by group; empty if all share one policy."""
        return dict(self.network.agents) if isinstance(self.network, Policies) else {}

    def __getitem__(self, group: str) -> Agent:
        """The policy of one group as an agent without an env, to predict and act with."""
        policies = by_group(self.network)
        if group not in policies:
            known = f"its groups are {', '.join(policies)}" if self.groups else "it has one policy for all"
            raise ConfigError(f"this agent has no group {group!r}: {known}")
        config, learned = replace(self.config, run=None), Learned(steps=self.steps)
        return Agent(policies[group], config, None, learned=learned, unnamed=self._unnamed)

    @property
    def env_name(self) -> str | None:
        """The env's name; None if the env is an instance or a function."""
        return self.env if isinstance(self.env, str) else None

    @property
    def can_make_env(self) -> bool:
        """Whether a second instance of the env can be made."""
        return self.env is not None and not is_made(self.env)

    @property
    def steps(self) -> int:
        """Env steps trained so far, those before a save and load included."""
        return self._learned.steps if self._trainer is None else self._trainer.steps

    def train(
        self,
        steps: int | None = None,
        *,
        progress: bool | str = True,
        callbacks: Callbacks = (),
        command: list[str] | None = None,
    ) -> dict[str, float]:
        """Train for ``steps`` more env steps (the config's number if None). Returns the last metrics.

        Weights, optimiser and statistics continue; schedules restart over these steps, and after a load
        the envs start new episodes.

        Args:
            steps: env steps.
            progress: the display: True for one that fits the terminal, False for none, or "live", "plain",
                "json", "notebook".
            callbacks: see ``recollect.Callback``.
            command: the command line, for the run folder.
        """
        if self._is_training:  # checked before the current leg is changed
            raise ConfigError("this agent is in training already: wait for its end, or call training.stop()")
        trainer = self.need_trainer(progress)
        trainer.begin(_at_least_one("steps", self.config.steps if steps is None else steps))
        if self.run is not None or self.config.run is None:
            return self._fit(trainer, progress, callbacks)
        with Run.creating(self.config.run, self, command=command) as self.run:
            return self._fit(trainer, progress, callbacks)

    def resume(
        self, run: Run, *, steps: int | None = None, progress: bool | str = True, callbacks: Callbacks = ()
    ) -> dict[str, float]:
        """Continue the run that this agent is a checkpoint of; called by ``recollect.resume``."""
        self.run = run
        with tracebacks.keeping(run.path):
            trainer = self.need_trainer(progress)
        if steps is not None:
            trainer.begin(_at_least_one("steps", steps))
        return self._fit(trainer, progress, callbacks, resumed=self._learned)

    def _fit(
        self, trainer: Trainer, progress: bool | str, callbacks: Callbacks, *, resumed: Learned | None = None
    ) -> dict[str, float]:
        # Sinks first: if one cannot start, the error comes before the display opens.
        own = [callbacks] if isinstance(callbacks, Callback) or callable(callbacks) else callbacks
        league = [League()] if self.config.vs == LEAGUE else []
        all_callbacks = [*make_sinks(self.config.sinks), make_display(progress), *league, *own]
        opening = run_opening(self.network, self.config, trainer.collector, self.preset)
        with nullcontext() if self.run is None else self.run.writing(), once():
            if resumed is not None and self.run is not None:
                self.run.rewind(resumed.steps)
                self.history = self.run.history()
                trainer.collector.restore_counters(self.history.last)
                self._seconds = 0.0 if resumed.trainer is None else resumed.trainer.numbers["seconds"]
                opening = f"resumes at step {resumed.steps:,}, {trainer.how_restored}\n{opening}"
            short = short_run_note(self.config, trainer.collector.rows, trainer.end - trainer.steps)
            training = Training(
                self,
                trainer,
                callbacks=all_callbacks,
                run=self.run,
                seconds=self._seconds,
                opening=opening,
                notes=[note for note in (self._memory_warning, short) if note],
            )
            self._is_training = True
            try:
                with tracebacks.keeping(None if self.run is None else self.run.path):
                    metrics = training.fit()
            finally:
                self._is_training, self._seconds = False, training.seconds
        if training.reason == "interrupt":
            raise Interrupted(f"stopped at step {training.steps:,} and saved", training.signal)
        return metrics

    def close(self) -> None:
        """Release envs, actors and learners, except an env instance. ``with agent:`` does it at its end."""
        if self._trainer is not None and not self.can_make_env:
            self._trainer.dismiss()
        elif self._trainer is not None:
            trainer, self._trainer = self._trainer, None
            try:
                self._learned = trainer.learned(live=False)
            except LostError:  # a learner process was killed, and the run has ended with that error
                self._learned = Learned(trainer.steps, trainer.learner.updates)
            finally:
                trainer.close()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def evaluate(
        self,
        episodes: int = 100,
        *,
        seed: int = 1_000_003,
        eval_mode: EvalMode | None = None,
        env: EnvSpec | None = None,
        env_kwargs: dict[str, Any] | None = None,
        num_envs: int | None = None,
        cancelled: Callable[[], bool] | None = None,
        deterministic: bool | None = None,
    ) -> Evaluation:
        """Play whole episodes with frozen weights and statistics; the same seed gives the same episodes.

        ``eval_mode``: with greedy actions, sampled ones, or both; None: as the config says. With "both" the
        result is the greedy evaluation, and its ``sampled`` the other one. ``deterministic`` is an error
        that names ``eval_mode``.

        ``env`` or ``env_kwargs`` choose another env than the training's, such as
        ``env_kwargs={"horizon": 200}``. If ``cancelled()`` is true at any step, the evaluation is cancelled.
        """
        _at_least_one("episodes", episodes)
        if deterministic is not None:
            instead = "greedy" if deterministic else "sampled"
            raise ConfigError(f"evaluate: deterministic={deterministic} is called eval_mode={instead!r} here")
        config = self.config if eval_mode is None else replace(self.config, eval_mode=eval_mode)  # validated
        with self.opened(num_envs or min(episodes, 16), env, env_kwargs) as batched:
            play = partial(evaluate, self.network, batched, episodes=episodes, seed=seed, cancelled=cancelled)
            return in_mode(play, config.eval_mode)

    def against(
        self,
        vs: str | Agent | None = None,
        games: int = 200,
        *,
        seed: int = 1_000_003,
        eval_mode: EvalMode | None = None,
        env_kwargs: dict[str, Any] | None = None,
        vs_kwargs: dict[str, Any] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Games:
        """Play whole games against an opponent in a two-sided env, half of them on each side.

        ``vs`` and ``vs_kwargs``: the name and options of a scripted player; None: those of the training. Of
        an agent trained against a league, ``vs`` may also be one of its members, such as "s3". It may be
        another agent, which then acts in the same mode. The others are those of ``evaluate``. Settings are
        those of the last stage of the curriculum, but for options given here.
        """
        _at_least_one("games", games)
        how: dict[str, Any] = {"seed": seed, "eval_mode": eval_mode, "cancelled": cancelled}
        return against(self, vs, games, **how, env_kwargs=env_kwargs, vs_kwargs=vs_kwargs)

    @contextmanager
    def opened(
        self, num_envs: int, env: EnvSpec | None = None, env_kwargs: dict[str, Any] | None = None
    ) -> Iterator[BatchedEnv | Groups]:
        """Open the agent's env (or ``env``) for playing, with the wrappers of the config.

        An env instance keeps its own number of rows; if training uses it, training starts new episodes.
        """
        source = env if env is not None else self._own_env()
        if env_kwargs is None and env is not None and env is not self.env:
            env_kwargs = {}
        if is_made(source):
            if env_kwargs:
                raise ConfigError(f"env_kwargs {sorted(env_kwargs)} cannot be applied to an env instance")
            if source is self.env and self._trainer is not None:
                self._trainer.restart_episodes()
                assert isinstance(self._trainer.collector, InlineCollector)  # no other takes an env object
                (batched,) = self._trainer.collector.envs
            else:
                # A GroupedEnv has its groups, and ``check_spaces`` compares them with those of the network.
                config = replace(self.config, policies="shared") if isinstance(source, GroupedEnv) else None
                batched = open_env(source, config or self.config)
        else:
            batched = open_env(source, self.config, num_envs, env_kwargs)
        try:
            check_spaces(self.network, batched, acts_only=True)
            yield batched
        finally:
            if not is_made(source):
                batched.close()

    def initial_state(self, batch: int) -> State:
        """The core's state at an episode's start, for ``batch`` rows: the state that ``predict`` takes."""
        return self.policy.actor_only().initial_state(batch)

    def predict(
        self,
        obs: Any,
        state: State | None = None,
        episode_start: Any = None,
        *,
        deterministic: bool = True,
    ) -> tuple[Any, State]:
        """Actions for one observation or a batch, and the state for the next call.

        Args:
            obs: one observation of the env, or a batch [B, ...].
            state: the state that the last call returned. A policy with memory needs it, unless
                ``episode_start`` is true for every row.
            episode_start: [B] bool, or one bool: rows at the first step of their episode; None: none.
            deterministic: the mode instead of a sample (drawn from torch's global RNG).
        """
        policy, device = self.policy.actor_only(), self.policy.device
        batch, is_single = numpy_conversion.observations(policy, obs)
        rows = tree.leaves(batch)[0].shape[0]
        starts = False if episode_start is None else episode_start
        first = torch.as_tensor(np.asarray(starts, dtype=bool), device=device)
        first = first.expand(rows) if first.dim() == 0 else first
        if state is None:
            if policy.has_memory and not first.all():
                raise StateError(
                    "predict: this policy has memory, and no state was given. At the start of an episode "
                    "pass episode_start=True (or state=agent.initial_state(n)); later pass the state that "
                    "the last call returned. agent.session() keeps the state for you"
                )
            state = policy.initial_state(rows)
        with row_threads.acting_threads(rows), means():
            acted, state = policy.act(batch, state, first, None, deterministic)
            action = policy.to_env(acted.action)
        return numpy_conversion.actions(policy.action_space, action, is_single), state

    def session(self, num_envs: int = 1, *, deterministic: bool = True, seed: int = 0) -> Session:
        """A session that acts in ``num_envs`` envs and keeps their states."""
        return Session(self.policy, num_envs, deterministic=deterministic, seed=seed)

    def save(self, path: str | Path) -> Path:
        """Save the agent to a folder: weights and optimiser as safetensors, the rest as JSON."""
        return checkpoints.write(Path(path), self.network, self.config, self.env_name, self._so_far())

    def __deepcopy__(self, memo: dict[int, Any]) -> Agent:
        """A copy as ``save`` and ``load`` would make it, without the run folder and an env instance."""
        policy, learned, history = copy.deepcopy((self.network, self._so_far(), self.history), memo)
        env = self.env if self.can_make_env else None
        twin = Agent(policy, replace(self.config, run=None), env, learned=learned, unnamed=self._unnamed)
        twin.history, twin.preset = history, dict(self.preset)
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise PickleError(
            "an Agent cannot be pickled, because loading a pickle executes code: use agent.save(path) and "
            "recollect.load(path). In this process, copy.deepcopy(agent) makes a copy"
        )

    def _so_far(self) -> Learned:
        return self._learned if self._trainer is None else self._trainer.learned(live=False)

    def make_env(self, num_envs: int, env_kwargs: dict[str, Any] | None = None) -> BatchedEnv | GroupedEnv:
        """A new instance of the training env, without ``last_action_reward``."""
        config, found = self.config, resolved(self._own_env())
        kwargs = config.env_kwargs if env_kwargs is None else env_kwargs
        if has_groups(found, config) or self.groups:
            grouped = make_grouped_env(found, num_envs, policies=config.policies, env_kwargs=kwargs)
            return prepared(grouped, config, kwargs)
        made = make_env(
            found,
            num_envs,
            device=torch.device(config.device),
            env_kwargs=kwargs,
            wrap=config.wrap,
            drop_obs=config.drop_obs,
        )
        return prepared(made, config, kwargs)

    def _own_env(self) -> EnvSpec:
        if self.env is None:
            raise ConfigError(self._unnamed.env)
        return self.env

    def need_trainer(self, progress: bool | str = False) -> Trainer:
        """The trainer of this agent, made when it is first needed."""
        if self._trainer is None:
            env = self._own_env()
            self._unnamed.check(self.config)
            rows = rows_of_slots(self.network, self.config.num_envs)
            learners = {name: (policy, rows[name]) for name, policy in by_group(self.network).items()}
            self._memory_warning = check_memory(self.config, learners)
            with showing_notices(progress), env_probe(env, self.config) as probe:
                trainer = Trainer(probe.collector(self.network), self.network, self.config)
                try:
                    trainer.restore(self._learned)
                except BaseException as error:
                    if self.config.runtime != "inline":  # else the probe closes the envs that it has opened
                        trainer.close()
                    if isinstance(error, RecollectError) or not isinstance(error, Exception):
                        raise
                    text = f"the saved state of the training does not fit ({type(error).__name__}: {error})"
                    raise ConfigError(f"{text}: take another checkpoint, or use init_from=...") from error
            self._trainer = trainer
        return self._trainer


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{name} = {value}: it must be at least 1")
    return value
