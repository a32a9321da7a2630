"""The settings of a run, and where each flat name belongs.

Keywords are flat: in ``train(env, steps=300_000, learning_rate=3e-4, core="gru")``, ``learning_rate`` goes to
the algorithm and ``core`` to the policy. Names of other libraries are accepted, with a warning.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from recollect.base import parts
from recollect.config.algo_choice import ALGOS, algo_fields, algo_name, check_has, named_algo
from recollect.config.algo_shared import AlgoConfig
from recollect.config.curriculum import as_stages
from recollect.config.fields import above_zero, at_least, check_fields, field_names
from recollect.config.league import LEAGUE, league_config
from recollect.config.own_code import as_wrap
from recollect.config.policy import PolicyConfig, head_config, named_policy
from recollect.config.ppo import PPOConfig
from recollect.config.replay import ReplayConfig
from recollect.errors import ConfigError, nearest

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
}
"""Names of Stable-Baselines3 and CleanRL, and ours for them."""
EvalMode = Literal["greedy", "sampled", "both"]
"""The values of ``eval_mode``."""
parts.add_built_in(
    "runtime",
    {
        "inline": (None, "recollect.runtimes.inline_collector:InlineCollector"),
        "processes": (None, "recollect.runtimes.env_probe:process_collector"),
        "ray": (None, "recollect.runtimes.env_probe:ray_collector"),
    },
)
RUNTIMES = parts.PARTS["runtime"]
"""The runtimes by name, including those that users register."""
SINKS = ("tensorboard", "wandb")
"""The values of ``sinks``."""


def _as_policies(value: Any) -> Any:
    """``policies`` with a list of agents for each group; a text in braces is JSON, for the command line."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigError(
                f'policies = {value!r} is no JSON ({error}): write --policies \'{{"group": ["agent"]}}\''
            ) from None
    if not isinstance(value, Mapping):
        return value
    return {group: [names] if isinstance(names, str) else list(names) for group, names in value.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """All settings of a run except the env."""

    steps: int = 300_000
    """Env steps to train for, over all rows; only valid ones count."""
    num_envs: int = 16
    """Env slots that are stepped together."""
    actors: int = 1
    """Groups that the env slots are split into, each with its own random streams. The result depends on the
    number of actors, not on the ``runtime``."""
    runtime: str = "inline"
    """Where actors run: in this process ("inline"), in "processes" of their own, or on a Ray cluster ("ray").
    """
    mode: Literal["lockstep", "async"] = "lockstep"
    """Whether actors wait for new weights before every rollout ("lockstep") or run ahead with older ones
    ("async")."""
    max_lag: int | None = None
    """With "async", actors use weights at most this many updates old. None: 1."""
    policies: Any = "shared"
    """Which agents of an env share a policy: "shared" (all), "independent" (none), or a mapping of groups to
    agents, such as {"archers": "archer_*", "knights": ["knight_0", "knight_1"]}."""
    vs: str | None = None
    """In a two-sided env, the player of the side that does not learn: the name of a scripted one, such as
    "bot"; in every second env slot the learner has the other side. "self": both sides learn, with the same
    weights, as with None. "league": earlier snapshots of the agent, and the scripted players."""
    vs_kwargs: dict[str, Any] = field(default_factory=dict)
    """Options of that player; those of "league": ``recollect train --help league``."""
    curriculum: Any = field(default_factory=dict)
    """Settings of the env or the player of ``vs`` that change, by the env steps from which on they hold, such
    as {0: {"team": 1}, 500_000: {"team": 3}}. Each slot changes at its next reset. Evaluations have those of
    the last stage."""
    env_workers: int = 0
    """Processes per actor that step its env slots, for slow envs; 0: the actor steps them itself."""
    env_timeout: float | None = 60.0
    """Seconds without an answer after which an env in another process counts as lost and its actor is
    restarted; None: never, once the actor has started. A learner process has 15 seconds more."""
    learners: int = 1
    """Data-parallel learners: each holds a share of the rows, and all make the same optimiser step."""
    learner_processes: bool = False
    """Whether the learner of each group of agents has a process of its own on this machine, so that groups
    learn in parallel. In lockstep the weights are the same bit for bit."""
    ray_address: str | None = None
    """Address of the Ray cluster: "auto", or host:port. None: a new one on this machine, for this run."""
    seed: int = 0
    """Random seed of the weights, the envs and the sampling."""
    device: str = "cpu"
    """Device of the policy: "cpu" or "cuda"."""
    target_return: float | None = None
    """Stop once the mean return of the last ``target_episodes`` episodes reaches this."""
    target_episodes: int = 100
    """Number of episodes that ``target_return`` averages over; no stop before that many."""
    last_action_reward: bool = False
    """Add the last action and reward to the observation."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Options of the env or task, such as ``horizon``."""
    wrap: tuple[Any, ...] = ()
    """Wrappers of every env, the innermost first: "module:Wrapper", or with options a mapping such as
    {name: gymnasium.wrappers:TimeLimit, max_episode_steps: 100}. Python also takes classes and functions."""
    imports: tuple[str, ...] = ()
    """Modules or files that register parts of your own (``recollect.register``). In Python an ordinary import
    does the same."""
    drop_obs: tuple[str, ...] = ()
    """Parts of a Dict or Tuple observation to leave out, such as "mission"; of nested ones "outer.inner"."""
    run: str | None = None
    """Folder of the run: config, metrics, checkpoints. None: nothing is written."""
    init_from: str | None = None
    """Start from the weights and statistics of this run or saved agent, with a new optimiser."""
    eval_every: int = 0
    """Env steps between two evaluations; 0: none while training."""
    eval_episodes: int = 100
    """Episodes of each evaluation."""
    eval_mode: EvalMode = "both"
    """Actions in evaluations: the most likely ones ("greedy"), drawn as in training ("sampled"), or first
    one and then the other ("both"), each for ``eval_episodes``. The best checkpoint, learning curves and
    comparisons use the named one; with "both" the greedy one."""
    checkpoint_every: int | None = None
    """Env steps between two checkpoints; None: the first after 10 seconds, then about one a minute. One at
    the end is always written."""
    keep_checkpoints: int = 3
    """Number of latest checkpoints to keep. The best by evaluation is kept besides."""
    max_seconds: float | None = None
    """Stop after this many seconds of training. A resumed run uses up the rest of its limit; a limit given
    with the resume counts from there."""
    sinks: tuple[str, ...] = ()
    """Where else metrics are logged: "tensorboard", "wandb"."""
    threads: int | None = None
    """CPU threads for learning (acting uses one); None: all cores available to this process."""
    parallel: Literal["rows", "operations"] = "rows"
    """How those threads divide the work: by groups of rows (as many as pay: docs/tuning.md), or within every
    single operation, which can be faster on free cores, and is very slow as soon as another program uses
    one."""
    memory_limit: float | None = None
    """Memory in GB that the run may take, by an estimate before it starts; None: as much as is free on this
    machine, or on the GPU. A larger number lets a run start that the estimate refuses."""
    compile: bool = False
    """Compile encoder, acting step and critic with torch.compile, which takes a minute or two at the start
    and a C++ compiler. docs/tuning.md has measurements."""
    graphs: bool = True
    """On a GPU, launch acting and every optimiser step as one CUDA graph, captured at the start. A step that
    cannot be captured is reported and runs without one."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """The network: a config, or the name of one for token sets, such as "fast"."""
    algo: AlgoConfig = field(default_factory=PPOConfig)
    """The algorithm: "ppo", "impala", "r2d2" or "iqn", the config of one, or the name of your own
    (``register``)."""

    def __post_init__(self) -> None:
        """Validate."""
        for name in ("run", "init_from"):
            path = getattr(self, name)
            if isinstance(path, str | os.PathLike):
                object.__setattr__(self, name, os.path.expanduser(os.fspath(path)))
        object.__setattr__(self, "policy", named_policy(self.policy))
        object.__setattr__(self, "wrap", as_wrap(self.wrap))
        object.__setattr__(self, "policies", _as_policies(self.policies))
        object.__setattr__(self, "curriculum", as_stages(self.curriculum))
        if isinstance(self.imports, str):
            object.__setattr__(self, "imports", (self.imports,))
        object.__setattr__(self, "algo", named_algo(self.algo))
        _check_algo(self)
        head = head_config(self.policy.head, self.algo.default_head)
        object.__setattr__(self, "policy", replace(self.policy, head=head))
        check_fields(self)
        at_least(self, 1, "steps", "num_envs", "actors", "target_episodes", "threads", "eval_episodes")
        at_least(self, 1, "learners", "checkpoint_every", "keep_checkpoints")
        at_least(self, 0, "seed", "eval_every", "env_workers", "max_lag")
        above_zero(self, "max_seconds", "memory_limit")
        if self.seed >= 2**63:
            raise ConfigError(f"seed = {self.seed}: it must be below 2^63")
        if self.num_envs % self.actors:
            raise ConfigError(
                f"num_envs = {self.num_envs} cannot be split evenly over actors = {self.actors}: "
                "choose a multiple"
            )
        _check_runtime(self)
        _check_vs(self)
        _check_league(self)
        for name in ("imports", "drop_obs"):
            if not all(isinstance(each, str) for each in getattr(self, name)):
                raise ConfigError(f"{name} = {getattr(self, name)!r}: it is a list of names")
        for sink in self.sinks:
            if sink not in SINKS:
                raise ConfigError(
                    f"sinks has {sink!r}{nearest(str(sink), SINKS)}: choose {' or '.join(SINKS)}"
                )
        if not re.fullmatch(r"(cpu|cuda|mps|xpu|meta)(:\d+)?", self.device):
            raise ConfigError(f"device = {self.device!r}: choose cpu or cuda")

    @property
    def lag_limit(self) -> int:
        """Maximum age of the actors' weights, in updates."""
        return 0 if self.mode == "lockstep" else 1 if self.max_lag is None else self.max_lag

    @property
    def learns_at_once(self) -> bool:
        """Whether the updates of several groups of agents may run at the same time."""
        if self.learner_processes:
            return True
        # In threads, the many small operations of a replay learner would wait for the interpreter lock.
        return self.device == "cpu" and not self.compile and not isinstance(self.algo, ReplayConfig)

    @property
    def primary_mode(self) -> Literal["greedy", "sampled"]:
        """The evaluations that choose the best checkpoint and are compared."""
        return "sampled" if self.eval_mode == "sampled" else "greedy"

    @property
    def chosen_policy(self) -> PolicyConfig:
        """``policy``, with None as its head if that is the default, which another algorithm may not have."""
        is_default = self.policy.head == head_config(None, self.algo.default_head)
        return replace(self.policy, head=None) if is_default else self.policy

    def override(self, **values: Any) -> TrainConfig:
        """A copy with these settings, each under its flat name."""
        parts: dict[str, dict[str, Any]] = {"": {}, "policy": {}, "algo": {}}
        for given, value in values.items():
            name = our_name(given)
            home = homes().get(name)
            if home is None:
                near = nearest(given, [*homes(), *ALIASES])
                raise ConfigError(
                    f"there is no setting {given!r}{near}; options of the env go into env_kwargs={{...}}, "
                    "those of a part into its config, such as core=LSTMConfig(hidden=256)"
                )
            if name != given:
                text = f"{given} is called {name} in Recollect"
                warnings.warn(text, UserWarning, stacklevel=_levels_to_the_user())
            if name in parts[home]:
                raise ConfigError(f"{name} is given twice, once as {given!r}")
            parts[home][name] = value
        own = parts[""]
        base_policy, base_algo = own.pop("policy", self.chosen_policy), own.pop("algo", self.algo)
        # The name of the present algorithm keeps its settings; another one starts with its defaults.
        base_algo = self.algo if base_algo == algo_name(self.algo) else named_algo(base_algo)
        for name in parts["algo"]:
            check_has(algo_name(base_algo), name, name, "algo={!r}")
        base_policy = named_policy(base_policy, parts["policy"].get("encoder"))
        return replace(
            self,
            **own,
            policy=replace(base_policy, **parts["policy"]) if parts["policy"] else base_policy,
            algo=replace(base_algo, **parts["algo"]) if parts["algo"] else base_algo,
        )


def homes() -> dict[str, str]:
    """The part that each flat name belongs to: "" (the run itself), "policy" or "algo"."""
    return _homes(tuple(ALGOS.values()))


@functools.cache
def _homes(algos: tuple[type, ...]) -> dict[str, str]:
    own = dict.fromkeys(field_names(TrainConfig), "")
    return own | dict.fromkeys(field_names(PolicyConfig), "policy") | dict.fromkeys(algo_fields(), "algo")


def our_name(name: str) -> str:
    """Our name for a setting, which may have the name of another library."""
    if name == "batch_size":
        raise ConfigError(
            "batch_size is counted in other units here: use `minibatches`, the number of optimiser steps per "
            "pass; minibatches = num_envs * rollout / batch_size"
        )
    british = name.replace("normalize", "normalise")
    return ALIASES.get(name, british if british in homes() else name)


def _check_algo(config: TrainConfig) -> None:
    """Raise for settings of the run that its algorithm cannot have. Its evaluations may be greedy only."""
    algo, name = config.algo, algo_name(config.algo)
    if algo.is_greedy and config.eval_mode == "sampled":
        raise ConfigError(
            f"eval_mode = 'sampled' with algo = {name!r}: its random actions are exploration only; use "
            "eval_mode='greedy'"
        )
    if algo.is_greedy:
        object.__setattr__(config, "eval_mode", "greedy")
    if isinstance(algo, ReplayConfig) and config.learners > 1:
        raise ConfigError(
            f"learners = {config.learners} with algo = {name!r}: a replay has one learner; leave learners 1"
        )


def _check_vs(config: TrainConfig) -> None:
    """Raise for settings that a run without an opponent, or with several policies, cannot have."""
    if config.vs is not None and config.policies != "shared":
        raise ConfigError(
            f"vs = {config.vs!r} with policies = {config.policies!r}: an opponent is for one policy; leave "
            "vs out, or policies 'shared'"
        )
    if config.vs_kwargs and config.vs in (None, "self"):
        raise ConfigError(
            f"vs_kwargs = {config.vs_kwargs} does nothing with vs = {config.vs!r}: name a scripted player, "
            "such as vs='bot' (--vs bot)"
        )


def _check_league(config: TrainConfig) -> None:
    """Raise for settings of a league, or of a run, that do not go together."""
    if config.vs != LEAGUE:
        return
    league = league_config(config.vs_kwargs)
    object.__setattr__(config, "vs_kwargs", {k: getattr(league, k) for k in config.vs_kwargs})
    for name, needed, why in (
        ("env_workers", 0, "opponents act in the process of an actor: use actors"),
        ("last_action_reward", False, "opponents are not given rewards"),
    ):
        if getattr(config, name) != needed:
            raise ConfigError(
                f"{name} = {getattr(config, name)!r} with vs = 'league': {why}; leave it {needed}"
            )


def _check_runtime(config: TrainConfig) -> None:
    """Raise for settings of runtimes that contradict each other, or have no effect."""
    if config.runtime not in RUNTIMES:
        raise ConfigError(
            f"runtime = {config.runtime!r}{nearest(config.runtime, RUNTIMES)}: choose "
            f"{', '.join(RUNTIMES)}; {parts.IF_OWN}"
        )
    if config.mode == "async" and config.runtime == "inline":
        raise ConfigError(
            "mode = 'async' with runtime = 'inline': actors cannot run ahead in one process; use "
            "runtime='processes' or 'ray'"
        )
    if config.max_lag is not None and config.mode == "lockstep":
        raise ConfigError(f"max_lag = {config.max_lag} does nothing in lockstep: use mode='async'")
    if config.learner_processes and config.learners > 1:
        raise ConfigError(
            f"learner_processes = True with learners = {config.learners}: data-parallel learners have "
            "processes already; leave learner_processes False, or learners 1"
        )
    if config.env_timeout is not None and not config.env_timeout > 0:
        raise ConfigError(f"env_timeout = {config.env_timeout}: it must be above 0, or None for no limit")
    if config.ray_address is not None and config.runtime != "ray":
        raise ConfigError(f"ray_address does nothing with runtime = {config.runtime!r}: use runtime='ray'")
    own = config.num_envs // config.actors
    if config.env_workers > own:
        raise ConfigError(
            f"env_workers = {config.env_workers}, but an actor has only {own} env slots: choose at most that"
        )


def _levels_to_the_user() -> int:
    """Stack level of the first caller outside of Recollect, for warnings."""
    frame, level = sys._getframe(1), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("recollect."):
        frame, level = frame.f_back, level + 1
    return level
