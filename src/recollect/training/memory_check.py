"""Refuse a run that does not fit into memory, before anything large is allocated; warn if it is tight."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import gymnasium as gym
import torch

from recollect.algos.catalog import acting
from recollect.base import provenance
from recollect.base.system_limits import Places, free_memory
from recollect.config.algo_shared import LearnerConfig
from recollect.config.replay import ReplayConfig
from recollect.config.train import TrainConfig
from recollect.errors import ConfigError
from recollect.experience.rollout import rollout_size
from recollect.policy.meta_device import without_memory
from recollect.training.memory_estimate import (
    WORKING_BYTES,
    Learners,
    StepBytes,
    estimate,
    learner_bytes,
    learner_process_bytes,
    process_bytes,
    replay_size,
    replay_step_bytes,
    rollout_bytes,
    trial,
    upper_bound,
    weight_bytes,
)

TIGHT, FULL = 0.7, 0.9
"""Shares of the available memory above which a run is warned and refused: the estimate is not exact."""
MANY_ENVS = 1000
"""Env slots from which a run is checked before its envs are made."""
STEP_BYTES = 20
"""The least bytes of a step: log-prob, value, reward, final value, and four flags."""
LARGE_NUMBER = 1000
"""Whole numbers in a network's config from which its weights are counted before they are allocated."""


def check_network(config: TrainConfig, observation_space: gym.Space, action_space: gym.Space) -> None:
    """Raise ConfigError, before anything is allocated, if the weights cannot be trained in memory."""
    if max(_numbers(config.policy), default=0) < LARGE_NUMBER:
        return
    have = available(config)
    try:
        with torch.random.fork_rng(devices=[]), without_memory(2**62):
            weights = weight_bytes(config.policy.build(observation_space, action_space))
    except Exception:  # a custom part that cannot be built without memory; the build itself reports errors
        return
    need = weights + learner_bytes(weights)
    if have is not None and need > have:
        raise ConfigError(
            f"the network has {weights // 4:,} weights: with their gradients and the optimiser's state they "
            f"take {_size(need)}, and {_where(config, have)}. Lower the sizes of the core (--core.hidden) "
            f"and of the encoder (--encoder.hidden). {_override(need)}"
        )


def check_memory(config: TrainConfig, learners: Learners) -> str | None:
    """Raise ConfigError if the run does not fit into memory. Returns a warning if it is tight."""
    have, algo = available(config), config.algo
    if have is None:
        return None
    if isinstance(algo, ReplayConfig):
        return _check_replay(config, algo, learners, have)
    assert isinstance(algo, LearnerConfig)
    # The least; absurdly many states are not listed.
    sizes = {name: rows * algo.rollout * STEP_BYTES for name, (_, rows) in learners.items()}
    if sum(sizes.values()) <= have:
        sizes = {
            name: rollout_size(policy, rows, acting(algo), steps=algo.rollout).total
            for name, (policy, rows) in learners.items()
        }
    one = sum(sizes.values())
    rows = sum(rows for _, rows in learners.values())
    size = f"a rollout of {algo.rollout:,} steps x {rows:,} rows takes {_size(one)}{_by_group(sizes)}"
    if one > have:
        raise ConfigError(
            f"{size}, and {_where(config, have)}: give a smaller num_envs or rollout. {_override(one)}"
        )
    if upper_bound(learners, config, one) <= have:
        return None
    measured = {name: trial(policy, algo, rows) for name, (policy, rows) in learners.items()}
    found = estimate(learners, config, measured)
    if found.new <= TIGHT * have:
        return None
    text = f"{size}, and the run about {_size(found.new)} ({found})"
    advice = _remedies(learners, config, measured, have)
    # On a GPU other kernels run than in the trial, and too little memory is an error, not a killed process.
    if found.new <= FULL * have or config.device.startswith("cuda"):
        return f"memory is tight: {text}, and {_where(config, have)}. {advice}"
    raise ConfigError(f"{text}, and {_where(config, have)}. {advice}. {_override(found.new)}")


def _check_replay(config: TrainConfig, algo: ReplayConfig, learners: Learners, have: int) -> str | None:
    """``check_memory`` for an algorithm that replays old steps."""
    sizes = dict[str, int]()
    for name, (policy, rows) in learners.items():
        algo.check(policy, rows)
        sizes[name] = replay_size(policy, algo, rows)
    replay = sum(sizes.values())
    elsewhere = learner_process_bytes(learners, config)
    others = elsewhere + process_bytes(config) + WORKING_BYTES
    for policy, rows in learners.values():
        others += rollout_bytes(policy, config, rows) + 2 * learner_bytes(weight_bytes(policy))
    if replay <= 10 * have:  # absurd settings are not tried
        steps = [replay_step_bytes(policy, algo) for policy, _ in learners.values()]
        others += sum(steps) if config.learns_at_once else max(steps)
    need = replay + others
    if need <= TIGHT * have:
        return None
    steps = f"{algo.replay_capacity:,} steps"
    which = f"the replay of {steps} takes" if len(learners) == 1 else f"the replays of {steps} per group take"
    text = f"the run takes about {_size(need)}, of which {which} {_size(replay)}{_by_group(sizes)}"
    copies = 1
    if config.learner_processes:
        copies += algo.save_replay
        why = " with a copy of each replay for checkpoints (save_replay)" if algo.save_replay else ""
        text += f" and learner processes {_size(elsewhere)}{why}"
    share = (TIGHT * have - need) / (copies * replay) + 1
    text += f", and {_where(config, have)}: {_smaller_replay(algo, learners, share)}"
    if config.learner_processes:
        text += ", or leave learner_processes off"
    if need <= FULL * have or (config.device.startswith("cuda") and replay <= have):
        return f"memory is tight: {text}"
    raise ConfigError(f"{text}. {_override(need)}")


def _smaller_replay(algo: ReplayConfig, learners: Learners, share: float) -> str:
    """Advice to lower the capacity to this share of it, unless the replay would then be too small."""
    fits = int(algo.replay_capacity * max(0.0, share))
    try:
        for policy, rows in learners.values():
            replace(algo, replay_capacity=fits).check(policy, rows)
    except ConfigError:
        return "use fewer env slots, smaller observations or a smaller network"
    return f"lower replay_capacity, to {fits:,} (--replay-capacity {fits}), or use smaller observations"


def _by_group(sizes: Mapping[str, int]) -> str:
    """The size of each group; nothing if there is only one."""
    parts = [f"{name} {_size(size)}" for name, size in sizes.items()]
    return f" ({', '.join(parts)})" if len(parts) > 1 else ""


def available(config: TrainConfig) -> int | None:
    """Bytes that the run may take; None if that is not known."""
    if config.memory_limit is not None:
        return int(config.memory_limit * 1e9)
    if not config.device.startswith("cuda"):
        return free_memory(Places()) or provenance.memory()
    devices = range(torch.cuda.device_count()) if config.learners > 1 else [torch.device(config.device)]
    return sum(torch.cuda.mem_get_info(device)[0] for device in devices)


def _remedies(learners: Learners, config: TrainConfig, measured: Mapping[str, StepBytes], have: int) -> str:
    """The settings that reduce the memory, each with the memory that is then needed."""
    algo, target = config.algo, TIGHT * have
    assert isinstance(algo, LearnerConfig)

    def need(measured: Mapping[str, StepBytes], **values: Any) -> int:
        return estimate(learners, replace(config, algo=replace(algo, **values)), measured).new

    now, texts = need(measured), []
    parts = algo.accumulate
    most = min(algo.sequences(rows) // algo.minibatches for _, rows in learners.values())
    while parts < most and need(measured, accumulate=parts) > target:
        parts = min(2 * parts, most)
    if (then := need(measured, accumulate=parts)) < now:
        texts.append(f"accumulate={parts}, the same update in parts: {_size(then)}")
    if not algo.recompute_activations:
        cheaper = replace(algo, recompute_activations=True)
        again = {name: trial(policy, cheaper, rows) for name, (policy, rows) in learners.items()}
        if (then := need(again, recompute_activations=True)) < now:
            texts.append(f"recompute_activations=True: {_size(then)}")
    if config.learner_processes:
        then = estimate(learners, replace(config, learner_processes=False), measured).new
        texts.append(f"learner_processes off: {_size(then)}")
    envs = max(config.actors, int(config.num_envs * target / now) // config.actors * config.actors)
    texts.append(f"num_envs={envs}, or a rollout shorter in proportion: {_size(int(target))}")
    return f"To lower it: {'; '.join(texts)}"


def _numbers(config: Any) -> Iterator[int]:
    """All whole numbers in a config."""
    if dataclasses.is_dataclass(config):
        config = [getattr(config, f.name) for f in dataclasses.fields(config)]
    if isinstance(config, dict):
        config = list(config.values())
    if isinstance(config, list | tuple):
        for part in config:
            yield from _numbers(part)
    elif isinstance(config, int):
        yield config


def _size(count: int) -> str:
    return f"{count / 1e9:,.3g} GB" if count < 1e12 else f"{count / 1e9:,.0f} GB"


def _where(config: TrainConfig, have: int) -> str:
    if config.memory_limit is not None:
        return f"memory_limit is {config.memory_limit:g} GB"
    return f"{_size(have)} are free on {'the GPU' if config.device.startswith('cuda') else 'this machine'}"


def _override(need: int) -> str:
    limit = math.ceil(need / FULL / 1e9)
    return f"If you know better, memory_limit={limit} (--memory-limit {limit}) lets it start"
