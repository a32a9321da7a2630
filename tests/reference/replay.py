"""The slow truth of replay: episodes per row as lists of steps, and the windows that can be drawn from them.

Written from the description of the stream alone: valid steps take a slot each, a truncated step is followed
by a slot with the final observation, a row keeps its last ``capacity`` slots.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from recollect.base import tree


@dataclass
class Slot:
    """One observation, and the step that was made on it."""

    obs: Any
    action: Any
    reward: float
    terminated: bool
    is_step: bool
    state: Any = None
    state_number: int = -1
    count: int = -1
    """Number of the step among the valid ones of its row."""


@dataclass
class Episode:
    """The slots of an episode; ``at`` is the position of the first one."""

    at: int
    opens: bool
    """Whether its first slot is the episode's first step."""
    slots: list[Slot] = field(default_factory=list)
    has_ended: bool = False


class Rows:
    """What a replay should hold."""

    def __init__(self, rows, capacity, burn_in, length, n_step, stride, stores_states, state_capacity):
        self.capacity, self.K, self.L, self.n = capacity, burn_in, length, n_step
        self.stride, self.stores_states, self.state_capacity = stride, stores_states, state_capacity
        self.rows = [[] for _ in range(rows)]
        self.states, self.counts = [0] * rows, [0] * rows

    def head(self, row: int) -> int:
        episodes = self.rows[row]
        return episodes[-1].at + len(episodes[-1].slots) if episodes else 0

    def add(self, rollout, row: int = 0) -> None:
        for b in range(rollout.rows):
            for t in range(rollout.steps):
                if rollout.valid[t, b]:
                    self._step(rollout, t, b, row + b)

    def _step(self, rollout, t, b, row) -> None:
        episodes = self.rows[row]
        latest = episodes[-1] if episodes else None
        if latest is None or latest.has_ended or rollout.first[t, b]:
            if latest is not None and not latest.has_ended:  # abandoned
                last, latest.has_ended = latest.slots[-1], True
                last.action, last.reward, last.is_step, last.state = None, 0.0, False, None
            episodes.append(Episode(self.head(row), bool(rollout.first[t, b])))
            latest = episodes[-1]
        slot = Slot(
            tree.clone(tree.index(rollout.obs, (t, b))),
            tree.clone(tree.index(rollout.action, (t, b))),
            float(rollout.reward[t, b]),
            bool(rollout.terminated[t, b]),
            True,
            count=self.counts[row],
        )
        self.counts[row] += 1
        if self.stores_states and t in rollout.state_steps:
            slot.state = tree.clone(tree.index(rollout.states, (rollout.state_steps.index(t), b)))
            slot.state_number = self.states[row]
            self.states[row] += 1
        latest.slots.append(slot)
        if rollout.terminated[t, b]:
            latest.has_ended = True
        elif rollout.truncated[t, b]:
            latest.has_ended = True
            (i,) = [
                i
                for i in range(len(rollout.finals.time))
                if (int(rollout.finals.time[i]), int(rollout.finals.row[i])) == (t, b)
            ]
            latest.slots.append(Slot(tree.clone(tree.index(rollout.finals.obs, i)), None, 0.0, False, False))

    def windows(self) -> dict[tuple[int, int], dict[str, Any]]:
        """All that can be drawn, by row and position of the first learned step."""
        return {
            (row, episode.at + w): self._window(row, episode, w)
            for row, episodes in enumerate(self.rows)
            for episode in episodes
            for w in range(len(episode.slots))
            if self._can_be_drawn(row, episode, w)
        }

    def _can_be_drawn(self, row: int, episode: Episode, w: int) -> bool:
        slot, head = episode.slots[w], self.head(row)
        if not slot.is_step or not (episode.has_ended or w + self.L + self.n <= len(episode.slots)):
            return False
        if episode.at + max(0, w - self.K) < head - self.capacity:
            return False
        if w == 0 and episode.opens:
            return True
        if not self.stores_states:
            return slot.count % self.stride == 0 and (w >= self.K or episode.opens)
        if episode.opens and w <= self.K and (w == self.K or w % self.L == 0):
            return True
        before = episode.slots[w - self.K] if w >= self.K else None
        return (
            before is not None
            and before.state is not None
            and before.state_number >= self.states[row] - self.state_capacity
        )

    def _window(self, row: int, episode: Episode, w: int) -> dict[str, Any]:
        inside = [
            (i, episode.slots[w - self.K + i])
            for i in range(self.K + self.L + self.n)
            if 0 <= w - self.K + i < len(episode.slots)
        ]
        return {
            "slots": inside,
            "first": [i for i, _ in inside if w - self.K + i == 0 and episode.opens],
            "state": episode.slots[w - self.K].state if self.stores_states and w >= self.K else None,
            "age": self.head(row) - (episode.at + w),
        }
