"""The summary of a run at its start: sizes, and the places of its parts."""

from __future__ import annotations

from typing import Any

from recollect.acting.truncation import truncation_slots
from recollect.algos.catalog import acting
from recollect.base.formatting import digits, plural
from recollect.config.replay import ReplayConfig
from recollect.config.train import TrainConfig
from recollect.envs.group_views import views_of
from recollect.experience.rollout import rollout_size
from recollect.learning.replay_learner import make_replay
from recollect.policy.describe_encoder import describe_critic, describe_encoder
from recollect.policy.policies import Network, by_group, rows_by_group
from recollect.runtimes.collector import Collector
from recollect.runtimes.inline_collector import InlineCollector


def size_summary(network: Network, config: TrainConfig, collector: Collector) -> str:
    """The number of weights, the memory of a rollout, and the effective horizon."""
    algo, rows = config.algo, collector.rows
    envs = collector.envs if isinstance(collector, InlineCollector) else ()
    views = [view for env in envs for view in views_of(env).values()]
    kept = max((truncation_slots(view, algo.rollout) for view in views), default=0)
    own = rows_by_group(network, rows)
    sizes = [
        rollout_size(policy, own[name], acting(algo), steps=algo.rollout, slots=kept)
        for name, policy in by_group(network).items()
    ]
    total, states = (sum(getattr(size, part) for size in sizes) for part in ("total", "states"))
    weights = sum(p.numel() for p in network.parameters())
    return (
        f"{weights:,} weights; a rollout of {algo.rollout} steps x {rows} rows takes "
        f"{digits(total / 1e6)} MB, {states / total:.0%} of it stored states; "
        f"{replay_summary(network, config, rows)}effective "
        f"horizon {digits(algo.effective_horizon, 4)} steps"
    )


def replay_summary(network: Network, config: TrainConfig, rows: int) -> str:
    """The memory of the replay of all groups; empty if the algorithm has none."""
    algo, own = config.algo, rows_by_group(network, rows)
    if not isinstance(algo, ReplayConfig):
        return ""
    policies = by_group(network)
    size = sum(make_replay(one, algo, own[name], device="meta").bytes for name, one in policies.items())
    steps = sum(algo.slots(own[name]) * own[name] for name in policies)
    count = len(policies)
    which = "the replay of" if count == 1 else f"{count} replays of in all"
    return f"{which} {steps:,} steps take{'s' * (count == 1)} {digits(size / 1e6)} MB; "


def run_opening(network: Network, config: TrainConfig, collector: Collector, preset: dict[str, Any]) -> str:
    """The text printed before training: sizes, the preset's choices, and how observations are encoded."""
    chosen = "".join(f"; preset {name}={value!r}" for name, value in preset.items())
    sizes = size_summary(network, config, collector)
    lines = [
        f"{f'{group}: ' if group else ''}{line}"
        for group, policy in by_group(network).items()
        for line in [*describe_encoder(policy.encoder, policy.actor_space), *describe_critic(policy)]
    ]
    lines += [f"{part}: dropped (drop_obs)" for part in config.drop_obs]
    return "\n".join([f"{sizes}{chosen}{placement_summary(config, collector.rows)}", *lines])


def short_run_note(config: TrainConfig, rows: int, steps: int) -> str | None:
    """A note if one rollout is more than the ``steps`` to train for."""
    rollout = config.algo.rollout
    if rows * rollout <= steps:
        return None
    return (
        f"one rollout, {rollout} steps x {rows:,} rows = {rollout * rows:,} steps, is more than the "
        f"{steps:,} to train for: there will be a single update. Raise steps (--steps), or lower num_envs "
        "(--num-envs) or rollout (--rollout)"
    )


def placement_summary(config: TrainConfig, rows: int) -> str:
    """The places of actors, envs and learners, on a line of its own; empty if all are in this process."""
    known = {"inline": "in this process", "processes": "in processes", "ray": "on a Ray cluster of its own"}
    place = known.get(config.runtime, f"by the runtime {config.runtime}")
    if config.ray_address is not None:
        place = f"on the Ray cluster {config.ray_address}"
    parts = []
    if config.runtime != "inline" or config.actors > 1:
        each = f"{config.actors} actors x {rows // config.actors} rows" if config.actors > 1 else "1 actor"
        mode = "" if config.runtime == "inline" else f", {config.mode}"
        if config.mode == "async":
            mode += f" (at most {plural(config.lag_limit, 'update')} behind)"
        parts.append(f"{each} {place}{mode}")
    if config.env_workers:
        parts.append(f"{config.env_workers} env workers{' each' if config.actors > 1 else ''}")
    if config.learners > 1:
        parts.append(f"{config.learners} learners")
    if config.learner_processes:
        parts.append("learners in processes")
    return f"\n{'; '.join(parts)}" if parts else ""
