"""Metrics: what each one means, the episodes behind them, and a history that stays small."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recollect.base import devices
from recollect.experience.rollout import Rollout

GLOSSARY = {
    "steps": "valid env steps so far, over all rows",
    "updates": "rollouts learned from so far",
    "lag": "age of the acting weights in updates, mean over the rollouts of an update; 0 in lockstep",
    "lag/max": "the largest lag of a rollout in the update",
    "episodes": "episodes finished so far",
    "return": "mean return of the last finished episodes (`target_episodes` of them), unscaled rewards",
    "length": "mean length of the same episodes, in steps",
    "loss/policy": "the policy's loss (PPO: the clipped surrogate), mean over the update's minibatches",
    "loss/value": "half the squared value error, in units of the returns' spread",
    "loss/next_obs": "error of the predicted next observations, where `next_obs_coef` asks for them",
    "entropy": "mean entropy of the action distribution, in nats",
    "kl": "mean KL divergence from the acting policy over the update's minibatches (k3 estimator)",
    "kl_last": "the same in the last minibatch of the update",
    "rho/mean": "IMPALA: mean truncated ratio of a step's probability now and when it was taken; 1 without "
    "a lag",
    "rho/clipped": "IMPALA: share of steps whose ratio is above `rho_clip`",
    "c/clipped": "IMPALA: share of steps whose ratio is above `c_clip`",
    "clip_fraction": "share of steps whose probability ratio was clipped",
    "minibatches": "optimiser steps of this update; fewer than planned if the KL ended it",
    "sequences": "chunks, or episode segments (`batching`), that the minibatches are drawn from",
    "passes": "forward and backward passes for each of them (`accumulate`)",
    "padding": "share of the unrolled steps that are no experience: padding, fillers, dead agents",
    "recomputed": "segments of time in which each unroll is recomputed (`recompute_activations`)",
    "loss/l2_init": "`l2_init` times the squared distance of the weights from those at the start",
    "weights/distance": "norm of the difference of the weights from those at the start",
    "weights/clipped": "share of the weights that an optimiser step moved past the limit of `weight_clip`",
    "grad_norm": "mean gradient norm before clipping",
    "grad_norm_max": "largest gradient norm before clipping",
    "grad_clip_rate": "share of minibatches whose gradient was clipped",
    "explained_variance": "1 - Var[return - value] / Var[return]; 1 is a perfect critic",
    "value_scale": "spread of the returns that the critic predicts in (PopArt)",
    "deviation/log_prob": "largest difference of recomputed and recorded log-probs before the first "
    "optimiser step of the update: 0 but for rounding, or the memory is wrong",
    "deviation/value": "the same for values",
    "state/norm": "mean norm of the stored states",
    "state/norm_max": "largest norm of a stored state",
    "state/drift": "growth of that norm within episodes, per step",
    "staleness": "how far the stored states are from those of the updated weights, as a ratio",
    "learning_rate": "of the encoder and the core",
    "entropy_coef": "weight of the entropy bonus",
    "encoder_bits": "bits of the numbers that the encoder computes with: 16 with `precision` bf16",
    "compiled_graphs": "graphs compiled so far, with `compile`: it rises at the start and then stays",
    "start_seconds": "seconds spent so far on compiling kernels and recording CUDA graphs (GPU)",
    "speed/total": "env steps per second, everything included",
    "speed/env": "env steps per second if there were only the env; where env and policy are one CUDA graph, "
    "it is part of the acting",
    "speed/act": "env steps per second if there were only the acting",
    "speed/learn": "env steps per second if there were only the learning",
    "speed/wait": "env steps per second if the learner only waited for rollouts (actors in other processes)",
    "time/env": "share of the actors' time that their envs take",
    "time/policy": "share of the actors' time that choosing actions takes",
    "time/transport": "share of the actors' time that loading weights takes",
    "time/learner": "share of the actors' time in which they wait for the learner",
    "queue/ready": "rollouts that had arrived before the learner asked for them",
    "queue/running": "unfinished rollouts when the learner's batch was complete",
    "restarts": "restarts of actors in this run, because their process died or hung",
    "actors/slowest": "env steps per second of the slowest actor, its waiting included; without a rollout in "
    "this update, its speed as if one had arrived now",
    "actors/fastest": "env steps per second of the fastest actor",
    "actor/N/speed": "env steps per second of actor N (with up to 16 actors)",
    "actor/N/steps": "valid env steps of actor N in this run; their sum over all actors is `steps`, except "
    "for steps in another runtime",
} | {
    f"{name}/{kind}": f"{words} {what}"
    for name, what in {
        "reward": "reward of the rollout's valid steps",
        "value": "recorded value of the rollout's valid steps",
        "advantage": "advantage before normalisation; IMPALA: that of V-trace, weighted by rho",
        "return": "return target of the critic; IMPALA: that of V-trace",
    }.items()
    for kind, words in {
        "mean": "mean",
        "std": "spread of the",
        "min": "lowest",
        "max": "highest",
    }.items()
}
"""Every metric with one line. ``staleness/epoch_K`` is ``staleness`` after the K-th epoch; the N of
``actor/N/speed`` is the number of an actor."""


def meaning(name: str, glossary: Mapping[str, str] = GLOSSARY) -> str:
    """The line of a metric, also of one with a number in its name; empty if there is none."""
    stem, _, epoch = name.partition("/epoch_")
    if epoch:
        return f"{stem} after epoch {epoch}"
    return glossary.get(re.sub(r"^actor/\d+/", "actor/N/", name), "")


@dataclass(frozen=True, slots=True)
class Episodes:
    """Finished episodes, N of them."""

    returns: np.ndarray
    """[N] sums of the raw rewards."""
    lengths: np.ndarray
    """[N] valid steps."""
    steps: int = 0
    """Valid steps of the rollouts that they ended in, whether or not an episode ended with them."""


class EpisodeTracker:
    """Cuts the stream of rollouts into episodes; keeps running sums and the last ``window``.

    The running sums are where the rollouts are: from a GPU only ended episodes are brought, in one copy.
    """

    def __init__(self, rows: int, window: int = 100):
        self.count = 0
        self.recent: deque[tuple[float, int]] = deque(maxlen=window)
        self._return = torch.zeros(rows, dtype=torch.float64)
        self._length = torch.zeros(rows, dtype=torch.int64)

    def add(self, *rollouts: Rollout, restarted: Collection[int] = ()) -> Episodes:
        """The episodes that ended in these rollouts, in order of time.

        Rows are numbered actor after actor, as many for each as its rollout has. ``restarted``: the actors
        whose rows have begun new episodes, so that those which ran before never end.
        """
        parts, steps = [], 0
        for rollout in rollouts:
            self._return = self._return.to(rollout.reward.device)
            self._length = self._length.to(rollout.reward.device)
            # Where an actor has several, the first may be of its life before.
            if rollout.actor in restarted and bool(rollout.first[0].all()):
                self.forget_running(_rows_of(rollout))
            *part, count = (
                self._add_there(rollout) if devices.synchronises(rollout.reward) else self._add(rollout)
            )
            parts.append(part)
            steps += count
        times, returns, lengths = (np.concatenate(column) for column in zip(*parts))
        order = times.argsort(kind="stable")
        returns, lengths = returns[order], lengths[order]
        self.count += len(returns)
        last = slice(-(self.recent.maxlen or 1), None)  # there may be ten thousands
        self.recent.extend(zip(returns[last].tolist(), lengths[last].tolist()))
        return Episodes(returns, lengths, steps)

    def _add(self, rollout: Rollout) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """When the episodes of one rollout ended, their returns and lengths, row by row; its valid steps."""
        own, valid = _rows_of(rollout), rollout.valid.numpy()
        reward = np.where(valid, rollout.reward.numpy(), 0.0).astype(np.float64)
        ended = (rollout.terminated | rollout.truncated).numpy() & valid
        running, so_far = self._return.numpy(), self._length.numpy()  # written to below
        # Running totals since each row's start, with what the row brought along.
        total = reward.cumsum(0) + running[own]
        steps = valid.cumsum(0) + so_far[own]
        rows, times = ended.T.nonzero()  # row by row, and in order of time within each
        returns, lengths = (
            _since_previous(total[times, rows], rows),
            _since_previous(steps[times, rows], rows),
        )
        running[own], so_far[own] = total[-1], steps[-1]
        np.subtract.at(running, rows + own.start, returns)
        np.subtract.at(so_far, rows + own.start, lengths)
        return times, returns, lengths, int(np.count_nonzero(valid))

    def _add_there(self, rollout: Rollout) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """The same, but in order of time, computed where the rollout is: only two numbers are waited for."""
        own, valid = _rows_of(rollout), rollout.valid
        ended = (rollout.terminated | rollout.truncated) & valid
        reward = rollout.reward.double().masked_fill(~valid, 0)
        step = torch.arange(len(valid), device=valid.device).unsqueeze(1)
        last = torch.where(ended, step, -1).cummax(0).values  # [T, B]: the last end up to a step
        before = torch.cat([torch.full_like(last[:1], -1), last])  # [T + 1, B]: before it
        returns = _gained(reward.cumsum(0) + self._return[own], before)
        lengths = _gained(valid.cumsum(0) + self._length[own], before)
        self._return[own], self._length[own] = returns[-1], lengths[-1]
        times, rows = ended.nonzero(as_tuple=True)
        found = torch.stack([times.double(), returns[times, rows], lengths[times, rows].double()])
        numbers = torch.cat([valid.sum().double().reshape(1), found.flatten()]).cpu()
        ends, sums, counts = numbers[1:].view(3, -1).numpy()
        return ends.astype(np.int64), sums, counts.astype(np.int64), int(numbers[0])

    def snapshot(self) -> dict[str, np.ndarray]:
        """Count, window and running sums, as copies."""
        return {
            "count": np.array(self.count),
            "recent": np.array(self.recent, dtype=np.float64).reshape(-1, 2),
            "return": self._return.cpu().numpy().copy(),
            "length": self._length.cpu().numpy().copy(),
        }

    def restore(self, snapshot: dict[str, np.ndarray]) -> None:
        """Go on from what ``snapshot`` returned; running sums of another number of rows are dropped."""
        self.count = int(snapshot["count"])
        self.recent.extend((float(total), int(length)) for total, length in snapshot["recent"])
        if snapshot["return"].shape == tuple(self._return.shape):
            self._return = torch.from_numpy(snapshot["return"].copy())
            self._length = torch.from_numpy(snapshot["length"].copy())

    def forget_running(self, rows: slice) -> None:
        """Drop the episodes of these rows that have not ended: their env starts anew."""
        self._return[rows] = 0
        self._length[rows] = 0

    def metrics(self) -> dict[str, float]:
        """Count, and mean return and length of the last episodes if there are any."""
        summary = {"episodes": float(self.count)}
        if self.recent:
            returns, lengths = zip(*self.recent)
            summary |= {"return": float(np.mean(returns)), "length": float(np.mean(lengths))}
        return summary


def _rows_of(rollout: Rollout) -> slice:
    """Where the rows of a rollout stand among those of all actors."""
    return slice(rollout.actor * rollout.rows, (rollout.actor + 1) * rollout.rows)


def _since_previous(total: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """What each running total gained since the one before it in the same row; both [N], row by row."""
    gained = total.copy()
    same = rows[1:] == rows[:-1]
    gained[1:][same] -= total[:-1][same]
    return gained


def _gained(running: Tensor, before: Tensor) -> Tensor:
    """[T + 1, B]: what running [T, B] gained since the step ``before`` [T + 1, B], or since the start if -1.

    The last row is what was gained at the end of the rollout.
    """
    now = torch.cat([running, running[-1:]])
    return now - running.gather(0, before.clamp(min=0)).masked_fill(before < 0, 0)


class History:
    """The metrics of the run so far, at most ``limit`` rows: when full, every other one is dropped."""

    def __init__(self, limit: int = 2000):
        self.rows: list[dict[str, float]] = []
        self.last: dict[str, float] = {}
        """The newest row, kept or not."""
        self._limit, self._every, self._seen = limit, 1, 0

    def add(self, row: dict[str, float]) -> None:
        """Keep the row if it is one of each ``every``-th."""
        self.last = row
        if self._seen % self._every == 0:
            self.rows.append(row)
        self._seen += 1
        if len(self.rows) > self._limit:
            self.rows = self.rows[::2]
            self._every *= 2

    def column(self, name: str) -> tuple[list[float], list[float]]:
        """The steps and the values of one metric, where it has a value."""
        pairs = [(row["steps"], row[name]) for row in self.rows if name in row]
        return [s for s, _ in pairs], [v for _, v in pairs]


class Advisor:
    """Watches the metrics and says each piece of advice once."""

    def __init__(self, max_grad_norm: float, patience: int = 100, settling: int = 10):
        """``settling``: the first updates, in which a new critic may well find its scale."""
        self._limit, self._patience, self._settling = max_grad_norm, patience, settling
        self._above = self._below = self._updates = 0
        self._last: dict[str, float] = {}
        self._largest: dict[str, float] = {}
        self._said: set[str] = set()

    def watch(self, metrics: dict[str, float]) -> list[str]:
        """Advice that this update gives rise to, if it was not given before."""
        advice = self._gradients(metrics) | self._spreads(metrics)
        fresh = [text for key, text in advice.items() if key not in self._said]
        self._said |= advice.keys()
        return fresh

    def _gradients(self, metrics: dict[str, float]) -> dict[str, str]:
        if "grad_norm" not in metrics:  # the KL ended the update before its first step
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
        """A spread that grows tenfold in one update, and not just because that of the rewards did."""
        growth = {}
        for name in ("reward", "advantage", "value"):
            before, largest = self._last.get(name, 0.0), self._largest.get(name, 0.0)
            now = self._last[name] = metrics[f"{name}/std"]
            self._largest[name] = max(largest, now)
            # Where it was as large before, as in a task that is all but solved, nothing is amiss.
            factor = 1.0 if now <= largest else now / before if before > 0 else math.inf
            growth[name] = (factor, f"from {before:.3g} to {now:.3g} in one update")
        self._updates += 1
        if self._updates <= self._settling:
            return {}
        advice = {}
        by_rewards, change = growth["reward"]
        if 10 <= by_rewards < math.inf:
            advice["reward"] = (
                f"the spread of the reward went {change}: unstable, unless the agent has just found rewards; "
                "if the env has changed, or its rewards are not bounded, see reward_scale and reward_clip"
            )
        for name in ("advantage", "value"):
            if 10 * max(1.0, by_rewards) <= growth[name][0] < math.inf:
                advice[name] = (
                    f"the spread of the {name} went {growth[name][1]}: unstable; lower learning_rate, or "
                    "raise num_envs or rollout"
                )
        return advice
