"""Advice on unhealthy metrics during training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recollect.acting.evaluate import Evaluation


class Advisor:
    """Checks the metrics and gives each piece of advice once."""

    def __init__(self, max_grad_norm: float, patience: int = 100, settling: int = 10):
        """``patience``: updates before advice on gradients; ``settling``: first updates without advice."""
        self._limit, self._patience, self._settling = max_grad_norm, patience, settling
        self._above = self._below = self._updates = 0
        self._last: dict[str, float] = {}
        self._largest: dict[str, float] = {}
        self._said: set[str] = set()

    def watch(self, metrics: dict[str, float]) -> list[str]:
        """New advice after this update."""
        advice = self._gradients(metrics) | self._spreads(metrics)
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

    def _gradients(self, metrics: dict[str, float]) -> dict[str, str]:
        if "grad_norm" not in metrics:  # target_kl stopped the update before its first step
            return {}
        advice = {}
        self._above = self._above + 1 if metrics["grad_clip_rate"] == 1 else 0
        self._below = self._below + 1 if metrics["grad_norm_max"] < 0.1 else 0
        if self._above >= self._patience:
            advice["above"] = (
                f"the gradient was clipped in every minibatch of {self._above} updates (norm "
                f"{metrics['grad_norm']:.3g}, limit {self._limit:g}): lower learning_rate, or raise "
                "max_grad_norm"
            )
        if self._below >= self._patience:
            advice["below"] = (
                f"the gradient norm stayed below 0.1 for {self._below} updates: unless the task is solved, "
                "raise learning_rate"
            )
        return advice

    def _spreads(self, metrics: dict[str, float]) -> dict[str, str]:
        """Advice on a standard deviation that grows tenfold in one update, beyond that of the rewards."""
        growth = {}
        for name in ("reward", "advantage", "value"):
            before, largest = self._last.get(name, 0.0), self._largest.get(name, 0.0)
            now = self._last[name] = metrics[f"{name}/std"]
            self._largest[name] = max(largest, now)
            # Values that were as large before, as in a nearly solved task, are normal.
            factor = 1.0 if now <= largest else now / before if before > 0 else math.inf
            growth[name] = (factor, f"from {before:.3g} to {now:.3g} in one update")
        self._updates += 1
        if self._updates <= self._settling:
            return {}
        advice = {}
        by_rewards, change = growth["reward"]
        if 10 <= by_rewards < math.inf:
            advice["reward"] = (
                f"the standard deviation of the reward rose {change}: unstable, unless the agent has just "
                "found rewards; for unbounded rewards see reward_scale and reward_clip"
            )
        for name in ("advantage", "value"):
            if 10 * max(1.0, by_rewards) <= growth[name][0] < math.inf:
                advice[name] = (
                    f"the standard deviation of the {name} rose {growth[name][1]}: unstable; lower "
                    "learning_rate, or raise num_envs or rollout"
                )
        return advice
