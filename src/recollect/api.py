"""The calls that users begin with: train an agent, load one, go on with a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from recollect.agent import Agent, Callbacks, PolicyFactory, check_device, made_policy
from recollect.config.policy import PolicyConfig
from recollect.config.train import ALIASES, TrainConfig
from recollect.envs.factory import EnvSpec, is_made, slots
from recollect.errors import ConfigError, RecollectError
from recollect.training import checkpoints, trust
from recollect.training.presets import preset as preset_of
from recollect.training.run_folder import Run

CHANGEABLE = frozenset(
    {
        "checkpoint_every",
        "env_timeout",
        "env_workers",
        "eval_episodes",
        "eval_every",
        "keep_checkpoints",
        "max_seconds",
        "ray_address",
        "runtime",
        "sinks",
        "threads",
    }
)
"""What ``resume`` may change: none of it changes what is learned."""


def train(
    env: EnvSpec,
    *,
    policy: PolicyFactory | PolicyConfig | str | None = None,
    progress: bool | str = True,
    callbacks: Callbacks = (),
    config: TrainConfig | None = None,
    preset: bool = True,
    **settings: Any,
) -> Agent:
    """Train an agent with memory, by recurrent PPO or IMPALA (``algo``).

    Args:
        env: a Gymnasium id, a built-in task's name, ``module:attribute``, a callable that makes an env
            (or, given ``num_envs``, a batch of them: ``recollect.envs.make_env``), a Gymnasium VectorEnv, or
            a BatchedEnv.
        policy: a factory ``(observation_space, action_space) -> Policy`` in place of the settings
            ``encoder``, ``core`` and ``head``; or a config, or a name in ``config.policy.POLICIES``.
        progress: show progress: True, False, or "live", "plain", "json", "notebook".
        callbacks: told what happens; see ``recollect.Callback``.
        config: settings to start from; ``settings`` go on top.
        preset: for a built-in task and without ``config``, start from the settings that suit it
            (``recollect.training.presets``).
        **settings: any field of ``TrainConfig``, ``PolicyConfig`` or the algorithm by its name. With
            ``run="runs/first"`` the run is kept in that folder and can be resumed.

    Example:
        >>> agent = train("recollect/TMaze-v0", core="lstm", steps=300_000)  # doctest: +SKIP
    """
    given = settings if policy is None else settings | {"policy": policy}
    own, factory, chosen = resolve(env, settings, config=config, policy=policy, preset=preset)
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
    """What the arguments of ``train`` amount to: config, policy factory, and what the preset chose."""
    if not isinstance(config, TrainConfig | None):
        raise ConfigError(f"config is a {type(config).__name__}: give a TrainConfig, or settings by name")
    settings = dict(settings)
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

    ``given`` and ``preset``: which settings of ``config`` the user asked for, and which the preset chose.
    """
    if config.init_from is None:
        return Agent.create(env, config, policy, preset=preset)
    saved = checkpoints.read(_agent_folder(Path(config.init_from), None))
    network = {f.name for f in fields(PolicyConfig)} | {"policy"}
    if policy is None and not network & given.keys():  # then it is the one that the weights are of
        config = replace(config, policy=saved.build().config)
        preset = {name: value for name, value in preset.items() if name not in network}
    agent = Agent.create(env, config, policy, preset=preset)
    with _closed_if_it_fails(agent):
        for name in ("observation_space", "action_space"):
            ours, theirs = getattr(agent.policy, name), getattr(saved, name)
            if ours != theirs:
                raise ConfigError(
                    f"init_from: {config.init_from} was trained with {name} {theirs}, this env has {ours}: "
                    "fine-tuning needs the same spaces"
                )
        checkpoints.load_weights(agent.policy, saved)
    return agent


def load(
    path: str | Path,
    *,
    env: EnvSpec | None = None,
    env_kwargs: dict[str, Any] | None = None,
    policy: PolicyFactory | None = None,
    device: str | None = None,
    checkpoint: str | int | None = None,
    **settings: Any,
) -> Agent:
    """An agent from a run, or from the folder that ``Agent.save`` wrote. Executes nothing from there.

    Args:
        path: the folder.
        env: the env, if the agent was not trained on a named one, or if its name is that of a module,
            which would have to be imported.
        env_kwargs: options of the env, on top of those that the folder has. Those of an env that is not
            Recollect's own have to be named again here, or the agent does not know its env.
        policy: the factory, if the agent was made with one, or with an encoder or core factory.
        device: where it shall live; None: where it was trained, or the CPU if there is no GPU here.
        checkpoint: of a run: "best" by evaluation (the last if there was none), "last", or its env steps.
            None: "best"; a saved agent has no others.
        **settings: as in ``resume``, for a later ``Agent.train``; ``ray_address`` and ``sinks`` of a folder
            that reach out of this machine have to be named again for it.
    """
    path = Path(path).expanduser()
    _check_changeable("load", path, settings)
    saved = checkpoints.read(_agent_folder(path, checkpoint))
    agent = _restored(saved, env, env_kwargs, policy, device, settings)
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
    policy: PolicyFactory | None = None,
    device: str | None = None,
    progress: bool | str = True,
    callbacks: Callbacks = (),
    **settings: Any,
) -> Agent:
    """Go on with a run that was stopped, killed, or is to train for longer.

    On built-in tasks it continues bit for bit, as if nothing had happened; other envs begin new
    episodes.

    Args:
        path: the run's folder.
        steps: train for so many more env steps, schedules anew; None: to the end that was planned.
        checkpoint: from which; metrics and checkpoints after it are dropped.
        env: as in ``load``.
        env_kwargs: those of the run once more, where its env is not Recollect's own.
        policy: as in ``load``.
        device: as in ``load``.
        progress: as in ``train``.
        callbacks: as in ``train``.
        **settings: of the run itself: eval_every, checkpoint_every, max_seconds, threads and the like. A
            ``ray_address``, and ``sinks`` with "wandb", that only the folder names have to be named again.
    """
    run = Run(Path(path).expanduser())
    path = run.path
    _check_changeable("resume", path, settings)
    with run.writing():
        saved, status = checkpoints.read(run.checkpoint(checkpoint)), run.status
        is_finished = status["state"] == "finished" and checkpoint == "last"
        if is_finished and steps is None:
            raise RecollectError(
                f"{path} has finished ({status['reason']}): give steps=N (--steps N) to train it for longer"
            )
        if steps is not None and status["reason"] == "target":
            settings["target_return"] = None  # which it has reached: "longer" means past it
        if steps is None and status.get("start") == saved.learned.steps:
            steps = status["end"] - status["start"]  # a leg that began here, and is in no checkpoint yet
        agent = _restored(saved, env, env_kwargs, policy, device, settings)
        options = saved.config(agent.policy).env_kwargs
        if any(name not in options or options[name] != value for name, value in (env_kwargs or {}).items()):
            raise ConfigError(_fixed("resume", path, ["env_kwargs"]))
        agent.config = replace(agent.config, run=str(path))
        _check_time_left(agent.config, saved.learned)
        with _closed_if_it_fails(agent):
            agent.resume(run, steps=steps, progress=progress, callbacks=callbacks)
    return agent


def _check_changeable(call: str, path: Path, settings: dict[str, Any]) -> None:
    fixed = sorted(settings.keys() - CHANGEABLE)
    if fixed:
        raise ConfigError(_fixed(call, path, fixed))


def _fixed(call: str, path: Path, names: list[str]) -> str:
    return (
        f"{call} cannot change {', '.join(names)}: it would no longer be the same run. It takes "
        f"{', '.join(sorted(CHANGEABLE))}; for anything else start a new run with init_from={str(path)!r}"
    )


def _check_time_left(config: TrainConfig, learned: checkpoints.Learned) -> None:
    used = 0.0 if learned.trainer is None else learned.trainer.numbers["seconds"]
    if config.max_seconds is not None and used >= config.max_seconds:
        raise RecollectError(
            f"{config.run} has used its {config.max_seconds:g} seconds: give more with max_seconds=... "
            "(--max-seconds, none for no limit)"
        )


@contextmanager
def _closed_if_it_fails(agent: Agent) -> Iterator[None]:
    """Nobody else could close its envs: the caller never gets the agent."""
    try:
        yield
    except BaseException:
        agent.close()
        raise


def _restored(
    saved: checkpoints.Saved,
    env: EnvSpec | None,
    env_kwargs: dict[str, Any] | None,
    policy: PolicyFactory | None,
    device: str | None,
    settings: dict[str, Any],
) -> Agent:
    if policy is None:
        network = saved.build()
    else:
        network = made_policy(policy, saved.observation_space, saved.action_space)
    checkpoints.load_weights(network, saved)
    config = saved.config(network)
    if device is None and not torch.cuda.is_available():
        device = "cpu"
    if settings.get("runtime", config.runtime) != "ray":
        settings = {"ray_address": None} | settings  # of the runtime that it had
    config = replace(
        config, device=device or config.device, run=None, **settings
    )  # the folder is the run's own
    check_device(config.device)
    env, options, why_no_env = trust.named_env(saved.path, saved.env, config.env_kwargs, env, env_kwargs)
    unnamed = trust.Unnamed(why_no_env, trust.outward(config, settings), saved.path)
    config = replace(config, env_kwargs=options)
    return Agent(network.to(config.device), config, env, learned=saved.learned, unnamed=unnamed)


def _agent_folder(path: Path, checkpoint: str | int | None) -> Path:
    if Run.is_run(path):
        return Run(path).checkpoint("best" if checkpoint is None else checkpoint)
    if checkpoint is not None and path.exists():
        raise ConfigError(
            f"checkpoint = {checkpoint!r}, but {path} is no run: a saved agent, or one checkpoint, has no "
            "others. Leave checkpoint (--checkpoint) out"
        )
    return path
