"""Advice whose text names values of settings."""

from __future__ import annotations

import dataclasses
import shlex

from recollect.base.formatting import digits, percent, setting
from recollect.config.core_choice import core_config, reaching
from recollect.config.replay import ReplayConfig
from recollect.config.train import TrainConfig
from recollect.training.gauges import Gauge

LONGEST = 1024
"""Rollout above which only twice the present one is suggested: it takes a lot of memory."""
SLOW = 100
"""Steps to remember from which the initial gates of a core matter (docs/tuning.md)."""


def out_of_range(gauge: Gauge, side: str, value: float) -> str:
    """Advice on a gauge that is out of its range on that side."""
    cause, limit = (gauge.above, gauge.high) if side == "above" else (gauge.below, gauge.low)
    assert limit is not None
    return f"{gauge.name} is {digits(value)}, {side} its healthy range ({digits(limit)}). {cause[:-1]}"


def longer_reach(config: TrainConfig, length: float, steps: float) -> str:
    """Advice on episodes of ``length`` steps, if the return did not improve over ``steps`` env steps."""
    algo = config.algo
    if isinstance(algo, ReplayConfig):
        return _longer_sequences(config, algo, length, steps)
    reach = min(1 << (round(length) - 1).bit_length(), max(LONGEST, 2 * algo.rollout))
    changes = [] if algo.chunk_length == algo.rollout else ["recurrent_mode='full'"]
    if reach > algo.rollout:
        changes.append(f"rollout={reach}")
    if config.num_envs < 32:
        changes.append("num_envs=32")
    if length >= SLOW:
        changes += _open_gates(config.policy.core, min(round(length), reach))
    return _try(algo.chunk_length, length, steps, changes)


def _longer_sequences(config: TrainConfig, algo: ReplayConfig, length: float, steps: float) -> str:
    """``longer_reach`` for sequences of a replay."""
    reach = min(1 << (round(length) - 1).bit_length(), max(LONGEST // 4, 2 * algo.chunk))
    changes = [f"chunk={reach}", f"batch={max(1, algo.batch * algo.chunk // reach)}"]
    if length >= SLOW:
        changes += _open_gates(config.policy.core, min(round(length), reach))
    return _try(algo.chunk, length, steps, changes)


def _try(reach: int, length: float, steps: float, changes: list[str]) -> str:
    return (
        f"episodes last {digits(length)} steps, gradients reach back {reach} steps, and the return has not "
        f"improved in {steps:,.0f} steps. If the task needs a longer memory, try {', '.join(changes)}"
    )


def slow_env(env: str | None, share: float) -> str:
    """Advice on an env that takes this share of the time."""
    name = "module:Env" if env is None else shlex.quote(env)
    return (
        f"the env takes {percent(share)} of the time: `recollect doctor --env {name}` measures whether "
        "actors, env_workers or another runtime make it faster"
    )


def _open_gates(core: object, steps: int) -> list[str]:
    """The settings of a core that let it remember over that many steps from the start, if it has any."""
    config = core_config(core) if isinstance(core, str) else core
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return []  # a factory
    wanted = reaching(config, steps)
    pairs = [(f.name, getattr(wanted, f.name)) for f in dataclasses.fields(config)]
    return [
        f"core.{name}={setting(value)}"
        for name, value in pairs
        if isinstance(value, int | float) and value != getattr(config, name)
    ]
