"""Evaluation: episodes with fixed weights and seeds, and the confidence interval of their mean return."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from recollect.base import row_threads
from recollect.base.formatting import digits, number
from recollect.base.seeds import stream
from recollect.base.types import Step, Tree
from recollect.config.train import EvalMode
from recollect.envs.contract import BatchedEnv
from recollect.envs.group_views import Groups, joint, views_of
from recollect.errors import ConfigError, EvaluationCancelledError
from recollect.policy.policies import Network, by_group
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
    groups: dict[str, Evaluation] = field(default_factory=dict)
    """The episodes of each group's agents, if there are several groups; this one has all of them."""

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
            **({"groups": {name: one.to_json() for name, one in self.groups.items()}} if self.groups else {}),
            **({} if self.difference is None else {"difference": self.difference}),
        }

    def __str__(self) -> str:
        low, high = self.interval
        both = "" if self.sampled is None else f"; {self.sampled}"
        groups = ", ".join(f"{name} {digits(one.mean)}" for name, one in self.groups.items())
        return (
            f"{self.mode} return {digits(self.mean)} (95% interval {digits(low)} to {digits(high)}"
            f"{f'; {groups}' if groups else ''}), "
            f"length {digits(self.lengths.mean())}, {len(self.returns):,} episodes{both}"
        )


class _Player:
    """The rows of one group in an evaluation: live state, and the episodes so far."""

    def __init__(self, policy: Policy, env: BatchedEnv, episodes: int, seed: int, sampling_seed: int):
        rows = env.num_envs * env.agents
        self.policy, self.env, self.rows = policy.actor_only(), env, rows
        self._quota = np.full(rows, episodes // rows)
        self._quota[: episodes % rows] += 1
        self._generator = torch.Generator(env.device).manual_seed(sampling_seed)
        self._obs, self._state = env.reset(seed), self.policy.initial_state(rows)
        self._first = torch.ones(rows, dtype=torch.bool, device=env.device)
        self._total, self._length = np.zeros(rows), np.zeros(rows, np.int64)
        self.played = np.zeros(rows, np.int64)
        """[B] episodes that are over."""
        self.returns: list[float] = []
        self.lengths: list[int] = []

    def is_done(self) -> bool:
        """Whether every row has played its episodes."""
        return bool((self.played >= self._quota).all())

    def action(self, deterministic: bool) -> Tree:
        """The env's actions [B, ...]."""
        acted, self._state = self.policy.act(
            self._obs, self._state, self._first, self._generator, deterministic
        )
        return self.policy.to_env(acted.action)

    def take(self, step: Step) -> tuple[np.ndarray, np.ndarray]:
        """Count the rewards of a step. Returns which rows lived, and which of them ended, [B] bool."""
        self._obs, self._first = step.obs, step.first
        valid = step.valid.cpu().numpy()
        self._total += np.where(valid, step.reward.cpu().numpy(), 0)
        self._length += valid
        ended = (step.terminated | step.truncated).cpu().numpy() & valid
        for row in ended.nonzero()[0]:
            if self.played[row] < self._quota[row]:
                self.returns.append(float(self._total[row]))
                self.lengths.append(int(self._length[row]))
            self.played[row] += 1
            self._total[row], self._length[row] = 0.0, 0
        return valid, ended


@torch.no_grad()  # not inference_mode: training could not write to tensors that an env allocates in it
def evaluate(
    network: Network,
    env: BatchedEnv | Groups,
    *,
    episodes: int = 100,
    seed: int = 0,
    deterministic: bool = True,
    max_steps: int = 10_000_000,
    cancelled: Callable[[], bool] | None = None,
) -> Evaluation:
    """Play ``episodes`` episodes, from a reset and the initial state.

    Each row plays a fixed number of episodes: counting the episodes that end first would favour short ones.
    An agent that is absent from an episode of its env slot plays one less.
    The policy's statistics, its RNG and the live state of a training actor do not change.

    Args:
        network: acts, in eval mode.
        env: is reset with ``seed``.
        episodes: number of episodes over all rows; of each group, if there are several.
        seed: seed of the env and of sampled actions.
        deterministic: take the mode of each distribution instead of a sample.
        max_steps: raise after this many env steps, for envs whose episodes never end.
        cancelled: called at every step; if true, the evaluation is cancelled.
    """
    if episodes < 1:
        raise ConfigError(f"episodes = {episodes}: it must be at least 1")
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed = {seed}: it is from 0 to 2^63 - 1")
    with evaluating(network), row_threads.intra_op_threads(1):
        policies = by_group(network)
        players = {
            name: _Player(policies[name], view, episodes, seed, stream(seed, number) if name else seed)
            for number, (name, view) in enumerate(views_of(env).items())
        }
        world, absent = joint(env), _Absent(env.num_envs, env.agents)
        for _ in range(max(1, max_steps // (env.num_envs * env.agents))):
            if cancelled is not None and cancelled():
                raise EvaluationCancelledError("the evaluation was cancelled: the run is stopping")
            steps = world.step({name: player.action(deterministic) for name, player in players.items()})
            ends = [player.take(steps[name]) for name, player in players.items()]
            if env.agents > 1:
                absent.count(list(players.values()), ends)
            if all(player.is_done() for player in players.values()):
                if not all(player.returns for player in players.values()):
                    raise ConfigError(
                        f"episodes = {episodes}: the agents that were to play were absent. Give at least "
                        f"{env.agents}, one for each agent"
                    )
                return _result(players, "greedy" if deterministic else "sampled")
    raise ConfigError(
        f"the evaluation did not finish {episodes} episodes within {max_steps} steps: does the env "
        "have a time limit? Give it one, or raise max_steps"
    )


def _result(players: dict[str, _Player], mode: Literal["greedy", "sampled"]) -> Evaluation:
    found = {
        name: Evaluation(np.array(player.returns), np.array(player.lengths), mode)
        for name, player in players.items()
    }
    if len(found) == 1:
        return next(iter(found.values()))
    returns, lengths = (
        np.concatenate([getattr(one, column) for one in found.values()]) for column in ("returns", "lengths")
    )
    return Evaluation(returns, lengths, mode, groups=found)


class _Absent:
    """Finds the agents that are absent from a whole episode of their env slot."""

    def __init__(self, slots: int, agents: int):
        """``agents``: per slot, of all groups."""
        self._has_lived = np.zeros((slots, agents), np.bool_)  # in the present episode of the slot

    def count(self, players: list[_Player], ends: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """Count the episodes that are over as played by the rows that were absent from them."""
        slots = len(self._has_lived)
        valid, ended = (
            np.concatenate([part.reshape(slots, -1) for part in parts], axis=1) for parts in zip(*ends)
        )
        missing, begin = self._over(valid, ended), 0
        for player in players:
            player.played += missing[:, begin : begin + player.env.agents].flatten()
            begin += player.env.agents

    def _over(self, valid: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """[slots, agents] bool: absent from an episode that this step has ended."""
        lived = self._has_lived
        lived |= valid
        lives_on = (valid & ~ended).any(axis=1, keepdims=True)
        is_over = ended.any(axis=1, keepdims=True) & ~lives_on
        absent = is_over & ~lived
        lived &= ~is_over
        return absent


def in_mode(play: Callable[..., Any], mode: EvalMode) -> Any:
    """What ``play(deterministic=...)`` finds in this mode; of "both" the greedy, with the sampled one."""
    if mode != "both":
        return play(deterministic=mode == "greedy")
    return replace(play(deterministic=True), sampled=play(deterministic=False))


@contextmanager
def evaluating(policy: Network) -> Iterator[None]:
    """Put the policy into eval mode, and back into its own afterwards."""
    was_training = policy.training
    policy.eval()
    try:
        yield
    finally:
        policy.train(was_training)
