"""Episode returns and lengths, computed from rollouts."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recollect.base import devices
from recollect.experience.rollout import Rollout


@dataclass(frozen=True, slots=True)
class Episodes:
    """Finished episodes, N of them."""

    returns: np.ndarray
    """[N] sums of the raw rewards."""
    lengths: np.ndarray
    """[N] valid steps."""
    steps: int = 0
    """Valid steps of the rollouts, those of unfinished episodes included."""


class EpisodeTracker:
    """Computes episode returns and lengths from rollouts; keeps the last ``window`` episodes.

    Running sums stay on the rollouts' device; from a GPU only finished episodes are copied, all at once.
    """

    def __init__(self, rows: int, window: int = 100):
        self.count = 0
        self.recent: deque[tuple[float, int]] = deque(maxlen=window)
        self._return = torch.zeros(rows, dtype=torch.float64)
        self._length = torch.zeros(rows, dtype=torch.int64)

    def add(self, *rollouts: Rollout, restarted: Collection[int] = ()) -> Episodes:
        """The episodes that ended in these rollouts, in order of time.

        Rows are numbered actor by actor. ``restarted``: indices of actors that were restarted, whose
        unfinished episodes are dropped.
        """
        parts, steps = [], 0
        for rollout in rollouts:
            self._return = self._return.to(rollout.reward.device)
            self._length = self._length.to(rollout.reward.device)
            # The first of several rollouts of an actor may predate its restart.
            if rollout.actor in restarted and bool(rollout.first[0].all()):
                self.forget_running(_rows_of(rollout))
            add = self._add_on_device if devices.synchronises(rollout.reward) else self._add
            *part, count = add(rollout)
            parts.append(part)
            steps += count
        times, returns, lengths = (np.concatenate(column) for column in zip(*parts))
        order = times.argsort(kind="stable")
        returns, lengths = returns[order], lengths[order]
        self.count += len(returns)
        last = slice(-(self.recent.maxlen or 1), None)  # of possibly tens of thousands
        self.recent.extend(zip(returns[last].tolist(), lengths[last].tolist()))
        return Episodes(returns, lengths, steps)

    def _add(self, rollout: Rollout) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """End times, returns and lengths [N] of one rollout's episodes, row by row, and its valid steps."""
        own, valid = _rows_of(rollout), rollout.valid.numpy()
        reward = np.where(valid, rollout.reward.numpy(), 0.0).astype(np.float64)
        ended = (rollout.terminated | rollout.truncated).numpy() & valid
        running, so_far = self._return.numpy(), self._length.numpy()  # written to below
        # Running totals of each row, including its unfinished episode.
        total = reward.cumsum(0) + running[own]
        steps = valid.cumsum(0) + so_far[own]
        rows, times = ended.T.nonzero()  # row by row, and in order of time within each
        returns = _since_previous(total[times, rows], rows)
        lengths = _since_previous(steps[times, rows], rows)
        running[own], so_far[own] = total[-1], steps[-1]
        np.subtract.at(running, rows + own.start, returns)
        np.subtract.at(so_far, rows + own.start, lengths)
        return times, returns, lengths, int(np.count_nonzero(valid))

    def _add_on_device(self, rollout: Rollout) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """The same in order of time, computed on the rollout's device, with two synchronisations."""
        own, valid = _rows_of(rollout), rollout.valid
        ended = (rollout.terminated | rollout.truncated) & valid
        reward = rollout.reward.double().masked_fill(~valid, 0)
        step = torch.arange(len(valid), device=valid.device).unsqueeze(1)
        last = torch.where(ended, step, -1).cummax(0).values  # [T, B]: the last end up to and at each step
        before = torch.cat([torch.full_like(last[:1], -1), last])  # [T + 1, B]: the last end before it
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
        """Restore a ``snapshot``; running sums are dropped if the number of rows differs."""
        self.count = int(snapshot["count"])
        self.recent.extend((float(total), int(length)) for total, length in snapshot["recent"])
        if snapshot["return"].shape == tuple(self._return.shape):
            self._return = torch.from_numpy(snapshot["return"].copy())
            self._length = torch.from_numpy(snapshot["length"].copy())

    def forget_running(self, rows: slice) -> None:
        """Drop the unfinished episodes of these rows, whose envs were reset."""
        self._return[rows] = 0
        self._length[rows] = 0

    def metrics(self) -> dict[str, float]:
        """Episode count, and return (mean and spread) and mean length of the last episodes, if any."""
        summary = {"episodes": float(self.count)}
        if self.recent:
            returns, lengths = zip(*self.recent)
            summary |= {"return": float(np.mean(returns)), "return_spread": float(np.std(returns))}
            summary["length"] = float(np.mean(lengths))
        return summary


def _rows_of(rollout: Rollout) -> slice:
    """The rows of a rollout among those of all actors."""
    return slice(rollout.actor * rollout.rows, (rollout.actor + 1) * rollout.rows)


def _since_previous(total: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Increase of each running total since the previous one of the same row; both [N], row by row."""
    gained = total.copy()
    same = rows[1:] == rows[:-1]
    gained[1:][same] -= total[:-1][same]
    return gained


def _gained(running: Tensor, before: Tensor) -> Tensor:
    """Increase [T + 1, B] of ``running`` [T, B] since the step ``before`` [T + 1, B], -1 for the start.

    The last entry is the increase at the end of the rollout.
    """
    now = torch.cat([running, running[-1:]])
    return now - running.gather(0, before.clamp(min=0)).masked_fill(before < 0, 0)
