"""Evaluation: episodes with fixed weights and seeds, and the confidence interval of their mean return."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from recollect.base import row_threads
from recollect.base.formatting import digits, number
from recollect.envs.contract import BatchedEnv
from recollect.errors import ConfigError, EvaluationCancelledError
from recollect.policy.policy import Policy

FEWEST = 10
"""Episodes below which a bootstrap interval is too narrow to call two means different."""


@dataclass(frozen=True)
class Evaluation:
    """The episodes of one evaluation."""

    returns: np.ndarray
    """[N] undiscounted sums of raw rewards."""
    lengths: np.ndarray
    """[N] in steps."""
    mode: Literal["greedy", "sampled"] = "greedy"
    """The actions: the most likely ones, or drawn from the policy's distribution as in training."""
    sampled: Evaluation | None = None
    """With ``eval_mode`` "both": the same policy and seed with sampled actions; this one is greedy."""

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """The standard deviation of the returns."""
        return float(self.returns.std())

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95% bootstrap interval of the mean return."""
        rng = np.random.default_rng(0)
        picks = rng.integers(len(self.returns), size=(2000, len(self.returns)))
        low, high = np.quantile(self.returns[picks].mean(1), [0.025, 0.975])
        return float(low), float(high)

    @cached_property
    def difference(self) -> str | None:
        """If the intervals of greedy and sampled actions do not overlap: what it means and what to do."""
        other = self.sampled
        if other is None or min(len(self.returns), len(other.returns)) < FEWEST:
            return None
        (low, high), (other_low, other_high) = self.interval, other.interval
        if not (high < other_low or other_high < low):  # also for NaN
            return None
        gap = (
            f"greedy actions reach {number(self.mean)}, sampled ones {number(other.mean)}: more than chance. "
        )
        settle = "train for longer, or lower the coefficient entropy while the metric entropy is high"
        if self.mean > other.mean:
            return (
                f"{gap}The policy still explores, and the training return is that of sampled actions. Act "
                f"greedily, as sessions, predict and export do by default; to close the gap, {settle}"
            )
        return (
            f"{gap}The most likely action alone is worse than a draw: the policy has not settled, or the "
            "task needs chance. Let the agent sample, session(deterministic=False), and choose the best "
            f"checkpoint with eval_mode=sampled (--eval-mode sampled); or {settle}"
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON form; with ``eval_mode`` "both", ``sampled`` holds that of the sampled actions."""
        both = {} if self.sampled is None else {"sampled": self.sampled.to_json()}
        return {
            "mode": self.mode,
            "mean": self.mean,
            "std": self.std,
            "interval": list(self.interval),
            "returns": self.returns.tolist(),
            "lengths": self.lengths.tolist(),
            **both,
            **({} if self.difference is None else {"difference": self.difference}),
        }

    def __str__(self) -> str:
        low, high = self.interval
        both = "" if self.sampled is None else f"; {self.sampled}"
        return (
            f"{self.mode} return {digits(self.mean)} (95% interval {digits(low)} to {digits(high)}), "
            f"length {digits(self.lengths.mean())}, {len(self.returns):,} episodes{both}"
        )


@torch.no_grad()  # not inference_mode: training could not write to tensors that an env allocates in it
def evaluate(
    policy: Policy,
    env: BatchedEnv,
    *,
    episodes: int = 100,
    seed: int = 0,
    deterministic: bool = True,
    max_steps: int = 10_000_000,
    cancelled: Callable[[], bool] | None = None,
) -> Evaluation:
    """Play ``episodes`` episodes, from a reset and the initial state.

    Each row plays a fixed number of episodes: counting the episodes that end first would favour short ones.
    The policy's statistics, its RNG and the live state of a training actor do not change.

    Args:
        policy: acts, in eval mode.
        env: is reset with ``seed``.
        episodes: number of episodes over all rows.
        seed: seed of the env and of sampled actions.
        deterministic: take the mode of each distribution instead of a sample.
        max_steps: raise after this many env steps, for envs whose episodes never end.
        cancelled: called at every step; if true, the evaluation is cancelled.
    """
    if episodes < 1:
        raise ConfigError(f"episodes = {episodes}: it must be at least 1")
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed = {seed}: it is from 0 to 2^63 - 1")
    rows = env.num_envs * env.agents
    quota = np.full(rows, episodes // rows)
    quota[: episodes % rows] += 1
    generator = torch.Generator(env.device).manual_seed(seed)
    total, length, played = np.zeros(rows), np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    returns: list[float] = []
    lengths: list[int] = []
    with evaluating(policy), row_threads.intra_op_threads(1):
        actor = policy.actor_only()
        obs, state = env.reset(seed), actor.initial_state(rows)
        first = torch.ones(rows, dtype=torch.bool, device=env.device)
        for _ in range(max(1, max_steps // rows)):
            if cancelled is not None and cancelled():
                raise EvaluationCancelledError("the evaluation was cancelled: the run is stopping")
            acted, state = actor.act(obs, state, first, generator, deterministic)
            step = env.step(actor.to_env(acted.action))
            obs, first = step.obs, step.first
            valid = step.valid.cpu().numpy()
            total += np.where(valid, step.reward.cpu().numpy(), 0)
            length += valid
            ended = (step.terminated | step.truncated).cpu().numpy() & valid
            for row in ended.nonzero()[0]:
                if played[row] < quota[row]:
                    returns.append(float(total[row]))
                    lengths.append(int(length[row]))
                played[row] += 1
                total[row], length[row] = 0.0, 0
            if (played >= quota).all():
                mode = "greedy" if deterministic else "sampled"
                return Evaluation(np.array(returns), np.array(lengths), mode)
    raise ConfigError(
        f"the evaluation did not finish {episodes} episodes within {max_steps} steps: does the env "
        "have a time limit? Give it one, or raise max_steps"
    )


@contextmanager
def evaluating(policy: Policy) -> Iterator[None]:
    """Put the policy into eval mode, and back into its own afterwards."""
    was_training = policy.training
    policy.eval()
    try:
        yield
    finally:
        policy.train(was_training)
