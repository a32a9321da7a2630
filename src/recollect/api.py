"""The entry points: train an agent, load one, resume a run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch

from recollect.agent import Agent, Callbacks
from recollect.base.parts import import_parts
from recollect.base.run_files import CHECKPOINTS
from recollect.base.warnings_once import once
from recollect.config.keywords import ChangeableSettings, TrainSettings
from recollect.config.league import LEAGUE
from recollect.config.own_code import as_own_code
from recollect.config.policy import PolicyConfig
from recollect.config.serialise import CUSTOM, config_to_json
from recollect.config.train import ALIASES, TrainConfig
from recollect.display import showing_notices
from recollect.envs.factory import EnvSpec, is_made, slots
from recollect.errors import ConfigError, RecollectError
from recollect.training import checkpoints, trusted_runs, trusted_settings
from recollect.training.new_network import PolicyFactory, check_device, made_policy
from recollect.training.presets import preset as preset_of
from recollect.training.run_folder import Run

CHANGEABLE = frozenset(
    {
        *("checkpoint_every", "eval_episodes", "eval_every", "eval_mode", "keep_checkpoints"),
        *("max_seconds", "sinks", "env_timeout", "env_workers", "memory_limit", "ray_address"),
        "learner_processes",
        *("runtime", "threads"),
    }
)
"""Settings that ``resume`` may change: they do not affect what is learned."""


def train(
    env: EnvSpec,
    *,
    policy: PolicyFactory | PolicyConfig | str | None = None,
    progress: bool | str = True,
    callbacks: Callbacks = (),
    config: TrainConfig | None = None,
    preset: bool = True,
    **settings: Unpack[TrainSettings],
) -> Agent:
    """Train an agent with memory, by recurrent PPO or IMPALA (``algo``).

    Args:
        env: a Gymnasium id, a built-in task's name, ``module:attribute``, a callable that makes an env
            (or, given ``num_envs``, a batch of them: ``recollect.envs.make_env``), a Gymnasium VectorEnv, a
            BatchedEnv, or a PettingZoo env (``policies`` chooses which agents share a policy).
        policy: a factory ``(observation_space, action_space) -> Policy`` in place of the settings
            ``encoder``, ``core`` and ``head``, also by its name ``module:factory``; or a config, or a name in
            ``config.policy.POLICIES``.
        progress: show progress: True, False, or "live", "plain", "json", "notebook".
        callbacks: see ``recollect.Callback``.
        config: settings to start from; ``settings`` override it.
        preset: for a built-in task and without ``config``, start from the task's preset
            (``recollect.training.presets``).
        **settings: any field of ``TrainConfig``, ``PolicyConfig`` or the algorithm by its name. With
            ``run="runs/first"`` the run is stored in that folder and can be resumed.

    Example:
        >>> agent = train("recollect/TMaze-v0", core="lstm", steps=300_000)  # doctest: +SKIP
    """
    given: dict[str, Any] = {**settings}
    own, factory, chosen = resolve(env, given, config=config, policy=policy, preset=preset)
    given |= {} if policy is None else {"policy": policy}
    with once():
        with showing_notices(progress):
            agent = new_agent(env, own, factory, given=given, preset=chosen)
        with _closed_if_it_fails(agent):
            agent.train(progress=progress, callbacks=callbacks)
    return agent


def resolve(
    env: EnvSpec,
    settings: dict[str, Any],
    *,
    config: TrainConfig | None = None,
    policy: PolicyFactory | PolicyConfig | str | None = None,
    preset: bool = True,
) -> tuple[TrainConfig, PolicyFactory | None, dict[str, Any]]:
    """Resolve the arguments of ``train`` into config, policy factory, and the preset's choices."""
    if not isinstance(config, TrainConfig | None):
        raise ConfigError(f"config is a {type(config).__name__}: give a TrainConfig, or settings by name")
    settings, policy = dict(settings), as_own_code("policy", policy)
    named = settings.get("imports", ())
    import_parts([named] if isinstance(named, str) else named)  # they register what other settings name
    if isinstance(policy, PolicyConfig | str):
        settings["policy"] = policy
        policy = None
    if is_made(env) and not {"num_envs", "n_envs"} & settings.keys():
        settings["num_envs"] = slots(env)
    chosen: dict[str, Any] = {}
    if config is None and preset and isinstance(env, str):
        network = {} if policy is None else {"policy": policy}
        known = {ALIASES.get(name, name): value for name, value in settings.items()} | network
        if isinstance(known.get("policy"), str):
            del known["policy"]  # a name leaves the core open
        chosen = preset_of(env, known)
    return (config or TrainConfig()).override(**settings | chosen), policy, chosen


def new_agent(
    env: EnvSpec,
    config: TrainConfig,
    policy: PolicyFactory | None = None,
    *,
    given: dict[str, Any],
    preset: dict[str, Any],
) -> Agent:
    """An untrained agent, or with ``config.init_from`` one with the weights of that run or saved agent.

    ``given`` and ``preset``: the settings of ``config`` that the user gave and that the preset chose.
    """
    if config.init_from is None:
        return Agent.create(env, config, policy, preset=preset)
    saved = checkpoints.read(_agent_folder(Path(config.init_from), None))
    network = {f.name for f in fields(PolicyConfig)} | {"policy"}
    if policy is None and not network & given.keys():  # then build the saved network
        named = _trusting(saved, trusted_settings.Named())
        if named.policy is None:
            config = replace(config, policy=saved.build(named.network, config.init_from).config)
        policy = as_own_code("policy", named.policy)
        preset = {name: value for name, value in preset.items() if name not in network}
    agent = Agent.create(env, config, policy, preset=preset)
    with _closed_if_it_fails(agent):
        for name in () if agent.groups else ("observation_space", "action_space"):
            ours, theirs = getattr(agent.policy, name), getattr(saved, name)
            if ours != theirs:
                raise ConfigError(
                    f"init_from: {config.init_from} was trained with {name} {theirs}, this env has {ours}: "
                    "fine-tuning needs the same spaces"
                )
        checkpoints.load_weights(agent.network, saved)
    return agent


def load(
    path: str | Path,
    *,
    env: EnvSpec | None = None,
    env_kwargs: dict[str, Any] | None = None,
    wrap: Any = None,
    policy: PolicyFactory | str | None = None,
    core: Any = None,
    encoder: Any = None,
    head: Any = None,
    imports: Sequence[str] | None = None,
    trust: bool = False,
    device: str | None = None,
    checkpoint: str | int | None = None,
    **settings: Unpack[ChangeableSettings],
) -> Agent:
    """Load an agent from a run, or from a folder that ``Agent.save`` wrote. Executes no code from it.

    Code that the folder names is imported only if it is named again here, or with ``trust``.

    Args:
        path: the folder.
        env: the env, if it has no saved name or if its name is ``module:Env``, which imports code.
        env_kwargs: options of the env, added to the saved ones. The saved options of an env that is not
            built in must be repeated here, otherwise the agent has no env.
        wrap: the wrappers of the env again, if it has any; [] for an env without them.
        policy: the factory or its name, if the agent was made with one.
        core: the core again, if it was not a built-in one: a factory, or ``module:Class``, with its options
            as a mapping {"name": "module:Class", "hidden": 64}.
        encoder: the encoder again, likewise.
        head: the head again, likewise.
        imports: the modules again that register parts of the run (``recollect.register``), unless they are
            imported already.
        trust: import the code that the folder names, as if all of it were named here, and remember that for
            this folder on this machine (``recollect.training.trusted_runs``).
        device: the device; None: the training's, or the CPU if there is no GPU.
        checkpoint: of a run: "best" by evaluation (the last if none was evaluated), "last", or its env steps.
            None: "best". A saved agent has no checkpoints.
        **settings: as in ``resume``, for a later ``Agent.train``; a saved ``ray_address``, and ``sinks`` with
            "wandb", must be repeated for it.
    """
    path = Path(path).expanduser()
    _check_changeable("load", path, settings.keys())
    saved = checkpoints.read(_agent_folder(path, checkpoint))
    named = trusted_settings.Named(env, env_kwargs, policy, core, encoder, head, wrap, imports)
    agent = _restored(saved, named, trust, device, {**settings})
    if Run.is_run(path):
        agent.history = Run(path).history()
    return agent


def resume(
    path: str | Path,
    *,
    steps: int | None = None,
    checkpoint: str | int = "last",
    env: EnvSpec | None = None,
    env_kwargs: dict[str, Any] | None = None,
    wrap: Any = None,
    policy: PolicyFactory | str | None = None,
    core: Any = None,
    encoder: Any = None,
    head: Any = None,
    imports: Sequence[str] | None = None,
    trust: bool = False,
    device: str | None = None,
    progress: bool | str = True,
    callbacks: Callbacks = (),
    **settings: Unpack[ChangeableSettings],
) -> Agent:
    """Resume a run that was stopped or killed, or train a finished one for longer.

    On built-in tasks a run continues bit for bit; other envs start new episodes.

    Args:
        path: the run's folder.
        steps: train for this many more env steps, with schedules restarted; None: to the planned end.
        checkpoint: the checkpoint to resume from; later metrics and checkpoints are deleted.
        env: as in ``load``.
        env_kwargs: the run's env options, which must be repeated if its env is not built in.
        wrap: as in ``load``.
        policy: as in ``load``.
        core: as in ``load``.
        encoder: as in ``load``.
        head: as in ``load``.
        imports: as in ``load``.
        trust: as in ``load``.
        device: as in ``load``.
        progress: as in ``train``.
        callbacks: as in ``train``.
        **settings: eval_every, checkpoint_every, max_seconds (which counts from here), threads and the like.
            A saved ``ray_address``, and ``sinks`` with "wandb", must be repeated.
    """
    run = Run(Path(path).expanduser())
    path = run.path
    changes: dict[str, Any] = {**settings}
    _check_changeable("resume", path, changes.keys())
    with run.writing(), once():
        saved, status = checkpoints.read(run.checkpoint(checkpoint)), run.status
        is_finished = status["state"] == "finished" and checkpoint == "last"
        if is_finished and steps is None:
            raise RecollectError(
                f"{path} has finished ({status['reason']}): give steps=N (--steps N) to train it for longer"
            )
        if steps is not None and status["reason"] == "target":
            changes["target_return"] = None  # already reached: train past it
        if steps is None and status.get("start") == saved.learned.steps:
            steps = status["end"] - status["start"]  # a leg that started here and has no checkpoint yet
        used = 0.0 if saved.learned.trainer is None else saved.learned.trainer.numbers["seconds"]
        limit = changes.get("max_seconds")
        if isinstance(limit, int | float) and limit > 0:
            changes["max_seconds"] = round(used + limit, 3)  # it counts from here
        named = trusted_settings.Named(env, env_kwargs, policy, core, encoder, head, wrap, imports)
        agent = _restored(saved, named, trust, device, changes)
        options = saved.config(agent.network).env_kwargs
        if any(name not in options or options[name] != value for name, value in (env_kwargs or {}).items()):
            _check_changeable("resume", path, {"env_kwargs"})
        _check_same_wrap(path, saved, agent.config)
        agent.config = replace(agent.config, run=str(path))
        if (limit := agent.config.max_seconds) is not None and used >= limit:
            raise RecollectError(
                f"{path} has used its {limit:g} seconds: give max_seconds=N (--max-seconds N) for N more, or "
                "None (none) for no limit"
            )
        with _closed_if_it_fails(agent):
            agent.resume(run, steps=steps, progress=progress, callbacks=callbacks)
    return agent


def _check_changeable(call: str, path: Path, settings: Set[str]) -> None:
    if fixed := sorted(settings - CHANGEABLE):
        raise ConfigError(
            f"{call} cannot change {', '.join(fixed)}: it would no longer be the same run. It takes "
            f"{', '.join(sorted(CHANGEABLE))}; for anything else start a new run with init_from={str(path)!r}"
        )


@contextmanager
def _closed_if_it_fails(agent: Agent) -> Iterator[None]:
    """Close the agent on an error, since the caller never gets it."""
    try:
        yield
    except BaseException:
        agent.close()
        raise


def _check_same_wrap(path: Path, saved: checkpoints.Saved, config: TrainConfig) -> None:
    """Raise ConfigError for other wrappers than the run's, as far as both have names."""
    before = saved.description["config"].get("wrap") or []
    before = before if isinstance(before, list) else [CUSTOM]  # damaged
    now = config_to_json(config, config.policy)["wrap"]
    if CUSTOM not in (*before, *now) and before != now:
        _check_changeable("resume", path, {"wrap"})


def _trusting(
    saved: checkpoints.Saved, named: trusted_settings.Named, trust: bool = False
) -> trusted_settings.Named:
    """With all code of the folder named, if the user trusts it now or before. Imports what is named."""
    if trust or trusted_runs.is_trusted(saved.path, saved.description):
        named = named.trusting(trusted_runs.required(saved.description))
    import_parts(named.imports or ())
    hint = trusted_runs.hint(saved.description)
    trusted_settings.check_registered(saved.path, saved.description["config"], trust=hint)
    return named


def _restored(
    saved: checkpoints.Saved,
    named: trusted_settings.Named,
    trust: bool,
    device: str | None,
    settings: dict[str, Any],
) -> Agent:
    if trust and not trusted_runs.remember(saved.path, saved.description):
        text = "its code is trusted this time only: the state folder (XDG_STATE_HOME) cannot be written"
        warnings.warn(f"{saved.path}: {text}", UserWarning, stacklevel=3)
    named = _trusting(saved, named, trust)
    if named.policy is None:
        network = saved.build(named.network)
    else:
        factory = as_own_code("policy", named.policy)
        network = saved.network(partial(made_policy, factory))
    checkpoints.load_weights(network, saved)
    config = saved.config(network)
    if device is None and not torch.cuda.is_available():
        device = "cpu"
    if settings.get("runtime", config.runtime) != "ray":
        settings = {"ray_address": None} | settings  # the saved address belongs to the ray runtime
    # The saved run folder belongs to the saved run.
    config = replace(config, device=device or config.device, run=None, **settings)
    check_device(config.device)
    hint = trusted_runs.hint(saved.description)
    env, options, why_no_env = trusted_settings.named_env(
        saved.path, saved.env, config.env_kwargs, named.env, named.env_kwargs, trust=hint
    )
    saved_wrap = saved.description["config"].get("wrap")
    wrap, why_no_wrap = trusted_settings.named_wrap(saved.path, saved_wrap, named.wrap, trust=hint)
    if why_no_wrap:
        env, why_no_env = None, why_no_env or why_no_wrap
    unnamed = trusted_settings.Unnamed(why_no_env, trusted_settings.outward(config, settings), saved.path)
    if config.vs == LEAGUE and saved.path.parent.name == CHECKPOINTS:
        league = {"folder": str(saved.path.parent.parent / LEAGUE)}
        config = replace(config, vs_kwargs=config.vs_kwargs | league)
    imports = config.imports if named.imports is None else tuple(named.imports)
    config = replace(config, env_kwargs=options, wrap=wrap, imports=imports)
    return Agent(network.to(config.device), config, env, learned=saved.learned, unnamed=unnamed)


def _agent_folder(path: Path, checkpoint: str | int | None) -> Path:
    if Run.is_run(path):
        return Run(path).checkpoint("best" if checkpoint is None else checkpoint)
    if checkpoint is not None and path.exists():
        raise ConfigError(
            f"checkpoint = {checkpoint!r}, but {path} is not a run, so it has no checkpoints to choose from. "
            "Leave checkpoint (--checkpoint) out"
        )
    return path
