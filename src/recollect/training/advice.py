"""Advice on settings during training, from the metrics of the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from recollect.base.formatting import digits
from recollect.config.replay import REBUILT, ReplayConfig
from recollect.config.train import TrainConfig
from recollect.training import advice_texts
from recollect.training.gauges import BY_NAME, GAUGES, SETTLING
from recollect.training.metrics import History
from recollect.training.return_trend import ReturnTrend

if TYPE_CHECKING:
    from recollect.acting.evaluate import Evaluation

PATIENCE = 100
"""Updates before advice on gradients and gauges."""
MEASURED = 5
"""Measurements of a gauge within these updates, at least."""
LONGER = 1.5
"""Episodes of this many chunks are clearly longer than one."""
PART = 1 / 3
"""Part of a training's steps without improvement before advice on the reach of gradients."""
ENV_SHARE = 0.5
"""Share of the time that the env takes, from which there is advice on it."""
ENV_SECONDS = 60.0
"""Seconds of training over which that share is measured."""


class Advisor:
    """Checks the metrics and gives each piece of advice once."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        env: str | None = None,
        has_memory: bool = True,
        patience: int = PATIENCE,
        settling: int = SETTLING,
    ):
        """``patience``: updates before advice on gauges; ``settling``: first updates without advice."""
        self._config, self._env, self._has_memory = config, env, has_memory
        self._patience, self._settling = patience, settling
        self._above = self._below = self._updates = 0
        self._bits = {gauge.name: [0, 0] for gauge in GAUGES}
        """Of each gauge, a bit for each of the last updates: was it measured, was it out of its range?"""
        self._last: dict[str, float] = {}
        self._largest: dict[str, float] = {}
        self._said: set[str] = set()
        self._trend = ReturnTrend(config.target_episodes)
        self._start, self._end = 0, 0
        self._steps = self._seconds = self._env_seconds = 0.0

    def begin(self, history: History, start: int, end: int) -> None:
        """Start to watch a training from ``start`` to ``end`` env steps, which adds to ``history``."""
        self._trend.begin(history)
        self._start, self._end, self._steps = start, end, history.last.get("steps", start)

    def watch(self, metrics: dict[str, float]) -> list[str]:
        """New advice after this update."""
        self._updates += 1
        self._trend.add(metrics)
        advice = self._gradients(metrics) | self._gauges(metrics) | self._spreads(metrics)
        advice |= self._reach(metrics) | self._env_time(metrics)
        fresh = [text for key, text in advice.items() if key not in self._said]
        self._said |= advice.keys()
        return fresh

    def compare(self, evaluation: Evaluation) -> list[str]:
        """New advice after an evaluation whose greedy actions are worse than its sampled ones.

        The reverse is usual while a policy explores: the summary at the end mentions it.
        """
        is_worse = evaluation.sampled is not None and evaluation.mean < evaluation.sampled.mean
        if evaluation.difference is None or not is_worse or "greedy" in self._said:
            return []
        self._said.add("greedy")
        return [evaluation.difference]

    def _gradients(self, metrics: Mapping[str, float]) -> dict[str, str]:
        if "grad_norm" not in metrics:  # target_kl stopped the update before its first step
            return {}
        advice = {}
        is_clipped = BY_NAME["grad_clip_rate"].side(metrics["grad_clip_rate"]) == "above"
        self._above = self._above + 1 if is_clipped else 0
        # The errors of action values are small until rewards are found; Adam's steps are not.
        is_small = metrics["grad_norm_max"] < 0.1 and not isinstance(self._config.algo, ReplayConfig)
        self._below = self._below + 1 if is_small else 0
        if self._above >= self._patience:
            advice["above"] = (
                f"the gradient was clipped in every minibatch of {self._above} updates (norm "
                f"{digits(metrics['grad_norm'])}, limit {self._config.algo.max_grad_norm:g}): lower "
                "learning_rate, or raise max_grad_norm"
            )
        if self._below >= self._patience and not self._trend.is_settled:
            advice["below"] = (
                f"the gradient norm stayed below 0.1 for {self._below} updates: unless the task is solved, "
                "raise learning_rate"
            )
        return advice

    def _gauges(self, metrics: Mapping[str, float]) -> dict[str, str]:
        """Advice on each gauge that was out of its range in most of the last updates.

        Deviations and clipped gradients are left out: the deviation check and ``_gradients`` report them.
        """
        if self._updates <= self._settling:
            return {}
        found = {}
        for gauge in GAUGES:
            if gauge.relative or gauge.name == "grad_clip_rate":
                continue
            value = metrics.get(gauge.name, math.nan)
            is_quiet = math.isnan(value) or (gauge.is_for_learning and self._trend.is_settled)
            side = None if is_quiet else gauge.side(value)
            measured, outside = self._count(gauge.name, not math.isnan(value), side is not None)
            is_known = self._updates >= self._settling + self._patience and measured >= MEASURED
            if side is not None and is_known and outside > measured / 2:
                found[gauge.name] = advice_texts.out_of_range(gauge, side, value)
        return found

    def _count(self, name: str, *now: bool) -> list[int]:
        """In how many of the last ``patience`` updates a gauge was measured, and was out of its range."""
        mask = (1 << self._patience) - 1
        self._bits[name] = [(bits << 1 | bit) & mask for bits, bit in zip(self._bits[name], now)]
        return [bits.bit_count() for bits in self._bits[name]]

    def _spreads(self, metrics: Mapping[str, float]) -> dict[str, str]:
        """Advice on a standard deviation that grows tenfold in one update, beyond that of the rewards."""
        if "advantage/std" not in metrics:  # rollouts of a replay learner are too short to be compared
            return {}
        growth = {}
        for name in ("reward", "advantage", "value"):
            before, largest = self._last.get(name, 0.0), self._largest.get(name, 0.0)
            now = self._last[name] = metrics[f"{name}/std"]
            self._largest[name] = max(largest, now)
            # Values that were as large before, as in a nearly solved task, are normal.
            factor = 1.0 if now <= largest else now / before if before > 0 else math.inf
            growth[name] = (factor, f"from {digits(before)} to {digits(now)} in one update")
        # In a solved task the values hardly differ, and one failure makes them differ.
        if self._updates <= self._settling or self._trend.is_settled:
            return {}
        advice = {}
        by_rewards, change = growth["reward"]
        if 10 <= by_rewards < math.inf:
            advice["reward"] = (
                f"the standard deviation of the reward rose {change}: the agent has found other rewards; if "
                "the return falls, see reward_scale and reward_clip"
            )
        for name in ("advantage", "value"):
            if 10 * max(1.0, by_rewards) <= growth[name][0] < math.inf:
                advice[name] = (
                    f"the standard deviation of the {name} rose {growth[name][1]}: if the return falls, "
                    "training is unstable; lower learning_rate, or raise num_envs or rollout"
                )
        return advice

    def _reach(self, metrics: Mapping[str, float]) -> dict[str, str]:
        """Advice on episodes that are longer than gradients reach, if the return does not improve."""
        length, steps = metrics.get("length", 0.0), metrics.get("steps", 0.0)
        since = steps - PART * (self._end - self._start)
        algo = self._config.algo
        is_rebuilt = isinstance(algo, ReplayConfig) and algo.states == REBUILT  # the core's reach is fixed
        is_long = self._has_memory and not is_rebuilt and length >= LONGER * self._config.algo.chunk_length
        # Weights of another run may have solved the task at the start.
        if not is_long or since < self._start or self._config.init_from or not self._trend.is_flat(since):
            return {}
        return {"reach": advice_texts.longer_reach(self._config, length, steps - since)}

    def _env_time(self, metrics: Mapping[str, float]) -> dict[str, str]:
        """Advice on an env that takes half of the time or more."""
        total, env = metrics.get("speed/total", 0.0), metrics.get("speed/env", 0.0)
        if not (total > 0 and env > 0):
            return {}
        seconds = max(0.0, metrics["steps"] - self._steps) / total
        self._steps = metrics["steps"]
        self._seconds += seconds
        # With actors in other processes, the share of their time; else that of an update's.
        self._env_seconds += seconds * metrics.get("time/env", min(1.0, total / env))
        share = self._env_seconds / self._seconds if self._seconds > 0 else 0.0
        if self._seconds < ENV_SECONDS or share < ENV_SHARE:
            return {}
        return {"env": advice_texts.slow_env(self._env, share)}
