"""Games against an opponent with fixed weights and seeds: how many are won on each side, at what return."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from recollect.acting.evaluate import evaluating
from recollect.acting.policy_player import PolicyPlayer
from recollect.base import row_threads
from recollect.base.formatting import digits
from recollect.base.types import Tree
from recollect.envs.contract import BatchedEnv, Player
from recollect.envs.group_views import Groups
from recollect.envs.versus import OUTCOMES, Versus, find_versus
from recollect.errors import ConfigError, EvaluationCancelledError
from recollect.policy.policy import Policy

Z = 1.959964
"""Standard deviations of a normal distribution on each side of its middle 95%."""
MOST_SLOTS = 16


@dataclass(frozen=True, slots=True)
class Results:
    """How games ended for the agent."""

    win: int = 0
    draw: int = 0
    loss: int = 0

    @property
    def games(self) -> int:
        """Their number."""
        return self.win + self.draw + self.loss

    def share(self, outcome: str) -> float:
        """The share of the games that ended so; NaN of no games."""
        return getattr(self, outcome) / self.games if self.games else math.nan

    def interval(self, outcome: str) -> tuple[float, float]:
        """The 95% Wilson interval of that share."""
        return wilson(getattr(self, outcome), self.games)

    def to_json(self) -> dict[str, Any]:
        """Counts, shares and intervals."""
        found: dict[str, Any] = {"games": self.games}
        for name in OUTCOMES if self.games else ():
            found[name] = {
                "count": getattr(self, name),
                "share": self.share(name),
                "interval": list(self.interval(name)),
            }
        return found

    def cells(self) -> list[str]:
        """Each share with its interval, in percent."""
        if not self.games:
            return ["-"] * len(OUTCOMES)
        return [
            "{:.1f}% ({:.1f} to {:.1f})".format(*(100 * x for x in (self.share(name), *self.interval(name))))
            for name in OUTCOMES
        ]


@dataclass(frozen=True)
class Games:
    """The games of one evaluation."""

    opponent: str
    sides: dict[str, Results]
    """By the agent's side."""
    returns: np.ndarray
    """[N] of each agent that took part in a game: the sum of its raw rewards."""
    lengths: np.ndarray
    """[games] in steps."""
    info: dict[str, float] = field(default_factory=dict)
    """The mean over all steps of every number in ``Step.info``."""
    mode: Literal["greedy", "sampled"] = "greedy"
    """The actions, as in ``Evaluation``."""
    sampled: Games | None = None
    """With ``eval_mode`` "both": the same with sampled actions; this one is greedy."""

    @property
    def total(self) -> Results:
        """On both sides."""
        return Results(*(sum(getattr(one, name) for one in self.sides.values()) for name in OUTCOMES))

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())

    def to_json(self) -> dict[str, Any]:
        """The JSON form; with ``eval_mode`` "both", ``sampled`` holds that of the sampled actions."""
        return {
            "mode": self.mode,
            "vs": self.opponent,
            **self.total.to_json(),
            "interval_of": "95% Wilson",
            "sides": {side: one.to_json() for side, one in self.sides.items()},
            "mean": self.mean,
            "returns": self.returns.tolist(),
            "lengths": self.lengths.tolist(),
            "info": self.info,
            **({} if self.sampled is None else {"sampled": self.sampled.to_json()}),
        }

    def table(self) -> str:
        """The shares of the results on each side, with their intervals."""
        rows = [("", *OUTCOMES, "games")]
        for name, one in {"all": self.total, **self.sides}.items():
            rows.append((name, *one.cells(), f"{one.games:,}"))
        widths = [max(map(len, column)) for column in zip(*rows)]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows)

    def __str__(self) -> str:
        numbers = {"return": self.mean, "length": float(self.lengths.mean()), **self.info}
        wide = max(map(len, numbers))
        lines = [
            f"{self.mode} actions against {self.opponent} (with 95% Wilson intervals):",
            self.table(),
            *(f"{name.ljust(wide)}  {digits(value)}" for name, value in numbers.items()),
        ]
        both = [] if self.sampled is None else ["", str(self.sampled)]
        return "\n".join([*lines, *both])


def wilson(count: float, games: int, z: float = Z) -> tuple[float, float]:
    """The Wilson score interval of a share, ``count`` of ``games``; with the default ``z`` that of 95%.

    Wilson (1927): the shares p whose distance to count / games is at most z standard errors of p.
    """
    if games == 0:
        return 0.0, 1.0
    share, square = count / games, z * z / games
    middle = share + square / 2
    half = math.sqrt(square * (share * (1 - share) + square / 4))
    low, high = (middle - half) / (1 + square), (middle + half) / (1 + square)
    return max(0.0, min(share, low)), min(1.0, max(share, high))  # min and max: of 0 and 1, up to rounding


def slots_for(games: int, most: int = MOST_SLOTS) -> int:
    """The number of env slots for so many games: as many of each side."""
    return games if games == 1 else min(games, most) // 2 * 2


@torch.no_grad()
def play_games(
    policy: Policy,
    env: BatchedEnv | Groups,
    *,
    opponent: str,
    games: int = 200,
    seed: int = 0,
    deterministic: bool = True,
    max_steps: int = 10_000_000,
    cancelled: Callable[[], bool] | None = None,
) -> Games:
    """Play ``games`` games from a reset, half of them on each side.

    Each slot plays a fixed number of games: counting the games that end first would favour short ones. The
    policy's statistics, its RNG and the live state of a training actor do not change.

    Args:
        policy: acts, in eval mode.
        env: a ``Versus``, also within wrappers; it is reset with ``seed``.
        opponent: the name of its player.
        games: number of games.
        seed: seed of the env and of sampled actions.
        deterministic: take the mode of each distribution instead of a sample.
        max_steps: raise after this many env steps, for games that never end.
        cancelled: called at every step; if true, the evaluation is cancelled.
    """
    if games < 1:
        raise ConfigError(f"games = {games}: it must be at least 1")
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed = {seed}: it is from 0 to 2^63 - 1")
    if isinstance(env, Groups) or (versus := find_versus(env)) is None:
        raise ConfigError("this env has no opponent: name one with vs='bot' (--vs bot)")
    with evaluating(policy), row_threads.intra_op_threads(1):
        tally = _Tally(versus, games)
        player = PolicyPlayer(policy, env.device, seed, deterministic=deterministic)
        _play(env, tally, partial(player.act, versus.rows), seed, max_steps, cancelled)
    return tally.result(opponent, "greedy" if deterministic else "sampled")


@torch.no_grad()
def play_match(
    env: Versus, player: Player, *, opponent: str, games: int, seed: int, max_steps: int = 10_000_000
) -> Games:
    """Play games of ``player``, which has the rows of the learner, against the player of ``env``."""
    with row_threads.intra_op_threads(1):
        tally = _Tally(env, games)
        _play(env, tally, partial(player.act, env.rows), seed, max_steps)
    return tally.result(opponent, "sampled")


def _play(
    env: BatchedEnv,
    tally: _Tally,
    act: Callable[[Tree, torch.Tensor], Tree],
    seed: int,
    max_steps: int,
    cancelled: Callable[[], bool] | None = None,
) -> None:
    """Play all games of ``tally``, in which ``act(obs, first)`` gives the actions of the learner's rows."""
    rows = env.num_envs * env.agents
    obs, first = env.reset(seed), torch.ones(rows, dtype=torch.bool, device=env.device)
    for _ in range(max(1, max_steps // rows)):
        if cancelled is not None and cancelled():
            raise EvaluationCancelledError("the evaluation was cancelled: the run is stopping")
        step = env.step(act(obs, first))
        tally.add(step.reward.cpu().numpy(), step.valid.cpu().numpy(), step.info)
        if tally.is_done:
            return
        obs, first = step.obs, step.first
    raise ConfigError(
        f"{tally.games} games did not end within {max_steps} steps: does the env have a time limit?"
    )


class _Tally:
    """The games so far, and those in progress."""

    def __init__(self, versus: Versus, games: int):
        self._versus, self._agents, slots, self.games = versus, versus.agents, versus.num_envs, games
        self._side = np.array(versus.sides)
        self._quota = np.zeros(slots, np.int64)
        for side, own in zip(dict.fromkeys(versus.sides), (games - games // 2, games // 2)):
            mine = np.flatnonzero(self._side == side)
            self._quota[mine] = own // len(mine) + (np.arange(len(mine)) < own % len(mine))
        self._played = np.zeros(slots, np.int64)
        self._total, self._steps = np.zeros((slots, versus.agents)), np.zeros(slots, np.int64)
        self._lived = np.zeros((slots, versus.agents), np.bool_)
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._results: dict[str, Counter[str]] = {side: Counter() for side in versus.sides}
        self._sums: dict[str, float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)

    @property
    def is_done(self) -> bool:
        """Whether every slot has played its games."""
        return bool((self._played >= self._quota).all())

    def add(self, reward: np.ndarray, valid: np.ndarray, info: dict[str, torch.Tensor]) -> None:
        """Count a step: reward and valid [B]."""
        valid = valid.reshape(-1, self._agents)
        self._total += np.where(valid, reward.reshape(valid.shape), 0)
        self._lived |= valid
        self._steps += 1
        counts = self._played < self._quota  # in this step
        self._add_info(info, counts, valid)
        over = self._versus.games.cpu().numpy() > self._played
        outcomes = {name: value.tolist() for name, value in self._versus.outcomes().items()}
        for slot in np.flatnonzero(over):
            if counts[slot]:
                self._results[self._side[slot]].update(name for name in OUTCOMES if outcomes[name][slot] == 1)
                self._returns += self._total[slot][self._lived[slot]].tolist()
                self._lengths.append(int(self._steps[slot]))
            self._played[slot] += 1
            self._total[slot], self._steps[slot], self._lived[slot] = 0, 0, False

    def _add_info(self, info: dict[str, torch.Tensor], counts: np.ndarray, valid: np.ndarray) -> None:
        """Sum the numbers of games that count, of rows that live or of slots."""
        for name, value in info.items():
            if name not in OUTCOMES:
                numbers = value.double().cpu().numpy().reshape(len(counts), -1)
                has_value = ~np.isnan(numbers) & counts[:, None]
                if numbers.shape[1] == self._agents > 1:
                    has_value &= valid
                self._sums[name] += float(numbers[has_value].sum())
                self._counts[name] += int(has_value.sum())

    def result(self, opponent: str, mode: Literal["greedy", "sampled"]) -> Games:
        """All of it."""
        info = {name: self._sums[name] / count for name, count in sorted(self._counts.items()) if count}
        sides = {side: Results(**counter) for side, counter in self._results.items()}
        return Games(opponent, sides, np.array(self._returns), np.array(self._lengths), info, mode)
